"""Whether files that were not written by Delta may be added to a table: what its definition asks of writers. Pure.

Delta's own writer enforces constraints, computes generated columns, maps names, and sorts rows into partitions. A table
that asks for nothing of that takes files with its columns as they are (Delta protocol, "Requirements for Writers").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.pipelines.archive.file_statistics import INDEXED_COLUMNS

__all__ = ["delta_writer_reason", "indexed_columns"]

#: Features of tables that concern other commits than appends, or that Delta's transaction takes care of.
_FEATURES: Final = frozenset({
    "appendOnly", "changeDataFeed", "checkpointProtection", "clustering", "deletionVectors", "domainMetadata",
    "inCommitTimestamp", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
})  # fmt: skip
#: Features that ask something of a writer only if the definition has what is looked for below.
_LOOKED_AT: Final = frozenset({
    "allowColumnDefaults", "checkConstraints", "columnMapping", "generatedColumns", "identityColumns", "invariants",
})  # fmt: skip
_MAPPING: Final = "delta.columnMapping.mode"
_CONSTRAINT: Final = "delta.constraints."
_INDEXED: Final = "delta.dataSkippingNumIndexedCols"
_INDEXED_NAMES: Final = "delta.dataSkippingStatsColumns"


def delta_writer_reason(protocol: Mapping[str, Any], definition: Mapping[str, Any], fields: Sequence[Any]) -> str:
    """Why only Delta's own writer can write to a table; '' if it need not.

    Args:
        protocol: The content of the `protocol` action.
        definition: The content of the `metaData` action.
        fields: The fields of its `schemaString`.
    """
    unknown = sorted(set(protocol.get("writerFeatures") or ()) - _FEATURES - _LOOKED_AT)
    if unknown:
        return f"the table has the feature {unknown[0]}"
    configuration = definition.get("configuration") or {}
    if definition.get("partitionColumns"):
        return "the table has partition columns"
    if configuration.get(_MAPPING, "none") != "none":
        return "the table maps column names"
    constraint = next((name for name in configuration if name.startswith(_CONSTRAINT)), None)
    if constraint is not None:
        return f"the table has the constraint {constraint.removeprefix(_CONSTRAINT)}"
    if configuration.get(_INDEXED_NAMES):
        return f"the table names the columns of its statistics ({_INDEXED_NAMES})"
    for field in fields:
        told = _field_reason(field)
        if told:
            return f"the column {field['name']} {told}"
    return ""


def _field_reason(field: Mapping[str, Any]) -> str:
    """What of a field, or of a field of a struct, only Delta's writer does."""
    if not field.get("nullable", True):
        return "must not be null"
    # A comment asks nothing of a writer; whatever else is there may.
    asked = sorted(set(field.get("metadata") or {}) - {"comment"})
    if asked:
        return f"has {asked[0]}"
    kind = field.get("type")
    for below in kind.get("fields", ()) if isinstance(kind, Mapping) else ():
        told = _field_reason(below)
        if told:
            return f"has the field {below['name']}, which {told}"
    return ""


def indexed_columns(definition: Mapping[str, Any]) -> int:
    """How many columns of a table have statistics, -1 for all.

    >>> indexed_columns({"configuration": {"delta.dataSkippingNumIndexedCols": "5"}}), indexed_columns({})
    (5, 32)
    """
    said = (definition.get("configuration") or {}).get(_INDEXED)
    try:
        return INDEXED_COLUMNS if said is None else int(said)
    except ValueError:
        return INDEXED_COLUMNS
