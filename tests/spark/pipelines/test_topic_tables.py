"""Tables of topics in a session with Delta's catalog, and the disorder that a pipeline or a session states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.pipelines.datasource import DISORDER_CONF
from headwater.pipelines.definition import Topic
from headwater.pipelines.sources.known_columns import KnownColumns
from headwater.pipelines.spark.planned_offsets import planned_offsets
from headwater.pipelines.sql.topic_rows import present
from headwater.pipelines.sql.topic_tables import topic_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.pipelines.conftest import Lab

pytestmark = pytest.mark.slow


def test_a_table_of_a_topic_is_read_by_its_options(lab: Lab, delta_spark: SparkSession) -> None:
    lab.produce("@made", [{"n": n} for n in range(20)])
    spark, topic = delta_spark, f"{lab.prefix}made"
    spark.sql(
        f"CREATE TABLE made USING headwater OPTIONS (`kafka.bootstrap.servers` '{lab.servers}', subscribe '{topic}', "
        "`headwater.pushdown` 'true')"
    )
    try:
        spark.sql("CREATE TABLE other USING delta AS SELECT 1L AS offset")
        made = topic_table(spark, "made", pushdown=False)
        assert made is not None
        assert made.join(spark.table("other"), "offset").count() == 1
        assert topic_table(spark, "other", pushdown=True) is None
        spark.conf.set(DISORDER_CONF, "0")
        made = topic_table(spark, "made", pushdown=True)
        assert made is not None
        [[part]] = planned_offsets(made.where("timestamp < timestamp'2001-01-01 00:00:00Z'"))
        assert part.reach is not None
        assert {row.tableName for row in spark.sql("SHOW TABLES").collect()} >= {"made", "other"}
        assert not any(row.isTemporary for row in spark.sql("SHOW TABLES").collect() if row.tableName == "made")
    finally:
        spark.conf.unset(DISORDER_CONF)
        spark.sql("DROP TABLE made")
        spark.sql("DROP TABLE IF EXISTS other")


def test_a_pipelines_topic_and_a_session_state_the_disorder(lab: Lab, delta_spark: SparkSession) -> None:
    lab.produce("@stated", [{"n": n} for n in range(5)])
    topic = f"{lab.prefix}stated"

    def is_limited(disorder: str | None) -> bool:
        declared = Topic.model_validate({"value": "string"} | ({"timestamp_disorder": disorder} if disorder else {}))
        frame = present(delta_spark, lab.servers, topic, KnownColumns({topic: declared}), pushdown=True)
        [[part]] = planned_offsets(frame.where("timestamp < timestamp'2001-01-01 00:00:00Z'"))
        return part.reach is not None

    assert not is_limited(None)
    assert is_limited("1 minute")
    delta_spark.conf.set(DISORDER_CONF, "1000")
    try:
        assert is_limited(None)
        assert not is_limited("36500000 days")
    finally:
        delta_spark.conf.unset(DISORDER_CONF)
