"""Change data capture: Debezium's change events of a table, merged into Delta tables with its history."""

from __future__ import annotations

from typing import Final

from headwater.pipelines.starters.template import SampleRecords, Template

_PIPELINE: Final = """\
# The table public.customers of a PostgreSQL database, captured by Debezium: its latest state, and every state that it
# had, as Delta tables. Every field: docs/reference/pipeline_yaml.md.
#
#   headwater pipeline validate @FILE@      mistakes, without Spark or a broker
#   headwater pipeline test @FILE@          the tests at the end of this file
#   headwater pipeline plan @FILE@          what a run would do
#   headwater pipeline run @FILE@           process what there is; --continuous goes on for ever
pipeline: @NAME@

variables:                # give others with --set NAME=VALUE
  lake: lake              # folder of the Delta tables

topics:
  # Debezium's connector writes a topic for each table, PREFIX.SCHEMA.TABLE, keyed by the primary key: the changes of a
  # row are in one partition, in order. The schema describes a row; `envelope` below finds it in the change events.
  @NAME@.public.customers: {partitions: 3, value: json, schema: schemas/customer.json}

stages:
  - name: customers
    # A row of `changes` is the row after the change (for a delete, before it), with _op (c: create, u: update,
    # d: delete, r: read by the first snapshot) and _sequence (time of the change in the database, in ms).
    from: {topic: @NAME@.public.customers, envelope: debezium, as: changes}
    # `*` brings these columns along, and the position of the change in the database's log, which orders the changes of
    # one millisecond. Debezium writes a timestamp column as microseconds since 1970.
    sql: |
      SELECT * EXCEPT (updated_at), timestamp_micros(updated_at) AS updated_at
      FROM changes
    expect:               # rows that do not meet it go to @NAME@.public.customers.dead_letters, with the reason
      # Deletes pass: with REPLICA IDENTITY DEFAULT, PostgreSQL logs only the key of a deleted row.
      - {name: has_an_email, that: "_op = 'd' OR email LIKE '%@%'"}
    to:
      # The table as the database has it. A change that is older than the last one of its key is skipped, so a topic
      # that is read again, or a snapshot that is taken again, leaves the table right.
      - delta: "${lake}/customers"
        merge: {keys: id, sequence: _sequence, delete_when: _op = 'd'}
      # Every state of every row (a slowly changing dimension of type 2), with _valid_from, _valid_to and _current.
      - delta: "${lake}/customers_history"
        merge: {keys: id, sequence: _sequence, delete_when: _op = 'd', scd: 2}

tests:
  # A row with _value is a record of the topic: here a change event, as Debezium writes it.
  - name: a_change_event_becomes_the_row_after_the_change
    stage: customers
    given:
      changes:
        - _value:
            op: c
            after: {id: 1, email: ada@example.com, city: Bath, updated_at: 1767225600000000}
            source: {ts_ms: 1767225600010, lsn: 100}
        - _value:
            op: u
            before: {id: 1, email: ada@example.com, city: Bath, updated_at: 1767225600000000}
            after: {id: 1, email: ada@example.com, city: London, updated_at: 1767229200000000}
            source: {ts_ms: 1767229200010, lsn: 200}
        - _value:
            op: d
            before: {id: 1}
            source: {ts_ms: 1767232800010, lsn: 300}
        - {_key: '{"id": 1}', _value: null}       # the tombstone after a delete has no row
    expect:
      - {id: 1, city: Bath, updated_at: "2026-01-01T00:00:00Z", _op: c, _sequence: 1767225600010}
      - {id: 1, city: London, updated_at: "2026-01-01T01:00:00Z", _op: u, _sequence: 1767229200010}
      - {id: 1, city: null, _op: d, _sequence: 1767232800010}
    dead_letters: 0
  # Without _value, a row has the columns of `changes`.
  - name: a_customer_without_an_email_is_a_dead_letter
    stage: customers
    given:
      changes:
        - {id: 2, email: bob@example.com, _op: c, _sequence: 10}
        - {id: 3, email: unknown, _op: c, _sequence: 11}
        - {id: 4, email: null, _op: u, _sequence: 12}
        - {id: 4, email: null, _op: d, _sequence: 13}
    expect:
      - {id: 2, _op: c}
      - {id: 4, _op: d}
    unmet: {has_an_email: 2}
"""

_CUSTOMER: Final = """\
{
  "type": "object",
  "required": ["id"],
  "properties": {
    "id": {"type": "integer"},
    "email": {"type": ["string", "null"]},
    "city": {"type": ["string", "null"]},
    "updated_at": {"type": ["integer", "null"], "format": "int64"}
  }
}
"""

_CHANGES: Final = (
    '{"id": 1}\t{"op": "r", "before": null, "after": {"id": 1, "email": "ada@example.com", "city": "Bath", '
    '"updated_at": 1767225600000000}, "source": {"ts_ms": 1767225600010, "lsn": 100}}\n'
    '{"id": 2}\t{"op": "c", "before": null, "after": {"id": 2, "email": "bob@example.com", "city": "Leeds", '
    '"updated_at": 1767226000000000}, "source": {"ts_ms": 1767226000010, "lsn": 200}}\n'
    '{"id": 3}\t{"op": "c", "before": null, "after": {"id": 3, "email": "unknown", "city": null, '
    '"updated_at": 1767227000000000}, "source": {"ts_ms": 1767227000010, "lsn": 300}}\n'
    '{"id": 1}\t{"op": "u", "before": {"id": 1, "email": "ada@example.com", "city": "Bath", '
    '"updated_at": 1767225600000000}, "after": {"id": 1, "email": "ada@example.com", "city": "London", '
    '"updated_at": 1767229200000000}, "source": {"ts_ms": 1767229200010, "lsn": 400}}\n'
    '{"id": 2}\t{"op": "d", "before": {"id": 2}, "after": null, "source": {"ts_ms": 1767232800010, "lsn": 500}}\n'
    '{"id": 2}\t\n'
)

CDC: Final = Template(
    summary="Debezium's change events, merged into Delta tables with deletes and a history",
    pipeline=_PIPELINE,
    files={"schemas/customer.json": _CUSTOMER},
    samples=(SampleRecords("@NAME@.public.customers", "sample/customers.tsv", _CHANGES, is_keyed=True),),
    query="SELECT id, email, city, _valid_from, _valid_to, _current FROM customers_history ORDER BY id, _valid_from",
)
