"""The pipelines of conf/pipelines, run with a few records of their kind."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headwater.cli.demo.files import conf_file

pytestmark = pytest.mark.slow


@pytest.fixture
def example(lab: Any) -> Iterator[Any]:
    """Runs an example as it stands; its topics are gone afterwards."""
    shutil.copytree(Path(conf_file("pipelines", "schemas", "flight.json")).parent, lab.folder / "schemas")
    before = {topic.name for topic in lab.admin.list_topics()}

    def run(name: str, **more: str) -> None:
        text = Path(conf_file("pipelines", f"{name}.yaml")).read_text()
        places = {"lake": str(lab.folder / "lake"), "data": str(lab.folder), **more}
        lab.run(text, variables={name: path for name, path in places.items() if f"${{{name}}}" in text})

    yield run
    for topic in lab.admin.list_topics():
        if topic.name not in before and not topic.name.startswith("__"):
            lab.admin.delete_topics([topic.name])


def test_metrics_become_minutes_and_alerts(lab: Any, example: Any) -> None:
    lab.write("thresholds.csv", "name,most\ncpu,90\n")
    at = "2026-01-01T00:{:02}:00Z"
    lab.produce("metrics", [
        {"host": "a", "name": "cpu", "value": 10.0, "at": at.format(0)},
        {"host": "a", "name": "cpu", "value": 95.0, "at": at.format(0)},
        {"host": "a", "name": "disk", "value": 95.0, "at": at.format(0)},
        {"host": "a", "name": "cpu", "value": 1.0, "at": at.format(30)},
    ])  # fmt: skip
    example("metrics")
    assert lab.delta("lake/minutes", "name", "samples", "average", "highest") == [
        ("cpu", 2, 52.5, 95.0), ("disk", 1, 95.0, 95.0)
    ]  # fmt: skip
    (alert,) = lab.read("alerts")
    assert (alert.key, alert.headers, alert.json["highest"]) == (b"a", {"metric": b"cpu"}, 95.0)
    minutes = {seen.key: seen.timestamp_ms for seen in lab.read("minutes")}
    assert minutes == {b"a/cpu": 1_767_225_600_000, b"a/disk": 1_767_225_600_000}


def test_changes_of_a_database_become_tables_topics_and_a_history(lab: Any, example: Any) -> None:
    def change(op: str, before: Any, after: Any, at: int) -> Any:
        return {"before": before, "after": after, "op": op, "source": {"ts_ms": at}}

    ada, bob = {"id": 1, "name": "Ada", "city": "Bath"}, {"id": 2, "name": "Bob"}
    lab.produce("shop.customers", [
        ("1", change("r", None, ada, 10)), ("2", change("c", None, bob, 11)),
        ("1", change("u", ada, {**ada, "city": "London"}, 20)), ("2", change("d", bob, None, 21)), ("2", None),
    ], partitions=3)  # fmt: skip
    order = {"id": 7, "customer_id": 1, "amount": 9.5}
    lab.produce("shop.orders", [
        ("7", change("c", None, order, 30)), ("8", change("c", None, {**order, "id": 8, "customer_id": 2}, 31)),
    ], partitions=3)  # fmt: skip
    example("cdc")
    assert lab.delta("lake/customers", "id", "city") == [(1, "London")]
    assert lab.delta("lake/customers_history", "id", "city", "_valid_from", "_valid_to", "_current") == [
        (1, "Bath", 10, 20, False), (1, "London", 20, None, True), (2, None, 11, 21, False)
    ]  # fmt: skip
    assert lab.delta("lake/orders", "id", "customer_name", "city") == [(7, "Ada", "London")]
    (letter,) = lab.read("shop.orders.dead_letters")
    assert letter.headers["headwater.expectation"] == b"known_customer"


def test_activity_becomes_sessions_and_conversions(lab: Any, example: Any, registry: Any, schemas: Any) -> None:
    def event(kind: str, number: str, user: str, at: str, **fields: Any) -> tuple[str, bytes]:
        schema = (lab.folder / "schemas" / f"{kind}.avsc").read_text()
        conf = {"subject.name.strategy": record_subject_name_strategy}
        moment = dt.datetime.fromisoformat(f"2026-01-01T{at}+00:00")
        context = SerializationContext("activity", MessageField.VALUE)
        record = {"id": number, "user": user, "at": moment, **fields}
        return user, AvroSerializer(schemas, schema, conf=conf)(record, context)

    lab.produce("activity", [
        event("page_view", "v1", "ann", "10:00:00", page="/"), event("page_view", "v1", "ann", "10:00:00", page="/"),
        event("search", "s1", "ann", "10:05:00", words="shoes"),
        event("page_view", "v2", "ann", "10:20:00", page="/shoes"),
        event("purchase", "p1", "ann", "10:30:00", amount=80.0),
        event("page_view", "v3", "bob", "23:00:00", page="/"),
    ], partitions=6)  # fmt: skip
    example("activity", registry=registry.url)
    assert len(lab.delta("lake/activity", "_event")) == 6
    (session,) = lab.values("sessions")
    assert (session["user"], session["pages"], session["ended"]) == ("ann", 2, "2026-01-01T10:50:00.000Z")
    pages = sorted(value["page"] for value in lab.values("conversions"))
    assert pages == ["/", "/", "/shoes"]
