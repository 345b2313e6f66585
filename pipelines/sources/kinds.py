"""The kinds of sources and of tables: one entry each; the kind's module has all its code that needs Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headwater.pipelines.definition import (
    DeltaSource,
    DeltaTable,
    FilesSource,
    FilesTable,
    JdbcSource,
    JdbcTable,
    RateSource,
    Source,
    Table,
    TopicSource,
    TopicTable,
)
from headwater.pipelines.sources.delta import DeltaSourceKind, DeltaTableKind
from headwater.pipelines.sources.files import FilesSourceKind, FilesTableKind
from headwater.pipelines.sources.jdbc import JdbcTableKind
from headwater.pipelines.sources.jdbc_feed import JdbcSourceKind
from headwater.pipelines.sources.kind import SourceKind, TableKind
from headwater.pipelines.sources.latest import TopicTableKind
from headwater.pipelines.sources.rate import RateSourceKind
from headwater.pipelines.sources.topic import TopicSourceKind

__all__ = ["SOURCE_KINDS", "TABLE_KINDS", "kind_of_source", "kind_of_table"]

SOURCE_KINDS: Final[Mapping[type, SourceKind[Any]]] = {
    TopicSource: TopicSourceKind(),
    DeltaSource: DeltaSourceKind(),
    FilesSource: FilesSourceKind(),
    JdbcSource: JdbcSourceKind(),
    RateSource: RateSourceKind(),
}
TABLE_KINDS: Final[Mapping[type, TableKind[Any]]] = {
    FilesTable: FilesTableKind(),
    DeltaTable: DeltaTableKind(),
    TopicTable: TopicTableKind(),
    JdbcTable: JdbcTableKind(),
}


def kind_of_source(source: Source) -> SourceKind[Any]:
    """The Spark half of a source's kind."""
    return SOURCE_KINDS[type(source)]


def kind_of_table(table: Table) -> TableKind[Any]:
    """The Spark half of a table's kind."""
    return TABLE_KINDS[type(table)]
