"""The reference page names every option, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from headwater.pipelines.datasource import kafka_properties
from headwater.pipelines.datasource.options import READ_OPTIONS, WRITE_OPTIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark_source.md").read_text()


def named(text: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", text))


def first_cells(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return named("\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `")))


def test_options_of_spark_have_a_row_each() -> None:
    own = [{name for name in names if not name.startswith("kafka.")} for names in (READ_OPTIONS, WRITE_OPTIONS)]
    assert first_cells("Options for reading") == own[0]
    assert first_cells("Options for writing") == own[1]


def test_properties_of_kafka_stand_where_they_belong() -> None:
    used = {*kafka_properties.CONSUMER_PROPERTIES, *kafka_properties.PRODUCER_PROPERTIES}
    assert first_cells("Options of the Kafka client: `kafka.*`") == used
    without_effect = PAGE.split("<!-- without effect -->", 1)[1].split("\n\n", 1)[0]
    assert named(without_effect) == {
        *kafka_properties.CONSUMER_WITHOUT_EFFECT,
        *kafka_properties.PRODUCER_WITHOUT_EFFECT,
    }
    refused = PAGE.split("<!-- refused -->", 1)[1].split("\n\n", 1)[0]
    assert named(refused) - {"startingOffsets", "partition"} == {
        *kafka_properties.CONSUMER_REFUSED,
        *kafka_properties.PRODUCER_REFUSED,
    }
