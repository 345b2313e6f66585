"""Files as inputs and as tables: their formats, and what `schema:` says of their columns. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

FileFormat: TypeAlias = Annotated[Literal["csv", "json", "parquet", "orc", "avro"], Field(description="file format")]

# `id BIGINT`: a path has no blank before a type.
_COLUMN_LIST = re.compile(r"^\s*[`A-Za-z_][^/\\]*\s+[A-Za-z]", re.DOTALL)


def schema_field() -> Any:
    """The optional field `schema` of a model."""
    return Field(
        default=None,
        alias="schema",
        min_length=1,
        description="schema file, or columns in SQL: `id BIGINT, name STRING`",
    )


def is_columns(schema: str) -> bool:
    """Whether a `schema:` of files lists columns rather than name a file.

    >>> is_columns("id BIGINT, name STRING"), is_columns("schemas/order.json")
    (True, False)
    """
    return bool(_COLUMN_LIST.match(schema)) and not schema.endswith((".json", ".avsc", ".proto"))
