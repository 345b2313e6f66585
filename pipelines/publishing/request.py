"""What a user asks to publish. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.publishing.errors import PublishRefused

__all__ = ["DELTA", "INPUT_FORMATS", "PublishRequest", "format_of_names", "split_version"]

DELTA: Final = "delta"
INPUT_FORMATS: Final = ("parquet", "orc", "json", "csv", "avro", DELTA)
#: Formats by the suffix of files' names; a further suffix such as `.gz` is passed over.
_BY_SUFFIX: Final = {"parquet": "parquet", "orc": "orc", "json": "json", "jsonl": "json", "csv": "csv", "avro": "avro"}
_VERSION: Final = re.compile(r"(.+)@v?(\d{1,18})")


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A publish as it is asked for.

    Attributes:
        path: File, folder, pattern, or Delta table.
        input_format: One of INPUT_FORMATS; None: found from the path.
        input_schema: Columns in SQL, or a schema file; None: found from the files.
        input_options: Options of Spark's reader.
        version: Of a Delta table; None: the latest.
        between: Two versions, to publish the difference.
        key, value, timestamp, headers: SQL expressions; a `value` of None means all columns.
        order_by: Expressions, each with DESC or without, by which the records of a key are sorted.
        given_id: A name instead of the one of the contents.
        is_split: Whether several transactions are permitted.
        transaction_rows: The most rows of one; None: by the brokers' limit.
        abandons: Whether an interrupted publish of other contents is given up.
    """

    path: str
    topic: str
    key: str | None
    value: str | None = None
    timestamp: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    input_format: str | None = None
    input_schema: str | None = None
    input_options: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None
    between: tuple[int, int] | None = None
    order_by: tuple[str, ...] = ()
    compression: str = "none"
    given_id: str | None = None
    is_split: bool = False
    transaction_rows: int | None = None
    abandons: bool = False

    def __post_init__(self) -> None:
        if self.between is not None and self.version is not None:
            raise PublishRefused("give either a version or two versions, whose difference is published")
        if self.between is not None and self.between[0] > self.between[1]:
            raise PublishRefused(
                f"--from-version {self.between[0]} is later than --to-version {self.between[1]}: the difference leads "
                "from an earlier version to a later one"
            )
        if self.input_format is not None and self.input_format != DELTA and self.is_of_table:
            raise PublishRefused(f"versions are those of a Delta table, and --input-format is {self.input_format}")
        if self.order_by and self.key is None:
            raise PublishRefused("--order-by sorts the records of a key: it needs --key")

    @property
    def is_of_table(self) -> bool:
        """Whether only a Delta table can be meant."""
        return self.version is not None or self.between is not None or self.input_format == DELTA


def split_version(path: str) -> tuple[str, int | None]:
    """A path with its version, as in Delta's `PATH@v3`.

    >>> split_version("lake/flights@3"), split_version("/lake/flights@v12"), split_version("in/a@b.json")
    (('lake/flights', 3), ('/lake/flights', 12), ('in/a@b.json', None))
    """
    found = _VERSION.fullmatch(path)
    return (path, None) if found is None else (found[1], int(found[2]))


def format_of_names(names: list[str]) -> str:
    """The format that the names of files say. Raises PublishRefused if they say none, or several.

    >>> format_of_names(["a.json.gz", "b.jsonl"]), format_of_names(["part-0.snappy.parquet"])
    ('json', 'parquet')
    """
    said = set()
    for name in names:
        parts = name.rpartition("/")[2].lower().split(".")[1:]
        suffixes = [_BY_SUFFIX[part] for part in parts[-2:] if part in _BY_SUFFIX]
        said.add(suffixes[-1] if suffixes else "")
    if len(said) == 1 and "" not in said:
        return said.pop()
    raise PublishRefused(
        "the files' names do not say one format (.parquet, .orc, .json, .csv, .avro); name it by --input-format"
    )
