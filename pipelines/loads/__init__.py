"""Loads: exact ranges of topics' records into files and Delta tables, each record once."""
