"""Avro: schemas, their text, and schema resolution by the specification."""
