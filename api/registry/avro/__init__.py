"""Avro schemas as the registry sees them; the language itself is `pipelines.schemas.avro`."""
