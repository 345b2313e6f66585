"""A schema that does not fit a table is refused with the offsets that wait for another."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.pipelines.archive.archive_table import TableSnapshot
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.marks import ArchiveState
from headwater.pipelines.archive.round_plan import RoundPlan

A_LONG, A_STRING, B = StructField("a", LongType()), StructField("a", StringType()), StructField("b", LongType())
PLAN = RoundPlan({1: (5, 6), 0: (3, 9)}, ends={0: 9, 1: 6, 2: 4})
WAITING = "; the next offsets to add are of partition 0: 3 to 8, partition 1: 5"


def table_of(*columns: StructField) -> TableSnapshot:
    return TableSnapshot(None, 1, ArchiveState(), "", 32, StructType(list(columns)).json(), 0, "append")


@pytest.mark.parametrize("merges", [False, True])
def test_a_column_of_another_type_is_refused_with_the_offsets(merges: bool) -> None:
    with pytest.raises(ArchiveError) as refused:
        table_of(A_LONG).check(StructType([A_STRING]), PLAN, merge_schema=merges)
    assert str(refused.value) == f"column a was long and is string now: name another table{WAITING}"


def test_a_column_that_the_table_lacks_is_refused_with_the_offsets_or_added() -> None:
    with pytest.raises(ArchiveError) as refused:
        table_of(A_LONG).check(StructType([A_LONG, B]), PLAN, merge_schema=False)
    said = "the table has no column b: add it with merge_schema: true, or name another table"
    assert str(refused.value) == f"{said}{WAITING}"
    table_of(A_LONG).check(StructType([A_LONG, B]), PLAN, merge_schema=True)


def test_without_records_there_are_no_offsets_to_name() -> None:
    with pytest.raises(ArchiveError, match=r"name another table$"):
        table_of(A_LONG).check(StructType([A_STRING]), RoundPlan(ends={0: 9}), merge_schema=False)


def test_columns_of_the_table_fit_in_any_number() -> None:
    table_of(A_LONG, B).check(StructType([B]), PLAN, merge_schema=False)
