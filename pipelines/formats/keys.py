"""Keys in formats with fields: the column `key`, null for a record without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.formats import ValueColumns, framed_json
from headwater.pipelines.formats.misfits import CORRUPT, json_misfit, json_texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = "key"
_PARSED = "_key_parsed"
_TEXTS = "_key_texts"  # the fields of refused keys, as text


def with_key(decoded: DataFrame, key_format: str, wanted: ValueColumns) -> DataFrame:
    """Return decoded records with the column `key`. An undecodable key sets `columns.ERROR`, unless already set."""
    if key_format in ("json", "json_schema"):
        return _json(decoded, wanted, is_framed=key_format == "json_schema")
    from headwater.pipelines.formats import framed

    if wanted.reader is None:
        from pyspark.sql import functions as f

        assert wanted.schema is not None, "an analysis has found the columns"
        return decoded.withColumn(KEY, f.lit(None).cast(wanted.schema))
    return framed.with_key(decoded, wanted.reader)


def _json(decoded: DataFrame, wanted: ValueColumns, *, is_framed: bool) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    assert wanted.schema is not None, "the columns of keys come from a schema"
    raw = f.col(columns.KEY)
    text = framed_json.text_of(raw) if is_framed else raw.cast("string")
    schema = StructType(list(wanted.schema.fields)).add(CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", **wanted.options, "columnNameOfCorruptRecord": CORRUPT}
    parsed = decoded.withColumn(_PARSED, f.from_json(text, schema, options))
    own = f.col(_PARSED)
    is_bad = own.isNull() | own[CORRUPT].isNotNull()
    parsed = parsed.withColumn(_TEXTS, f.when(is_bad, json_texts(text, wanted.options)))
    misfit = json_misfit(text, f.col(_TEXTS), own, wanted.schema, wanted.options)
    why = f.concat(f.lit("the key does not fit the schema: "), misfit)
    wrong = f.when(is_bad, why)
    if is_framed:
        wrong = f.when(framed_json.fault_of(raw).isNotNull(), f.lit("the key does not begin with the id of a schema"))
        wrong = wrong.when(is_bad, why)
    for name in wanted.required:
        wrong = wrong.when(own[name].isNull(), f.lit(f"the key's required field {name} is missing or null"))
    error = f.coalesce(f.col(columns.ERROR), f.when(raw.isNotNull(), wrong))
    key = f.when(raw.isNotNull(), own.dropFields(CORRUPT))
    return parsed.withColumn(columns.ERROR, error).withColumn(KEY, key).drop(_PARSED, _TEXTS)
