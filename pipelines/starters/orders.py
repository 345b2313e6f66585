"""Orders, cleaned and totalled by the hour: a pipeline to begin with."""

from __future__ import annotations

from typing import Final

from headwater.pipelines.starters.template import SampleRecords, Template

_PIPELINE: Final = """\
# Orders, checked and kept, and what each shop sells in an hour. Every field: docs/reference/pipeline_yaml.md.
#
#   headwater pipeline validate @FILE@      mistakes, without Spark or a broker
#   headwater pipeline test @FILE@          the tests at the end of this file
#   headwater pipeline plan @FILE@          what a run would do
#   headwater pipeline run @FILE@           process what there is; --continuous goes on for ever
pipeline: @NAME@

variables:                # give others with --set NAME=VALUE
  lake: lake              # folder of the Delta tables

topics:                   # created when they do not exist
  @NAME@_orders: {partitions: 3, value: json, schema: schemas/order.json}
  @NAME@_clean:  {partitions: 3, value: json}   # no schema: the columns are those of the stage that writes it
  @NAME@_sales:  {partitions: 3, value: json}

stages:
  - name: clean
    from: {topic: @NAME@_orders, as: orders}
    # `*` brings along where a row comes from (_partition, _offset, ...): then a refused row is kept as its record was.
    sql: SELECT * EXCEPT (shop), lower(trim(shop)) AS shop FROM orders
    expect:               # rows that do not meet it go to @NAME@_orders.dead_letters, with the reason
      - {name: paid, that: amount > 0}
    to:
      - {topic: @NAME@_clean, key: shop}
      - {delta: "${lake}/orders", partition_by: [to_date(at) AS day]}

  - name: sales
    # A group of rows is written when none can come any more: rows later than the delay are dropped.
    from: {topic: @NAME@_clean, as: orders, watermark: {column: at, delay: 10 minutes}}
    sql: |
      SELECT window(at, '1 hour').start AS hour, shop, count(*) AS orders, sum(amount) AS amount
      FROM orders
      GROUP BY window(at, '1 hour'), shop
    to:
      - {topic: @NAME@_sales, key: shop}

tests:
  - name: an_order_is_cleaned
    stage: clean
    given:
      orders:
        - {id: 1, shop: "  North ", amount: 12.5, at: "2026-01-01T10:00:00Z"}
        - {id: 2, shop: south, amount: 0, at: "2026-01-01T10:01:00Z"}
    expect:
      - {id: 1, shop: north, amount: 12.5}
    unmet: {paid: 1}
  - name: an_hour_is_written_once_it_is_over
    stage: sales
    given:
      orders:
        - {id: 1, shop: north, amount: 12.5, at: "2026-01-01T10:00:00Z"}
        - {id: 2, shop: north, amount: 7.5, at: "2026-01-01T10:59:00Z"}
        - {id: 3, shop: north, amount: 1.0, at: "2026-01-01T12:00:00Z"}
    expect:
      - {hour: "2026-01-01T10:00:00Z", shop: north, orders: 2, amount: 20.0}
"""

_SCHEMA: Final = """\
{
  "type": "object",
  "required": ["id", "shop"],
  "properties": {
    "id": {"type": "integer"},
    "shop": {"type": "string"},
    "amount": {"type": ["number", "null"]},
    "at": {"type": "string", "format": "date-time"}
  }
}
"""

_ORDERS: Final = """\
{"id": 1, "shop": "North", "amount": 12.5, "at": "2026-01-01T10:05:00Z"}
{"id": 2, "shop": "south", "amount": 7.0, "at": "2026-01-01T10:20:00Z"}
{"id": 3, "shop": "north", "amount": 30.0, "at": "2026-01-01T10:40:00Z"}
{"id": 4, "shop": "south", "amount": 0, "at": "2026-01-01T10:45:00Z"}
{"id": 5, "shop": "North", "amount": 4.5, "at": "2026-01-01T12:10:00Z"}
"""

ORDERS: Final = Template(
    summary="orders, cleaned and totalled by the hour",
    pipeline=_PIPELINE,
    files={"schemas/order.json": _SCHEMA},
    samples=(SampleRecords("@NAME@_orders", "sample/orders.jsonl", _ORDERS),),
    query="SELECT hour, shop, orders, amount FROM `@NAME@_sales` ORDER BY hour, shop",
)
