"""What records become before a stage sees them: change events, several event types, tables of latest values."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CUSTOMER = json.dumps(
    {
        "type": "object",
        "required": ["id", "name"],
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "city": {"type": ["string", "null"]}},
    }
)


def change(op: str, before: Any, after: Any, at: int, *, wrapped: bool = False) -> Any:
    """A Debezium envelope."""
    payload = {"before": before, "after": after, "op": op, "source": {"ts_ms": at, "table": "c"}, "ts_ms": at + 5}
    return {"schema": {"type": "struct"}, "payload": payload} if wrapped else payload


def customer(number: int, name: str, city: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name, "city": city}


def test_change_events_become_rows_and_a_table_that_mirrors_the_source(lab: Any) -> None:
    lab.write("customer.json", CUSTOMER)
    ann, bob, eve = customer(1, "ann"), customer(2, "bob"), customer(3, "eve")
    lab.produce("@customers", [
        ('{"id": 1}', change("r", None, ann, 10)),
        ('{"id": 2}', change("c", None, bob, 20, wrapped=True)),
        ('{"payload": {"id": 3}, "schema": {}}', change("c", None, eve, 30)),
        ('{"id": 1}', change("u", ann, customer(1, "ann", "Ulm"), 40)),
        ('{"id": 2}', change("d", bob, None, 50)), ('{"id": 2}', None),
        # The source table has no full replica identity: only the key tells which row it was.
        ('{"payload": {"id": 3}, "schema": {}}', change("d", None, None, 60, wrapped=True)),
        ('{"id": 4}', {"id": 4, "name": "no envelope"}),
        ('{"id": 4}', change("t", None, None, 70)),
        ('{"id": 4}', change("c", None, {"id": 4}, 80)),
        ('{"id": 4}', "{no json"),
    ])  # fmt: skip
    text = """\
pipeline: cdc
topics: {"@customers": {value: json, schema: customer.json}}
stages:
  - name: mirror
    from: {topic: "@customers", envelope: debezium, as: changes}
    to:
      - {delta: lake/history}
      - {delta: lake/customers, merge: {keys: id, sequence: _sequence, delete_when: _op = 'd'}}
      - {topic: "@mirror", key: id, tombstone_when: _op = 'd'}
"""
    result = lab.run(text)
    assert lab.delta("lake/customers", "id", "name", "city", "_sequence") == [(1, "ann", "Ulm", 40)]
    assert "_op" not in lab.spark.read.format("delta").load(str(lab.folder / "lake/customers")).columns
    assert lab.delta("lake/history", "_sequence", "_op", "id") == [
        (10, "r", 1), (20, "c", 2), (30, "c", 3), (40, "u", 1), (50, "d", 2), (60, "d", 3)
    ]  # fmt: skip
    assert result.totals["mirror"].undecodable == 4
    reasons = {letter.headers["headwater.error"] for letter in lab.read("@customers.dead_letters")}
    assert reasons == {
        b"the value is no change event: it has no op",
        b"the change event's op is 't': only c, u, d and r have a row",
        b"the required field name is missing or null",
        b"the value is not JSON",
    }
    mirrored = {seen.key: seen.json for seen in lab.read("@mirror")}
    assert mirrored[b"1"] == {"id": 1, "name": "ann", "city": "Ulm", "_op": "u", "_sequence": 40}
    assert mirrored[b"2"] is None
    assert mirrored[b"3"] is None


def test_an_envelopes_own_schema_will_do_as_well(lab: Any) -> None:
    row = json.loads(CUSTOMER)
    properties = {"before": row, "after": row, "op": {"type": "string"}, "ts_ms": {"type": "integer"}}
    lab.write("envelope.json", json.dumps({"type": "object", "properties": properties}))
    lab.produce("@customers", [('{"id": 1}', change("c", None, customer(1, "ann"), 10))])
    lab.run("""\
pipeline: cdc2
topics: {"@customers": {value: json, schema: envelope.json}}
stages: [{name: s, from: {topic: "@customers", envelope: debezium}, to: {delta: lake/c}}]
""")
    assert lab.delta("lake/c", "id", "name", "_op", "_sequence") == [(1, "ann", "c", 10)]


EVENTS = """\
topics:
  "@shop":
    value: json
    events: {sold: {schema: sold.json}, returned: {schema: returned.json}}
    event_type: PLACE
"""
SOLD = json.dumps(
    {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "price": {"type": "number"}}}
)
RETURNED = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "why": {"type": "string"}}})


@pytest.mark.parametrize("place", ["{header: type}", "{field: kind}"])
def test_several_event_types_in_one_topic_are_told_apart(lab: Any, place: str) -> None:
    lab.write("sold.json", SOLD)
    lab.write("returned.json", RETURNED)

    def event(kind: str | None, **fields: Any) -> tuple[None, Any, Any]:
        if place == "{header: type}":
            return None, fields, [("other", b"x"), *([("type", kind.encode())] if kind else [])]
        return None, {**fields, **({"kind": kind} if kind else {})}, None

    lab.produce("@shop", [
        event("sold", id=1, price=2.5), event("returned", id=1, why="broken"), event("sold", price=1.0),
        event("lost", id=2), event(None, id=3), event("sold", id="x"), event("sold", id=4),
    ])  # fmt: skip
    lab.run(
        EVENTS.replace("PLACE", place)
        + """\
pipeline: shop
stages:
  - name: all
    from: {topic: "@shop", as: e}
    sql: SELECT _event, coalesce(sold.id, returned.id) AS id, sold.price, returned.why FROM e
    to: {delta: lake/all}
  - {name: sold, from: {topic: "@shop", event: sold, as: sold}, to: {delta: lake/sold}}
"""
    )
    assert lab.delta("lake/all", "_event", "id", "price", "why") == [
        ("returned", 1, None, "broken"), ("sold", 1, 2.5, None), ("sold", 4, None, None)
    ]  # fmt: skip
    assert lab.delta("lake/sold", "id", "price") == [(1, 2.5), (4, None)]
    letters = lab.read("@shop.dead_letters")
    by_stage: dict[str, set[str]] = {"all": set(), "sold": set()}
    for letter in letters:
        by_stage[(letter.headers["headwater.stage"] or b"").decode()].add(
            (letter.headers["headwater.error"] or b"").decode()
        )
    assert by_stage["all"] == {
        "the required field sold.id is missing or null",
        "the event 'lost' is not declared",
        "the record does not say which event it is",
        "the value does not fit the schema of the event sold: the field id is no BIGINT",
    }
    assert by_stage["sold"] == {
        "the required field id is missing or null",
        "the value does not fit the schema: the field id is no BIGINT",
    }


def test_the_latest_value_of_each_key_is_a_table_read_again_for_each_batch(lab: Any) -> None:
    lab.write("customer.json", CUSTOMER)
    lab.produce("@customers", [
        ("1", customer(1, "old")), ("2", customer(2, "bob")), ("1", customer(1, "ann")), ("2", None),
        (None, customer(9, "no key")), ("3", "{no json", [("by", b"shop")]),
    ], partitions=3)  # fmt: skip
    lab.produce("@orders", ["1", "2", "3"])
    text = """\
pipeline: join
topics:
  "@customers": {value: json, schema: customer.json}
  "@orders": {value: string}
tables:
  customers: {topic: "@customers"}
stages:
  - name: s
    from: {topic: "@orders", as: o}
    sql: SELECT o.value AS id, name FROM o LEFT JOIN customers c ON c.id = cast(o.value AS BIGINT)
    to: {topic: "@joined", key: id}
"""
    first = lab.run(text)
    assert sorted((v["id"], v.get("name")) for v in lab.values("@joined")) == [("1", "ann"), ("2", None), ("3", None)]
    assert (first.totals["s"].undecodable, first.totals["s"].dead_letters) == (1, 1)

    def is_done() -> bool:
        found = {(v["id"], v.get("name")) for v in lab.values("@joined")}
        if ("4", "dan") in found:
            return True
        if not state["asked"]:
            state["asked"] = True
            lab.produce("@customers", [("4", customer(4, "dan")), ("5", '{"id": "x"}'), ("5", customer(5, "eve"))])
            lab.produce("@orders", ["4"])
        return False

    state = {"asked": False}
    second = lab.run_until(text, is_done)
    assert ("4", "dan") in {(v["id"], v.get("name")) for v in lab.values("@joined")}

    # The table is read anew by each batch of each run: a record that it leaves out is a dead letter once.
    assert second.totals["s"].undecodable == 1
    lab.repeat_last_batch("join", "s")
    lab.produce("@orders", ["5"])
    assert lab.run(text).totals["s"].undecodable == 0
    letters = {letter.key: letter for letter in lab.read("@customers.dead_letters")}
    assert len(letters) == len(lab.read("@customers.dead_letters")) == 2
    assert letters[b"3"].value == b"{no json"
    assert letters[b"3"].headers["by"] == b"shop"
    assert letters[b"3"].headers["headwater.stage"] == b"s"
    assert letters[b"5"].headers["headwater.error"] == b"the value does not fit the schema: the field id is no BIGINT"


def test_tables_of_a_stage_with_state_are_read_again_for_each_batch(lab: Any) -> None:
    lab.write("customer.json", CUSTOMER)
    lab.produce("@customers", [("1", customer(1, "ann"))])
    lab.produce("@orders", [("1", "1")], timestamp=1_767_225_600_000)
    text = """\
pipeline: join2
topics:
  "@customers": {value: json, schema: customer.json}
  "@orders": {value: string}
tables:
  customers: {topic: "@customers"}
stages:
  - name: s
    from: {topic: "@orders", as: o, watermark: {column: _timestamp, delay: 1 hour}}
    steps:
      - deduplicate: {by: value}
      - sql: SELECT value AS id, name FROM o LEFT JOIN customers c ON c.id = cast(value AS BIGINT)
    to: {topic: "@joined", key: id}
"""
    state = {"asked": False}

    def is_done() -> bool:
        topics = {topic.name for topic in lab.admin.list_topics()}
        found = {(v["id"], v.get("name")) for v in lab.values("@joined")} if f"{lab.prefix}joined" in topics else set()
        if ("1", "ann") in found and not state["asked"]:
            state["asked"] = True
            lab.produce("@customers", [("2", customer(2, "bob"))])
            lab.produce("@orders", [("2", "2"), ("1", "1")], timestamp=1_767_225_600_000)
        return ("2", "bob") in found

    lab.run_until(text, is_done)
    assert sorted((v["id"], v.get("name")) for v in lab.values("@joined")) == [("1", "ann"), ("2", "bob")]


def test_a_table_that_another_stage_writes_is_there_when_it_is_used(lab: Any) -> None:
    lab.produce("@names", [("1", "ann"), ("2", "bob")])
    lab.produce("@orders", ["1", "2"])
    lab.run("""\
pipeline: tables
topics: {"@names": {value: string}, "@orders": {value: string}}
tables:
  names: {delta: lake/names, refresh: every_batch}
  upper: {topic: "@upper"}
stages:
  - name: use
    from: {topic: "@orders", as: o}
    sql: SELECT n.id, n.value AS name, u.upper FROM o JOIN names n ON n.id = o.value JOIN upper u ON u.id = o.value
    to: {topic: "@used", key: id}
  - name: make
    from: {topic: "@names", as: n}
    sql: SELECT key AS id, value, upper(value) AS upper, _offset AS version FROM n
    to: [{delta: lake/names, merge: {keys: id, sequence: version}}, {topic: "@upper", key: id}]
""")
    assert sorted((v["id"], v["name"], v["upper"]) for v in lab.values("@used")) == [
        ("1", "ann", "ANN"), ("2", "bob", "BOB")
    ]  # fmt: skip
