"""Avro schemas in the registry; the language itself is `headwater.pipelines.schemas.avro`."""
