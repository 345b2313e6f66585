"""Every kind of source, sink and table that a file may name has its row in the table of what it does with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from headwater.pipelines.definition import Sink, Source, Table
from headwater.pipelines.sinks.kinds import SINK_KINDS
from headwater.pipelines.sources.kinds import SOURCE_KINDS, TABLE_KINDS


def members(union: Any) -> dict[Any, str]:
    """The classes of a union of the definition, each with the field by which the file names it."""
    return {get_args(member)[0]: get_args(member)[1].tag for member in get_args(get_args(union)[0])}


@pytest.mark.parametrize(
    ("union", "table"), [(Source, SOURCE_KINDS), (Sink, SINK_KINDS), (Table, TABLE_KINDS)], ids=["from", "to", "tables"]
)
def test_each_kind_of_the_file_has_one_row(union: Any, table: Mapping[type, object]) -> None:
    assert set(table) == set(members(union))
    assert len({type(kind) for kind in table.values()}) == len(table)


@pytest.mark.parametrize("union", [Source, Sink, Table], ids=["from", "to", "tables"])
def test_a_kind_is_called_as_the_field_that_names_it(union: Any) -> None:
    for model, tag in members(union).items():
        assert model.kind == tag
        assert tag in model.model_fields
