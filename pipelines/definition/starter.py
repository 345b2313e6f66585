"""The pipeline that `headwater pipeline init` writes: small, complete, and with a comment at each part. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["pipeline_name", "starter_files"]

PIPELINE_FILE: Final = "pipeline.yaml"

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


def starter_files(name: str) -> dict[str, str]:
    """The files by their paths; `name` is the pipeline's."""
    pipeline = _PIPELINE.replace("@NAME@", name).replace("@FILE@", PIPELINE_FILE)
    return {PIPELINE_FILE: pipeline, "schemas/order.json": _SCHEMA, ".gitignore": ".headwater/\nlake/\n"}


def pipeline_name(folder: str) -> str:
    """A name that a pipeline may have, from that of its folder.

    >>> pipeline_name("My shop.2"), pipeline_name("2nd"), pipeline_name("")
    ('my_shop_2', 'p_2nd', 'pipeline')
    """
    name = re.sub(r"[^a-z0-9_-]+", "_", folder.lower()).strip("_-")
    if not name:
        return "pipeline"
    return name if name[0].isalpha() else f"p_{name}"
