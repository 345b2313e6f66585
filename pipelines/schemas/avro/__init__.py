"""Avro: schemas, their text form, and schema resolution according to the specification."""
