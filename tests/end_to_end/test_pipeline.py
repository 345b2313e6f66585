"""A small pipeline with every kind of part, run, stopped in the middle, run again, and made to repeat a batch."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ORDERS = 600
UNPAID = {7 * n for n in range(1, 31)}  # no amount: dead letters
FREE = {11 * n for n in range(1, 21)} - UNPAID  # amount 0: dropped
GARBAGE = [(b"g", b"{no json"), (None, b'{"id": "text", "shop": "s1"}'), (b"g", None), (b"g", b'{"id": 1}')]

SCHEMA = {
    "type": "object",
    "required": ["id", "shop"],
    "properties": {
        "id": {"type": "integer"},
        "shop": {"type": "string"},
        "amount": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
    },
}

PIPELINE = """\
pipeline: orders
variables: {{lake: lake}}
topics:
  "{prefix}.orders": {{partitions: 3, value: json, schema: order.json}}
tables:
  shops: {{format: csv, path: shops.csv}}
stages:
  - name: clean
    from: {{topic: "{prefix}.orders", max_offsets_per_trigger: 150}}
    expect:
      - {{name: paid, that: amount IS NOT NULL}}
      - {{name: sold, that: amount > 0, otherwise: drop}}
    sql: SELECT o.*, city FROM `{prefix}.orders` AS o LEFT JOIN shops ON o.shop = shops.shop
    to:
      - {{topic: "{prefix}.clean", key: shop}}
      - {{delta: "${{lake}}/orders", partition_by: [shop, to_date(at) AS day]}}
  - name: doubled
    from: {{topic: "{prefix}.clean"}}
    python: {{file: pipelines/doubled.py, function: doubled}}
    to: [{{topic: "{prefix}.doubled", key: id}}]
  - name: totals
    from: {{topic: "{prefix}.clean", watermark: {{column: at, delay: 1 minute}}}}
    sql: |
      SELECT window(at, '1 hour') AS hour, shop, first(shops.city) AS city, count(*) AS orders, sum(amount) AS amount
      FROM `{prefix}.clean` AS o JOIN shops USING (shop)
      GROUP BY 1, 2
    to: [{{topic: "{prefix}.totals", key: shop}}]
"""

# In a folder called `pipelines`: it must not shadow Headwater's own package.
FUNCTION = """\
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType

FACTOR = 2


def doubled(rows: DataFrame) -> DataFrame:
    times = f.udf(lambda amount: amount * FACTOR, DoubleType())
    return rows.select("id", times("amount").alias("amount"))
"""


def order(number: int) -> tuple[bytes | None, bytes]:
    """An order a minute, of five shops; every tenth has no key."""
    value: dict[str, Any] = {"id": number, "shop": f"s{number % 5}", "amount": float(number)}
    value["at"] = f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z"
    if number in UNPAID:
        del value["amount"]
    elif number in FREE:
        value["amount"] = 0
    return (None if number % 10 == 0 else value["shop"].encode()), json.dumps(value).encode()


@pytest.fixture
def folder(tmp_path: Path, topics: Any) -> Path:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text("raise ImportError('this is not the package you want')\n")
    (tmp_path / "pipelines" / "doubled.py").write_text(FUNCTION)
    (tmp_path / "order.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "shops.csv").write_text("shop,city\n" + "".join(f"s{n},c{n}\n" for n in range(5)))
    (tmp_path / "orders.yaml").write_text(PIPELINE.format(prefix=topics.prefix))
    return tmp_path


def run_arguments(folder: Path, topics: Any) -> list[str]:
    return ["pipeline", "run", str(folder / "orders.yaml"), "-b", topics.servers, "--state", str(folder / "state")]


def sources(rows: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    return Counter((row["_partition"], row["_offset"]) for row in rows)


def test_a_pipeline_loses_and_doubles_nothing_when_stopped_and_started_again(
    headwater: Any, topics: Any, folder: Path, read_delta: Callable[[Path], list[dict[str, Any]]]
) -> None:
    orders, clean = f"{topics.prefix}.orders", f"{topics.prefix}.clean"
    arguments = run_arguments(folder, topics)
    created = headwater("topic", "create", orders, "--partitions", "3", "-b", topics.servers)
    assert created.returncode == 0, created.stderr
    topics.produce(orders, [order(number) for number in range(1, ORDERS + 1)] + GARBAGE)

    # Stopped after a batch: the batch is whole, the others have not begun, nor have the other stages.
    first = headwater(*arguments, stop_at="clean: batch 0")
    assert first.returncode == 0, first.stderr
    assert "stopped; the next run continues from here" in first.stderr
    assert not re.search("^(doubled|totals): batch", first.stderr, re.MULTILINE)
    written = read_delta(folder / "lake" / "orders")
    assert 0 < len(written) < ORDERS - len(UNPAID) - len(FREE)

    # As if a crash had cut off the last batch after its writes: it runs again, and nothing has it twice.
    commits = folder / "state" / "orders" / "clean" / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)

    # The next run goes on from there, and does the other stages. Garbage in a topic between stages is found, too.
    topics.produce(clean, [(b"s1", b"{no json")])
    second = headwater(*arguments)
    assert second.returncode == 0, second.stderr
    assert "Traceback" not in second.stderr

    good = set(range(1, ORDERS + 1)) - UNPAID - FREE
    source = {(message.partition, message.offset): message for message in topics.read(orders)}
    rows = read_delta(folder / "lake" / "orders")
    assert sorted(row["id"] for row in rows) == sorted(good)
    assert set(sources(rows).values()) == {1}
    assert sources(written) <= sources(rows)
    for row in rows:
        assert json.loads(source[row["_partition"], row["_offset"]].value)["id"] == row["id"]

    letters = topics.read(f"{orders}.dead_letters")
    assert len(letters) == len(UNPAID) + len(GARBAGE)
    for letter in letters:
        origin = source[int(letter.headers["headwater.partition"]), int(letter.headers["headwater.offset"])]
        assert (letter.key, letter.value) == (origin.key, origin.value)
        assert letter.headers["headwater.topic"] == orders
        assert letter.headers["headwater.stage"] == "clean"
    reasons = Counter(letter.headers["headwater.error"] for letter in letters)
    assert reasons == {
        "expectation paid is not met: amount IS NOT NULL": len(UNPAID),
        "the value is not JSON": 1,
        "the value does not fit the schema: the field id is no BIGINT": 1,
        "the value is null": 1,
        "the required field shop is missing or null": 1,
    }

    cleaned = [message for message in topics.read(clean) if message.value != b"{no json"]
    values = [json.loads(message.value) for message in cleaned]
    assert sorted(value["id"] for value in values) == sorted(good)
    assert all(message.key.decode() == value["shop"] for message, value in zip(cleaned, values, strict=True))
    assert not any(name.startswith("_") for value in values for name in value)
    assert all(value["city"] == "c" + value["shop"][1:] for value in values)
    homes = {(message.key, message.partition) for message in cleaned}
    assert len(homes) == 5, "records of one key are in one partition"

    doubled = {message.key: json.loads(message.value) for message in topics.read(f"{topics.prefix}.doubled")}
    assert {int(key): value["amount"] for key, value in doubled.items()} == {n: 2.0 * n for n in good}

    # The latest order is at 10:00, the watermark a minute behind: the window from 9:00 to 10:00 stays open.
    totals = [json.loads(message.value) for message in topics.read(f"{topics.prefix}.totals")]
    hours = {(value["hour"]["start"], value["shop"]): value for value in totals}
    assert len(hours) == len(totals) == 45
    expected = Counter((number // 60, f"s{number % 5}") for number in good if number < 540)
    assert {key: value["orders"] for key, value in hours.items()} == {
        (f"2026-01-01T{hour:02}:00:00.000Z", shop): orders for (hour, shop), orders in expected.items()
    }
    assert all(value["city"] == "c" + value["shop"][1:] for value in totals)
    # Both stages that read the topic refuse its garbage.
    refused = [letter.headers["headwater.stage"] for letter in topics.read(f"{clean}.dead_letters")]
    assert sorted(refused) == ["doubled", "totals"]


def test_sql_shows_topics_with_typed_columns_tables_and_dead_letters(headwater: Any, topics: Any, folder: Path) -> None:
    orders = f"{topics.prefix}.orders"
    topics.produce(orders, [])
    created = headwater("topic", "create", orders, "--partitions", "3", "-b", topics.servers)
    assert created.returncode == 0, created.stderr
    topics.produce(orders, [order(number) for number in range(1, 101)])
    query = f"SELECT shop, count(*) AS orders, max(id) AS latest FROM `{orders}` GROUP BY shop ORDER BY shop;"
    # The second statement is wrong, and the one before it is shown all the same.
    pipeline = ["--pipeline", str(folder / "orders.yaml"), "-b", topics.servers]
    typed = headwater("sql", "-e", f"{query}\nSELECT shp FROM `{orders}`", *pipeline, "-o", "json")
    assert json.loads(typed.stdout) == [
        {"shop": f"s{n}", "orders": 20, "latest": 95 + n if n else 100} for n in range(5)
    ]
    assert typed.returncode == 2
    assert "line 2, column 8: there is no column 'shp'; did you mean 'shop'?" in typed.stderr
    assert typed.stderr.count("\n") == 1
