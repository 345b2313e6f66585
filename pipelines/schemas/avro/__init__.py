"""Avro: schemas, how they are written, and schema resolution as the specification has it."""
