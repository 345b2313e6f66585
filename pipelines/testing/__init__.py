"""Tests of pipelines: rows in, rows out, without a broker. `headwater pipeline test` uses `running`."""
