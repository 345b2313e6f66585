"""The trees of SQL texts are kept and shared: whoever reads one leaves it as it is."""

from __future__ import annotations

import random
import textwrap

import pytest
import sqlglot

from headwater.pipelines.definition import SqlStep
from headwater.pipelines.definition.graph import tables_named
from headwater.pipelines.definition.loading import parse
from headwater.pipelines.deployment import state_proof
from headwater.pipelines.sql_text import shape as module
from headwater.pipelines.sql_text.shape import parsed, parsed_query, readable
from headwater.pipelines.validation.column_checks import check_columns
from tests.fuzzed_stages import classify, fuzzed_pair

TEXTS = (
    "WITH x AS (SELECT A, count(*) AS n FROM `Orders` GROUP BY 1) SELECT A FROM x JOIN Shops USING (A) -- all",
    "SELECT DISTINCT K, window(at, '1 hour') FROM input GROUP BY K, window(at, '1 hour') HAVING Sum(v) > 3",
    "SELECT k, my_own(v) FROM input GROUP BY k UNION SELECT k, v FROM other",
)


@pytest.fixture(autouse=True)
def _none_kept() -> None:
    for kept in (module.parsed, module.parsed_query, module._tokens, tables_named, state_proof._operator_of):
        kept.cache_clear()


def queries() -> list[str]:
    chance = random.Random(7)
    pairs = [fuzzed_pair(chance) for _ in range(15)]
    for before, now in pairs:
        classify(before, now)
    texts = [step for pair in pairs for stage in pair for step in stage.steps()]
    for text in TEXTS:
        tables_named(text)
        module.sql_shape(text, ["input", "orders"])
        module.is_understood(text)
    found = [*texts[-20:], *TEXTS]
    for text in found:
        check_columns_of(text)
    return found


def check_columns_of(text: str) -> None:
    """Read a text as a step between inputs with columns and expressions over what it makes."""
    names = sorted(tables_named(text)[0], key=str.lower)
    columns = "k STRING, K2 INT, a STRING, v INT, amount INT, shop STRING, at TIMESTAMP"
    inputs = [f"      - {{files: in/{name}, as: {name}, format: json, schema: '{columns}'}}" for name in names]
    file = (
        "pipeline: p\ntopics: {out: {value: json}}\nstages:\n  - name: s\n    from:\n"
        + "\n".join(inputs)
        + f"\n    sql: |-\n{textwrap.indent(text, ' ' * 6)}\n    to: {{topic: out, key: upper(k)}}\n"
    )
    loaded = parse(file, "p.yaml", folder="/flows")
    [step] = loaded.pipeline.stages[0].transforms
    assert isinstance(step, SqlStep)
    assert step.sql == text, "the tree that is kept is of this text"
    list(check_columns(loaded))


def test_a_kept_tree_is_the_one_that_its_text_has() -> None:
    for text in queries():
        fresh = sqlglot.parse_one(readable(text), read="spark")
        assert parsed(text) == fresh
        assert parsed(text).sql("spark") == fresh.sql("spark")
        kept, anew = parsed_query(text), parsed_query.__wrapped__(text)
        assert repr(kept) == repr(anew)
    assert parsed.cache_info().hits > 0


def test_what_is_kept_does_not_grow_without_end() -> None:
    for number in range(module.TEXTS_KEPT + 10):
        parsed(f"SELECT {number}")
    assert parsed.cache_info().currsize == module.TEXTS_KEPT
