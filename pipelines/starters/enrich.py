"""Enrichment: a stream joined with a table that is a topic and one that is a file, and republished by another key."""

from __future__ import annotations

from typing import Final

from headwater.pipelines.starters.template import SampleRecords, Template

_PIPELINE: Final = """\
# Orders, joined with their customer (a compacted topic) and the customer's region (a file), republished by region.
# Every field: docs/reference/pipeline_yaml.md.
#
#   headwater pipeline validate @FILE@      mistakes, without Spark or a broker
#   headwater pipeline test @FILE@          the tests at the end of this file
#   headwater pipeline plan @FILE@          what a run would do
#   headwater pipeline run @FILE@           process what there is; --continuous goes on for ever
pipeline: @NAME@

topics:                   # created when they do not exist
  @NAME@_orders:    {partitions: 3, value: json, schema: schemas/order.json}
  # Compaction keeps the last record of each key: the topic is a table of customers by their ids.
  @NAME@_customers: {partitions: 3, value: json, schema: schemas/customer.json, configs: {cleanup.policy: compact}}
  @NAME@_orders_by_region: {partitions: 3, value: json}   # no schema: the columns are those of the stage that writes it

tables:                   # each is a view in SQL
  # The latest value of each key, read again for every micro-batch: an order sees its customer as it is then.
  customers: {topic: @NAME@_customers}
  # Files are read once a run, or again after an interval.
  countries: {format: csv, path: countries.csv, schema: "code STRING, region STRING", refresh: 1 hour}

stages:
  - name: by_region
    from: {topic: @NAME@_orders, as: orders}
    # LEFT JOIN, so that an order without its customer gets to the expectation; an inner join would drop it in silence.
    sql: |
      SELECT orders.*, customers.name AS customer_name, customers.country, countries.region
      FROM orders
        LEFT JOIN customers ON customers.customer_id = orders.customer_id
        LEFT JOIN countries ON countries.code = customers.country
    expect:
      # An order that comes before its customer is a dead letter. Once the customer is there,
      # `headwater dead-letters replay @NAME@_orders.dead_letters` writes it back to @NAME@_orders.
      - {name: known_customer, that: customer_name IS NOT NULL}
    to:
      # The new key decides the partition: a consumer of one partition sees all orders of its regions, in order.
      - {topic: @NAME@_orders_by_region, key: "coalesce(region, 'unknown')"}

tests:
  - name: an_order_has_its_customer_and_region
    stage: by_region
    given:
      orders:
        - {order_id: 1, customer_id: 7, amount: 9.5, ordered_at: "2026-01-01T10:00:00Z"}
        - {order_id: 2, customer_id: 8, amount: 3.0, ordered_at: "2026-01-01T10:01:00Z"}
      customers:          # the rows of a table that is a topic must be given; `countries` is read from its file
        - {customer_id: 7, name: Ada, country: GB}
        - {customer_id: 8, name: Bob, country: ZZ}
    expect:
      - {order_id: 1, amount: 9.5, customer_name: Ada, country: GB, region: Europe}
      - {order_id: 2, customer_name: Bob, region: null}
  - name: an_order_of_an_unknown_customer_is_a_dead_letter
    stage: by_region
    given:
      orders:
        - {order_id: 3, customer_id: 9, amount: 1.0, ordered_at: "2026-01-01T10:00:00Z"}
      customers: []
    expect: []
    unmet: {known_customer: 1}
"""

_ORDER: Final = """\
{
  "type": "object",
  "required": ["order_id", "customer_id"],
  "properties": {
    "order_id": {"type": "integer"},
    "customer_id": {"type": "integer"},
    "amount": {"type": ["number", "null"]},
    "ordered_at": {"type": "string", "format": "date-time"}
  }
}
"""

_CUSTOMER: Final = """\
{
  "type": "object",
  "required": ["customer_id", "name"],
  "properties": {
    "customer_id": {"type": "integer"},
    "name": {"type": "string"},
    "country": {"type": ["string", "null"]}
  }
}
"""

_COUNTRIES: Final = """\
code,region
DE,Europe
GB,Europe
JP,Asia
US,North America
"""

_CUSTOMERS: Final = (
    '7\t{"customer_id": 7, "name": "Ada", "country": "US"}\n'
    '8\t{"customer_id": 8, "name": "Bob", "country": "JP"}\n'
    '7\t{"customer_id": 7, "name": "Ada", "country": "GB"}\n'
)

_ORDERS: Final = """\
{"order_id": 1, "customer_id": 7, "amount": 9.5, "ordered_at": "2026-01-01T10:00:00Z"}
{"order_id": 2, "customer_id": 8, "amount": 3.0, "ordered_at": "2026-01-01T10:01:00Z"}
{"order_id": 3, "customer_id": 7, "amount": 12.0, "ordered_at": "2026-01-01T10:02:00Z"}
{"order_id": 4, "customer_id": 9, "amount": 1.0, "ordered_at": "2026-01-01T10:03:00Z"}
"""

ENRICH: Final = Template(
    summary="orders joined with the latest values of a topic and with a file, republished by another key",
    pipeline=_PIPELINE,
    files={
        "schemas/order.json": _ORDER,
        "schemas/customer.json": _CUSTOMER,
        "countries.csv": _COUNTRIES,
    },
    samples=(
        SampleRecords(
            "@NAME@_customers",
            "sample/customers.tsv",
            _CUSTOMERS,
            is_keyed=True,
            configs=("cleanup.policy=compact",),
        ),
        SampleRecords("@NAME@_orders", "sample/orders.jsonl", _ORDERS),
    ),
    query="SELECT region, order_id, customer_name, amount FROM `@NAME@_orders_by_region` ORDER BY region, order_id",
)
