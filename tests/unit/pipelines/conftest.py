"""A correct pipeline to break, and a way to read what is said about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.loading import parse
from headwater.pipelines.errors import PipelineError, Problem

CORRECT = """\
pipeline: orders
topics:
  orders: {partitions: 3, value: json, schema: order.json}
tables:
  shops: {format: csv, path: shops.csv}
stages:
  - name: clean
    from: {topic: orders}
    expect:
      - {name: paid, that: amount > 0}
    sql: SELECT * FROM orders
    to:
      - {topic: orders_clean, key: shop}
      - {delta: lake/orders, partition_by: [shop]}
  - name: totals
    from:
      topic: orders_clean
      watermark: {column: at, delay: 1 hour}
    sql: |
      SELECT window(at, '1 hour') AS hour, shop, sum(amount) AS amount
      FROM orders_clean JOIN shops USING (shop) GROUP BY 1, 2
    to: [{topic: totals, key: shop}]
"""


@pytest.fixture
def correct() -> str:
    return CORRECT


@pytest.fixture
def load() -> Callable[..., Loaded]:
    def parsed(text: str, **more: object) -> Loaded:
        return parse(text, "orders.yaml", folder="/flows", **more)  # type: ignore[arg-type]

    return parsed


@pytest.fixture
def problems(load: Callable[..., Loaded]) -> Callable[..., list[Problem]]:
    """The problems of a text; fails if there is none."""

    def found(text: str, **more: object) -> list[Problem]:
        with pytest.raises(PipelineError) as caught:
            load(text, **more)
        return list(caught.value.problems)

    return found
