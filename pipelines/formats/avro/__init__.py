"""Avro values: schema resolution as a program, which compiled loops run over Arrow's memory.

`columns` maps schemas to columns, `reading` and `writing` build programs, `decode_kernel` and `encode_kernel` run them,
`arrays` and `flat` convert between Arrow's arrays and the kernels' arrays, `container` reads files.
"""

from __future__ import annotations


def warm() -> None:
    """Compile the kernels, or load them from numba's cache, so that Spark's workers find the cache filled."""
    import pyarrow as pa

    from headwater.pipelines.formats.avro.decoder import AvroDecoder
    from headwater.pipelines.formats.avro.encoder import AvroEncoder
    from headwater.pipelines.formats.framing import frames
    from headwater.pipelines.formats.registry_client import AVRO, RegisteredSchema

    schema = RegisteredSchema(AVRO, '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "string"}]}')
    written = AvroEncoder(schema).encode(pa.array([{"n": "x"}]), 1)

    class _One:
        def schema(self, schema_id: int) -> RegisteredSchema:  # noqa: ARG002 - there is one
            return schema

        def subjects(self, schema_id: int) -> list[str]:  # noqa: ARG002
            return []

    found = AvroDecoder(schema, _One()).decode(frames(written))
    assert found.values.to_pylist() == [{"n": "x"}]
