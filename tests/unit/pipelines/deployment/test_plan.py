from __future__ import annotations

import json
from collections.abc import Callable

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.plan import (
    AT_LEAST_ONCE,
    LAST_WINDOWS,
    READ_COMMITTED,
    make_plan,
)
from headwater.pipelines.definition.sources.topic import MAX_OFFSETS_PER_TRIGGER


def test_a_plan_says_what_each_stage_reads_and_writes(load: Callable[..., Loaded], correct: str) -> None:
    plan = make_plan(load(correct))
    clean, totals = plan.stages
    assert ([read.target for read in clean.reads], clean.after, clean.tables) == (["orders"], (), ())
    assert [(w.kind, w.target, w.guarantee) for w in clean.writes] == [
        ("topic", "orders_clean", "exactly-once"),
        ("delta", "/flows/lake/orders", "exactly-once"),
    ]
    assert (totals.after, totals.tables, totals.reads[0].watermark) == (("clean",), ("shops",), "at, 1 hour")
    assert clean.expectations == ("paid: amount > 0 else dead_letter",)
    assert clean.checkpoint == "orders/clean/checkpoint"
    assert clean.dead_letters == ("orders.dead_letters",)


def test_a_plan_says_which_expectation_only_warns(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("that: amount > 0}", "that: amount > 0, otherwise: warn}")
    assert make_plan(load(text)).stages[0].expectations == ("paid: amount > 0 else warn",)


def test_topics_that_are_not_declared_get_the_partitions_of_the_stages_source(
    load: Callable[..., Loaded], correct: str
) -> None:
    topics = {topic.name: topic for topic in make_plan(load(correct)).topics}
    assert {name: topic.partitions for name, topic in topics.items()} == {
        "orders": 3,
        "orders_clean": 3,
        "totals": 3,
        "orders.dead_letters": 1,
        "orders_clean.dead_letters": 1,
    }
    assert topics["orders_clean"].columns == "those of stage clean"


def test_a_declared_dead_letter_topic_keeps_its_declaration(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("tables:\n", "  orders.dead_letters: {partitions: 7, value: raw}\ntables:\n")
    topics = {topic.name: topic.partitions for topic in make_plan(load(text)).topics}
    assert topics["orders.dead_letters"] == 7


def test_a_topic_of_the_broker_must_exist_and_is_not_created(load: Callable[..., Loaded]) -> None:
    text = "pipeline: p\nstages:\n  - {name: a, from: {topic: there}, to: [{topic: b, value: value}]}\n"
    topics = {t.name: t.partitions for t in make_plan(load(text, existing_topics=frozenset({"there"}))).topics}
    assert topics["there"] is None
    assert topics["b"] == 1


def test_a_stage_with_a_watermark_reads_its_backlog_at_once_so_that_no_row_is_late(
    load: Callable[..., Loaded], correct: str
) -> None:
    clean, totals = make_plan(load(correct)).stages
    assert clean.reads[0].limit == f"{MAX_OFFSETS_PER_TRIGGER:,} records"
    assert totals.reads[0].limit is None


def test_a_limit_in_the_file_wins(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace(
        "      topic: orders_clean\n", "      topic: orders_clean\n      max_offsets_per_trigger: 10\n"
    )
    assert make_plan(load(text)).stages[1].reads[0].limit == "10 records"


def test_the_plan_says_what_is_not_exactly_once_and_what_stays_open(load: Callable[..., Loaded], correct: str) -> None:
    assert make_plan(load(correct)).notes == (READ_COMMITTED, LAST_WINDOWS)


def test_a_topic_that_may_get_records_twice_is_noted(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("{topic: orders_clean", "{guarantee: at_least_once, topic: orders_clean")
    assert text != correct
    plan = make_plan(load(text))
    assert {write.guarantee for write in plan.stages[0].writes if write.kind == "topic"} == {"at-least-once"}
    assert plan.notes[:2] == (READ_COMMITTED, AT_LEAST_ONCE)


def test_configs_are_written_as_kafka_reads_them(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("partitions: 3,", "partitions: 3, configs: {retention.ms: 1000, preallocate: true},")
    assert make_plan(load(text)).topics[0].configs == {"retention.ms": "1000", "preallocate": "true"}


def test_a_plan_is_plain_json(load: Callable[..., Loaded], correct: str) -> None:
    assert json.loads(json.dumps(make_plan(load(correct)).as_dict()))["pipeline"] == "orders"


def test_sql_that_cannot_be_parsed_gets_every_table(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("sql: SELECT * FROM orders\n", "sql: SELEC * FRM orders\n")
    assert make_plan(load(text)).stages[0].tables == ("shops",)
