"""Files are added only to tables that ask nothing of their writer: everything else is left to Delta's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headwater.pipelines.archive.written_tables import delta_writer_reason, indexed_columns


def reason(
    *fields: Mapping[str, Any],
    features: Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
    partition_columns: Sequence[str] = (),
) -> str:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": features}
    definition = {"id": "i", "configuration": properties or {}, "partitionColumns": list(partition_columns)}
    return delta_writer_reason(protocol, definition, fields)


def field(name: str = "c", type_: Any = "long", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


def struct(*fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def test_a_plain_table_takes_files_as_they_are() -> None:
    kinds = [
        "long",
        "string",
        "decimal(38,2)",
        struct(field("a"), field("b", struct(field("c", "date")))),
        {"type": "array", "elementType": "long", "containsNull": True},
        {"type": "array", "elementType": struct(field("a")), "containsNull": False},
        {"type": "map", "keyType": "string", "valueType": struct(field("a")), "valueContainsNull": False},
    ]
    fields = [field(f"c{place}", kind) for place, kind in enumerate(kinds)]
    assert reason(*fields) == ""


def test_a_table_says_no_more_than_it_must() -> None:
    """Protocols before features, definitions without properties, and fields without metadata are in old tables."""
    assert (
        delta_writer_reason({"minReaderVersion": 1, "minWriterVersion": 2}, {}, [{"name": "c", "type": "long"}]) == ""
    )
    assert delta_writer_reason({"writerFeatures": None}, {"configuration": None, "partitionColumns": None}, []) == ""
    assert delta_writer_reason({}, {}, [{"name": "c", "type": "long", "nullable": True, "metadata": None}]) == ""


def test_comments_of_columns_ask_nothing_of_a_writer() -> None:
    assert reason(field(comment="said by the pilot"), field("s", struct(field(comment="in knots")))) == ""


def test_partition_columns_are_deltas_own() -> None:
    assert reason(field("day", "date"), partition_columns=["day"]) == "the table has partition columns"


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_names_are_deltas_own(mode: str) -> None:
    assert reason(field(), properties={"delta.columnMapping.mode": mode}) == "the table maps column names"


def test_names_that_are_not_mapped_take_files() -> None:
    assert reason(field(), features=["columnMapping"], properties={"delta.columnMapping.mode": "none"}) == ""


def test_constraints_are_checked_by_delta_and_named() -> None:
    properties = {"delta.appendOnly": "true", "delta.constraints.late": "delay > 15"}
    assert reason(field(), properties=properties) == "the table has the constraint late"


def test_columns_that_must_not_be_null_are_checked_by_delta() -> None:
    assert reason(field("a"), field("b", nullable=False)) == "the column b must not be null"


def test_a_field_of_a_struct_that_must_not_be_null_is_checked_by_delta() -> None:
    inner = struct(field("a"), field("b", struct(field("c", nullable=False))))
    assert reason(field("s", inner)) == "the column s has the field b, which has the field c, which must not be null"


@pytest.mark.parametrize(
    ("feature", "metadata"),
    [
        ("generatedColumns", {"delta.generationExpression": "year(day)"}),
        ("identityColumns", {"delta.identity.start": 1, "delta.identity.step": 1}),
        ("allowColumnDefaults", {"CURRENT_DEFAULT": "0"}),
        ("invariants", {"delta.invariants": '{"expression": {"expression": "c > 0"}}'}),
        ("columnMapping", {"delta.columnMapping.id": 4}),
        ("appendOnly", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(10)"}),
    ],
)
def test_what_metadata_of_a_column_asks_for_is_deltas_own(feature: str, metadata: dict[str, Any]) -> None:
    asked = min(metadata)
    assert reason(field("a"), field("b", **metadata, comment="c"), features=[feature]) == f"the column b has {asked}"
    nested = field("s", struct(field("b", **metadata)))
    assert reason(nested, features=[feature]) == f"the column s has the field b, which has {asked}"
    assert reason(field("a"), features=[feature]) == ""


@pytest.mark.parametrize(
    "feature",
    [
        "icebergCompatV1",
        "icebergCompatV2",
        "rowTracking",
        "typeWidening",
        "variantType",
        "variantShredding-preview",
        "materializePartitionColumns",
        "collations",
        "coordinatedCommits-preview",
        "a feature of next year",
    ],
)
def test_a_feature_that_may_ask_something_of_a_writer_is_deltas_own(feature: str) -> None:
    assert reason(field(), features=["appendOnly", feature, "invariants"]) == f"the table has the feature {feature}"


@pytest.mark.parametrize(
    "feature",
    [
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    ],
)
def test_a_feature_that_asks_nothing_of_appended_files_takes_them(feature: str) -> None:
    assert reason(field(), features=[feature]) == ""


def test_named_columns_of_statistics_are_deltas_own() -> None:
    name = "delta.dataSkippingStatsColumns"
    assert reason(field(), properties={name: "a,b"}) == f"the table names the columns of its statistics ({name})"


@pytest.mark.parametrize(
    ("said", "columns"), [("0", 0), ("5", 5), ("32", 32), ("1000", 1000), ("-1", -1), ("many", 32), ("", 32)]
)
def test_the_table_says_how_many_columns_have_statistics(said: str, columns: int) -> None:
    assert indexed_columns({"configuration": {"delta.dataSkippingNumIndexedCols": said}}) == columns


@pytest.mark.parametrize("definition", [{}, {"configuration": None}, {"configuration": {"delta.appendOnly": "true"}}])
def test_a_table_that_says_nothing_has_statistics_of_deltas_default(definition: dict[str, Any]) -> None:
    assert indexed_columns(definition) == 32
