"""Writes rows as Avro files from Spark's tasks, by fastavro: a file for each task and value of partition columns."""

from __future__ import annotations

import contextlib
import posixpath
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.file_systems.file_system import FileSystem, join
from headwater.pipelines.loads.errors import LoadError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["partition_folder", "write_avro"]

CODEC: Final = "snappy"
RECORD_NAME: Final = "load"
#: The folder of a partition whose value is null, as Hive names it.
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


def write_avro(rows: DataFrame, files: FileSystem, folder: str, partition_by: Sequence[str]) -> list[str]:
    """Write the rows below a folder, and return the files' paths relative to it.

    Files of attempts that failed may lie there, too: only the returned ones hold the rows, each once. Raises LoadError
    for columns without a type in Avro, and Spark's errors.
    """
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    from headwater.pipelines.formats.avro.encoder import schema_for

    stored = StructType([field for field in rows.schema.fields if field.name not in partition_by])
    try:
        schema = schema_for(to_arrow_type(stored, timezone="UTC"), RECORD_NAME)
    except ValueError as error:
        raise LoadError(f"--format avro: {error}") from None
    # Rows of one value come together: a task then has few files open.
    ordered = rows.sortWithinPartitions(*(f"`{name}`" for name in partition_by)) if partition_by else rows
    names = tuple(partition_by)
    found = ordered.mapInArrow(_task(files, folder, schema, names), "file STRING").collect()
    return sorted(str(row[0]) for row in found)


def _task(
    files: FileSystem, folder: str, schema: str, partition_by: tuple[str, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "this runs in Spark's tasks"
        # A name of the attempt's own: an attempt that was given up may still write.
        name = f"part-{context.partitionId():05}-{context.taskAttemptId()}.avro"
        written = _write_batches(files, folder, schema, partition_by, name, batches)
        yield pa.RecordBatch.from_arrays([pa.array(written, pa.string())], ["file"])

    return write


def _write_batches(
    files: FileSystem,
    folder: str,
    schema: str,
    partition_by: tuple[str, ...],
    name: str,
    batches: Iterable[pa.RecordBatch],
) -> list[str]:
    import json

    from fastavro import parse_schema
    from fastavro.write import Writer

    parsed = parse_schema(json.loads(schema))
    written: list[str] = []
    current: tuple[Any, ...] | None = None
    opened: Any = None
    with contextlib.ExitStack() as file:
        for batch in batches:
            stored = batch.drop_columns(list(partition_by)) if partition_by else batch
            rows = stored.to_pylist(maps_as_pydicts="strict")
            for values, row in zip(_values(batch, partition_by), rows, strict=True):
                if opened is None or values != current:
                    if opened is not None:
                        opened.flush()
                        file.close()
                    current = values
                    relative = posixpath.join(partition_folder(partition_by, values), name)
                    written.append(relative)
                    opened = Writer(file.enter_context(files.writer(join(folder, relative))), parsed, codec=CODEC)
                opened.write(row)
        if opened is not None:
            opened.flush()
    return written


def _values(batch: pa.RecordBatch, partition_by: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    if not partition_by:
        return [()] * batch.num_rows
    return zip(*(batch.column(name).to_pylist() for name in partition_by), strict=True)


def partition_folder(names: Sequence[str], values: Sequence[object]) -> str:
    """The folder of a partition, as Hive and Spark name it.

    >>> partition_folder(["dt", "carrier"], ["2013-01-01", "A/B"]), partition_folder(["dt"], [None])
    ('dt=2013-01-01/carrier=A%2FB', 'dt=__HIVE_DEFAULT_PARTITION__')
    """
    texts = (NULL_PARTITION if value is None or value == "" else _escaped(value) for value in values)
    return "/".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))


def _escaped(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return urllib.parse.quote(text, safe=" !$&()+,-.;@_~|<>")
