"""What a changed stage means for its checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.deployment.changes import Change, Deployed, Effect, changes_of_pipeline, changes_of_stage
from headwater.pipelines.deployment.stage_record import RecordError, StageRecord, record_of

FILE = """\
pipeline: shop
topics:
  orders: {partitions: 3, value: string}
  payments: {value: string}
tables:
  shops: {format: csv, path: shops.csv}
stages:
  - name: plain
    from: {topic: orders}
    sql: SELECT id, upper(shop) AS shop FROM orders WHERE id > 0
    to:
      - {topic: plain, key: id}
      - {delta: lake/plain, partition_by: [to_date(at) AS day], merge: {keys: [id], sequence: at}}
  - name: sums
    from: {topic: orders, watermark: {column: at, delay: 1 hour}}
    sql: |
      SELECT window(at, '1 hour') AS hour, shop, sum(amount) AS amount, first(city) AS city
      FROM orders JOIN shops USING (shop)
      WHERE amount > 0
      GROUP BY 1, 2
    to: [{topic: sums}]
  - name: paid
    from:
      - {topic: orders, as: o, watermark: {column: at, delay: 1 hour}}
      - {topic: payments, as: p, watermark: {column: at, delay: 1 hour}}
    sql: SELECT o.id FROM o JOIN p ON o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR
    to: [{topic: paid}]
  - name: chain
    from: {topic: orders, watermark: {column: at, delay: 1 hour}}
    steps:
      - sql: SELECT id, trim(shop) AS shop, at, amount FROM orders
      - deduplicate: {by: [id, shop]}
      - sql: SELECT id, shop, amount * 2 AS amount FROM input
    to: [{topic: chain}]
  - name: visits
    from: {topic: orders, watermark: {column: at, delay: 1 hour}}
    steps:
      - stateful: {file: visits.py, processor: Visits, by: [shop], output: "shop STRING, visits BIGINT"}
    to: [{topic: visits}]
  - name: code
    from: {topic: orders}
    python: {file: code.py, function: run}
    to: [{topic: code}]
"""
STATEFUL = {"sums", "paid", "chain", "visits"}
CODE = {"visits.py": "1", "code.py": "1"}

Load = Callable[..., Loaded]
Records = dict[str, StageRecord]


def records(load: Load, text: str, code: dict[str, str] | None = None) -> Records:
    loaded = load(text)
    return {s.name: record_of(loaded, s, CODE if code is None else code, "6") for s in loaded.pipeline.stages}


def deployed(load: Load, text: str = FILE, stateful: set[str] | None = None) -> dict[str, Deployed]:
    """As a run would have left it: Spark has said which stages keep state."""
    known = STATEFUL if stateful is None else stateful
    return {
        name: Deployed(True, dataclasses.replace(record, is_stateful=name in known))
        for name, record in records(load, text).items()
    }


def changed(load: Load, old: str, new: str, *, text: str = FILE, code: dict[str, str] | None = None) -> list[Change]:
    """The changes that replacing a part of the file makes."""
    assert old in text, old
    now = records(load, text.replace(old, new, 1), code)
    return changes_of_pipeline(now, deployed(load, text))


def test_the_same_file_is_no_change(load: Load) -> None:
    assert changes_of_pipeline(records(load, FILE), deployed(load)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "SELECT id, upper(shop) AS shop FROM orders",
            "SELECT id,\n        upper( `shop` )  AS shop /* c */\n      FROM orders",
        ),
        ("sql: SELECT o.id FROM o JOIN p ON", "sql: select o.id from o inner join p on"),
        ("GROUP BY 1, 2", "GROUP BY window(AT, '1 hour'), Shop"),
    ],
)
def test_layout_comments_quotes_and_case_change_nothing_of_weight(load: Load, old: str, new: str) -> None:
    assert all(change.effect is Effect.SAFE for change in changed(load, old, new))


def test_layout_and_comments_alone_are_no_change_at_all(load: Load) -> None:
    old = "SELECT window(at, '1 hour') AS hour, shop,"
    assert changed(load, old, "SELECT  window( at,'1 hour' ) AS hour, /* which */ shop,") == []


SAFE = [
    ("key of a topic", "{topic: plain, key: id}", "{topic: plain, key: shop}", "key of plain"),
    ("headers", "{topic: plain, key: id}", "{topic: plain, key: id, headers: {a: id}}", "headers of plain"),
    ("compression", "{topic: sums}", "{topic: sums, compression: zstd}", "compression of sums"),
    ("guarantee", "{topic: sums}", "{topic: sums, guarantee: at_least_once}", "guarantee of sums"),
    ("a sink more", "to: [{topic: sums}]", "to: [{topic: sums}, {delta: lake/sums}]", "sink added"),
    ("another table", "{delta: lake/plain,", "{delta: lake/other,", "sink added"),
    ("a filter without state", "WHERE id > 0", "WHERE id > 1", "steps"),
    ("a projection without state", "upper(shop)", "lower(shop)", "steps"),
    ("a projection of a group", "sum(amount) AS amount", "round(sum(amount)) AS amount", "steps"),
    ("the name of a column", "AS city", "AS town", "steps"),
    ("a filter behind groups", "GROUP BY 1, 2", "GROUP BY 1, 2 HAVING sum(amount) > 5", "steps"),
    ("a column behind deduplicate", "amount * 2", "amount * 3", "steps"),
    ("the same delay in other words", "column: at, delay: 1 hour", "column: at, delay: 60 minutes", "delay of the"),
    ("a limit", "from: {topic: orders}", "from: {topic: orders, max_offsets_per_trigger: 5}", "max_offsets"),
    ("the start", "from: {topic: orders}", "from: {topic: orders, starting_offsets: latest}", "where an input starts"),
    (
        "an expectation",
        "    sql: SELECT id",
        "    expect: [{name: e, that: id > 1}]\n    sql: SELECT id",
        "expectations",
    ),
    ("the trigger", "    sql: SELECT id", "    trigger: 5 seconds\n    sql: SELECT id", "trigger"),
    ("the mode without state", "    sql: SELECT id", "    mode: update\n    sql: SELECT id", "mode"),
    ("the rows of a topic", "{topic: sums}", "{topic: sums, when: amount > 5}", "when of sums"),
    ("the rows of a table", "{delta: lake/plain,", "{delta: lake/plain, when: id > 3,", "when of"),
    ("a merge's deletes", "sequence: at}", "sequence: at, delete_when: id = 3}", "delete_when"),
    ("underscores of a merge", "sequence: at}", "sequence: at}, underscore_columns: omit", "underscore columns of"),
    ("columns of a merge", "sequence: at}", "sequence: at, columns: [shop]}", "columns of"),
    ("columns that a merge leaves out", "sequence: at}", "sequence: at, except: shop}", "except of"),
    ("a function's name", "function: run", "function: walk", "steps"),
    ("partitions of a topic", "partitions: 3", "partitions: 5", ""),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in SAFE], ids=[case[0] for case in SAFE])
def test_what_leaves_the_checkpoint_alone_is_safe(load: Load, old: str, new: str, what: str) -> None:
    found = changed(load, old, new)
    assert {change.effect for change in found} <= {Effect.SAFE}, found
    assert any(what in change.what for change in found) or not what, found


PAID = FILE[FILE.index("from:\n      - {topic: orders, as: o") : FILE.index("    to: [{topic: paid}]")]
RESET = [
    ("another topic", "from: {topic: orders}\n    sql", "from: {topic: payments, as: orders}\n    sql", "other input"),
    ("another kind", "from: {topic: orders}\n    sql", "from: {delta: orders, as: orders}\n    sql", "other input"),
    ("an input less", PAID, "from: {topic: orders}\n    sql: SELECT id FROM orders\n", "input removed"),
    ("a grouping key", "GROUP BY 1, 2", "GROUP BY 1, 2, id", "grouping keys"),
    ("the window", "window(at, '1 hour')", "window(at, '2 hours')", "grouping keys"),
    ("a function more", "first(city) AS city", "first(city) AS city, count(*) AS n", "aggregate functions"),
    ("another function", "sum(amount)", "avg(amount)", "aggregate functions"),
    (
        "the watermark",
        "{column: at, delay: 1 hour}}\n    sql: |",
        "{column: ts, delay: 1 hour}}\n    sql: |",
        "watermark",
    ),
    (
        "no watermark",
        "{topic: orders, watermark: {column: at, delay: 1 hour}}\n    sql",
        "{topic: orders}\n    sql",
        "watermark",
    ),
    ("a longer delay", "column: at, delay: 1 hour", "column: at, delay: 2 hours", "delay of the watermark"),
    ("a shorter delay", "column: at, delay: 1 hour", "column: at, delay: 5 minutes", "delay of the watermark"),
    ("the join's condition", "INTERVAL 1 HOUR", "INTERVAL 2 HOUR", "join condition"),
    ("the join's kind", "FROM o JOIN p", "FROM o LEFT JOIN p", "kind of join"),
    ("the join's order", "FROM o JOIN p", "FROM p JOIN o", "order of inputs"),
    ("the key of deduplicate", "by: [id, shop]", "by: [id]", "columns of deduplicate"),
    ("a key before deduplicate", "trim(shop)", "lower(shop)", "steps before the state"),
    ("a column before deduplicate", "at, amount FROM", "at, abs(amount) AS amount FROM", "steps before the state"),
    ("a filter before state", "WHERE amount > 0", "WHERE amount > 1", "steps"),
    ("a condition on a key", "GROUP BY 1, 2", "GROUP BY 1, 2 HAVING shop = 'a'", "steps"),
    ("FILTER", "sum(amount)", "sum(amount) FILTER (WHERE amount > 3)", "steps"),
    ("IGNORE NULLS", "first(city)", "first(city) IGNORE NULLS", "steps"),
    (
        "functions of one type in another order",
        "sum(amount) AS amount, first(city) AS city",
        "first(city) AS city, sum(amount) AS amount",
        "steps",
    ),
    ("LATERAL VIEW", "WHERE amount > 0", "LATERAL VIEW explode(array(1, 2)) n AS n WHERE amount > 0", "steps"),
    ("a column less of a join", "SELECT o.id FROM o JOIN p", "SELECT o.shop FROM o JOIN p", "steps"),
    ("the order of deduplicate's keys", "by: [id, shop]", "by: [shop, id]", "steps"),
    ("state where none was", "upper(shop) AS shop FROM orders", "max(shop) AS shop FROM orders", "state"),
    (
        "a step with state",
        "      - sql: SELECT id, shop, amount * 2 AS",
        "      - deduplicate: {by: [id]}\n      - sql: SELECT id, shop, amount * 2 AS",
        "state",
    ),
    ("the output of a processor", "visits BIGINT", "visits INT", "output of the processor"),
    ("the keys of a processor", "by: [shop]", "by: [id]", "keys of the processor"),
    ("the mode with state", "    sql: |", "    mode: update\n    sql: |", "mode"),
    ("the keys of a merge", "{keys: [id],", "{keys: [id, shop],", "merge of delta"),
    ("rows added, not merged", ", merge: {keys: [id], sequence: at}", "", "merge of delta"),
    ("partitions of a table", "to_date(at) AS day", "id", "partition by of delta"),
]


@pytest.mark.parametrize(("old", "new", "what"), [case[1:] for case in RESET], ids=[case[0] for case in RESET])
def test_what_the_checkpoint_does_not_fit_needs_a_reset(load: Load, old: str, new: str, what: str) -> None:
    found = [change for change in changed(load, old, new) if change.effect is Effect.NEEDS_RESET]
    assert any(what in change.what for change in found), (found, changed(load, old, new))
    assert all(change.reason for change in found)


@pytest.mark.parametrize(
    ("delays", "said"),
    [
        (("2 hours", "1 hour"), "what a longer one would still wait for is gone"),
        (("59 minutes", "1 hour"), "late rows that a shorter delay would have dropped"),
        (("2 hours", "1 minute"), "is gone, and the state has taken late rows"),
    ],
)
def test_another_delay_says_what_it_does_to_the_state(load: Load, delays: tuple[str, str], said: str) -> None:
    text = FILE.replace(
        "as: o, watermark: {column: at, delay: 1 hour}", f"as: o, watermark: {{column: at, delay: {delays[0]}}}"
    )
    text = text.replace(
        "as: p, watermark: {column: at, delay: 1 hour}", f"as: p, watermark: {{column: at, delay: {delays[1]}}}"
    )
    [change] = changes_of_pipeline(records(load, text), deployed(load))
    assert (change.stage, change.effect) == ("paid", Effect.NEEDS_RESET)
    assert said in change.reason


def test_a_delay_of_a_stage_without_state_is_safe(load: Load) -> None:
    old, new = (
        "from: {topic: orders}\n    sql",
        "from: {topic: orders, watermark: {column: at, delay: 1 hour}}\n    sql",
    )
    text = FILE.replace(old, new, 1)
    now = records(load, text.replace("1 hour", "2 hours", 1))
    [change] = changes_of_pipeline(now, deployed(load, text))
    assert (change.stage, change.effect, change.what) == ("plain", Effect.SAFE, "delay of the watermark")


def test_the_order_of_two_inputs_needs_a_reset(load: Load) -> None:
    lines = FILE.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if "as: o," in line)
    lines[first], lines[first + 1] = lines[first + 1], lines[first]
    found = changes_of_pipeline(records(load, "".join(lines)), deployed(load))
    assert [(change.stage, change.effect, change.what) for change in found] == [
        ("paid", Effect.NEEDS_RESET, "order of inputs")
    ]


@pytest.mark.parametrize(
    ("code", "stateful", "expected"),
    [
        ({"visits.py": "2", "code.py": "2"}, STATEFUL, {"visits": Effect.NEEDS_RESET, "code": Effect.SAFE}),
        # a function that keeps the state itself cannot be told apart
        ({"visits.py": "1", "code.py": "2"}, {*STATEFUL, "code"}, {"code": Effect.NEEDS_RESET}),
    ],
)
def test_code_that_changed_is_safe_in_a_stage_without_state_only(
    load: Load, code: dict[str, str], stateful: set[str], expected: dict[str, Effect]
) -> None:
    found = changes_of_pipeline(records(load, FILE, code), deployed(load, stateful=stateful))
    assert [(change.stage, change.effect) for change in found] == list(expected.items())
    assert all("is not looked into" in each.reason for each in found if each.effect is Effect.NEEDS_RESET)


def test_sql_that_cannot_be_looked_into_needs_a_reset(load: Load) -> None:
    for old in ("SELECT window(at, '1 hour') AS hour,", "SELECT id, upper(shop)"):
        found = changed(load, old, old.replace("SELECT", "SELEKT"))
        assert "steps" in [change.what for change in found if change.effect is Effect.NEEDS_RESET], found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY id)", "percentile_cont(0.5) WITHIN GROUP (ORDER BY id DESC)"),
        ("kurtosis(amount)", "skewness(amount)"),
        ("count_if(amount > 1)", "count_if(amount > 2)"),
        ("max(id), max(amount)", "max(amount), max(id)"),
        ("sum(amount) * 2", "CASE WHEN true THEN 1 ELSE sum(amount) END"),
    ],
)  # fmt: skip
def test_what_an_aggregate_is_made_of_is_part_of_the_state(load: Load, old: str, new: str) -> None:
    text = FILE.replace("first(city) AS city", old)
    found = changed(load, old, new, text=text)
    assert Effect.NEEDS_RESET in [change.effect for change in found], found


RENAMED = ("SELECT id AS a, shop AS b, at FROM orders", "SELECT a AS b, b AS a, at FROM input")
USED = ("SELECT shop, sum(id) AS a, sum(amount) AS b FROM orders GROUP BY shop", "SELECT shop, a FROM input")


@pytest.mark.parametrize(
    ("steps", "now", "effect"),
    [  # a column that is renamed two steps up is another one
        ((*RENAMED, "deduplicate"), "SELECT a AS a, b AS b, at FROM input", Effect.NEEDS_RESET),
        ((*RENAMED, "deduplicate"), "SELECT b AS a, a AS b, at FROM input", Effect.NEEDS_RESET),
        # the optimizer leaves out an aggregate that a later step does not select: adding it there changes the state
        (USED, "SELECT shop, b FROM input", Effect.NEEDS_RESET),
        (USED, "SELECT a + 1 AS c FROM input", Effect.SAFE),
    ],
)
def test_what_a_second_step_makes_of_columns(load: Load, steps: tuple[str, ...], now: str, effect: Effect) -> None:
    start, end = FILE.index("    steps:\n      - sql: SELECT id, trim"), FILE.index("    to: [{topic: chain}]")
    lines = [f"      - {'deduplicate: {by: [a]}' if each == 'deduplicate' else f'sql: {each}'}\n" for each in steps]
    text = FILE[:start] + "    steps:\n" + "".join(lines) + FILE[end:]
    assert [each.effect for each in changed(load, steps[1], now, text=text)] == [effect]


THEN = "FROM input\n      - sql: SELECT"


@pytest.mark.parametrize(
    ("having", "old", "new", "effect"),
    [
        # One operator of both steps, whose sums stand in the order of the second step.
        ("", "a, b", "b, a", Effect.NEEDS_RESET),
        ("", "a, b", "a AS c, b", Effect.SAFE),
        # Without the first column the sum comes first.
        ("", "n, a, m", "a, m", Effect.NEEDS_RESET),
        ("HAVING max(id) > 3", "n, a, m", "a, m", Effect.NEEDS_RESET),
        ("HAVING max(id) > 3", "n, a, m", "n, a", Effect.SAFE),
        # They stay two operators.
        ("HAVING max(id) > 3", "a, b", "b, a", Effect.SAFE),
        # This condition is moved before the operator.
        ("HAVING shop > 'k'", "a, b", "b, a", Effect.NEEDS_RESET),
        ("HAVING shop > 'k' AND max(id) > 3", "a, b", "b, a", Effect.NEEDS_RESET),
        # The last of two steps says what is used.
        ("", f"n, a, m {THEN} n, a, m", f"n, a, m {THEN} a, m", Effect.NEEDS_RESET),
        ("", f"a, b {THEN} a, b", f"a, b {THEN} b, a", Effect.NEEDS_RESET),
        ("", f"a, b {THEN} a, b", f"a, b {THEN} a, b * 2 AS b", Effect.SAFE),
        # Two columns of one name.
        ("", "a AS x, b AS y", "b AS x, a AS x", Effect.NEEDS_RESET),
    ],
)  # fmt: skip
def test_a_step_behind_the_state_says_what_it_holds_and_in_which_order(
    load: Load, having: str, old: str, new: str, effect: Effect
) -> None:
    start, end = FILE.index("    steps:\n      - sql: SELECT id, trim"), FILE.index("    to: [{topic: chain}]")
    steps = (
        "    steps:\n      - sql: SELECT count(*) AS n, sum(id) AS a, sum(amount) AS b, count(*) + 1 AS m\n"
        f"          FROM orders GROUP BY shop {having}\n      - sql: SELECT {old} FROM input\n"
    )
    text = FILE[:start] + steps + FILE[end:]
    assert {each.effect for each in changed(load, f"SELECT {old} FROM", f"SELECT {new} FROM", text=text)} == {effect}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("payments: {value: string}", "payments: {value: json, schema: p.json}", "topic payments"),
        ("path: shops.csv}", "path: others.csv}", "table shops"),
        ("path: shops.csv}", "path: shops.csv, options: {sep: ;}}", "table shops"),
    ],
)
def test_how_topics_and_tables_are_declared_is_part_of_the_record(load: Load, old: str, new: str, what: str) -> None:
    found = changed(load, old, new)
    assert {change.effect for change in found if change.what == what and change.stage in STATEFUL} == {
        Effect.NEEDS_RESET
    }, found


def test_a_record_of_an_earlier_release_says_nothing_of_declarations(load: Load) -> None:
    before = deployed(load)
    for name, state in before.items():
        assert state.record is not None
        steps = tuple({k: v for k, v in step.items() if k != "source"} for step in state.record.steps)
        before[name] = dataclasses.replace(
            state, record=dataclasses.replace(state.record, steps=steps, declared=None, ids=None)
        )
    found = changes_of_pipeline(records(load, FILE), before)
    assert {(change.effect, change.what) for change in found} == {(Effect.SAFE, "declarations")}
    assert all("does not say" in change.reason for change in found)


def test_another_cluster_or_a_topic_that_was_made_anew_needs_a_reset(load: Load) -> None:
    record = dataclasses.replace(records(load, FILE)["plain"], ids={"cluster": "c1", "topic orders": "t1"})
    known = Deployed(True, dataclasses.replace(record, is_stateful=False))
    assert changes_of_stage("plain", known, record) == []
    assert changes_of_stage("plain", known, dataclasses.replace(record, ids=None)) == []
    for name in ("cluster", "topic orders"):
        now = dataclasses.replace(record, ids={**(record.ids or {}), name: "another"})
        assert [(each.effect, each.what) for each in changes_of_stage("plain", known, now)] == [
            (Effect.NEEDS_RESET, name)
        ]


def test_a_planned_batch_is_told_before_a_safe_change(load: Load) -> None:
    known = {name: dataclasses.replace(state, waits=7) for name, state in deployed(load).items()}
    now = records(load, FILE.replace("{topic: plain, key: id}", "{topic: plain, key: shop}"))
    found = changes_of_pipeline(now, known)
    assert [(change.stage, change.what) for change in found] == [
        ("plain", "key of plain"),
        ("plain", "batch under way"),
    ]
    assert "micro-batch 7 is planned" in found[1].reason


def test_a_new_stage_has_new_state_and_says_where_it_starts(load: Load) -> None:
    more = "  - {name: more, from: {topic: payments, starting_offsets: latest}, to: [{topic: more}]}\n"
    [change] = changes_of_pipeline(records(load, FILE + more), deployed(load))
    assert (change.stage, change.effect, change.what) == ("more", Effect.NEW_STATE, "new stage")
    assert "payments from latest" in change.reason


def test_a_renamed_stage_is_recognised(load: Load) -> None:
    found = changed(load, "name: plain", "name: simple")
    assert [(change.stage, change.effect, change.what) for change in found] == [
        ("simple", Effect.NEW_STATE, "stage renamed"),
        ("plain", Effect.SAFE, "stage removed"),
    ]
    assert "Name it plain to go on" in found[0].reason


def test_a_number_of_shuffle_partitions_has_no_effect_and_is_told_so(load: Load) -> None:
    loaded = load(FILE)
    now = {s.name: record_of(loaded, s, CODE, "12") for s in loaded.pipeline.stages}
    found = changes_of_pipeline(now, deployed(load))
    assert {change.effect for change in found} == {Effect.SAFE}
    assert all("no effect" in change.reason and "keeps 6" in change.reason for change in found)


def test_a_checkpoint_without_a_record_is_judged_by_its_topics(load: Load) -> None:
    now = records(load, FILE)["plain"]
    assert changes_of_stage("plain", Deployed(True, None, frozenset({"orders"})), now) == []
    [change] = changes_of_stage("plain", Deployed(True, None, frozenset({"old"})), now)
    assert change.effect is Effect.NEEDS_RESET
    assert change.reason == "the checkpoint of stage plain has read the topic 'old', not 'orders'"


def test_a_record_survives_its_file(load: Load) -> None:
    for record in records(load, FILE).values():
        assert StageRecord.decode(record.encode()) == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "inputs": []}'])
def test_a_record_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        StageRecord.decode(text)


DATABASE = FILE + (
    "  - name: db\n    from: {topic: orders}\n"
    "    to: [{jdbc: 'jdbc:x://db', table: t, keys: [id], sequence: [at, V], delete_when: gone}]\n"
)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[at, V]", "[V, at]", "it was at, v and is v, at"),
        ("[at, V]", "v", "it was at, v and is v"),
        ("sequence: [at, V], ", "", "it was at, v and is none"),
        ("[at, V]", "[AT, v]", ""),
    ],
)
@pytest.mark.parametrize("is_earlier", [False, True])
def test_the_sequence_of_a_database_needs_a_reset(load: Load, old: str, new: str, said: str, is_earlier: bool) -> None:
    before = deployed(load, DATABASE)
    if is_earlier:  # its releases noted the sequence among what may change
        [sink] = before["db"].record.sinks  # type: ignore[union-attr]
        sink["kept"].pop("sequence", None)
        sink["more"]["sequence"] = ["at", "V"]
    found = changes_of_pipeline(records(load, DATABASE.replace(old, new)), before)
    told = [(change.effect, change.what) for change in found]
    assert told == ([(Effect.NEEDS_RESET, "sequence of jdbc t of jdbc:x://db")] if said else [])
    assert all(change.reason.startswith(f"{said}: ") and "headwater_last_" in change.reason for change in found)


def test_a_sequence_that_a_record_does_not_tell_is_no_change(load: Load) -> None:
    before = deployed(load, DATABASE)
    [sink] = before["db"].record.sinks  # type: ignore[union-attr]
    del sink["kept"]["sequence"]
    assert changes_of_pipeline(records(load, DATABASE), before) == []


def test_a_record_holds_no_secret(load: Load) -> None:
    text = FILE + (
        "  - name: db\n    from: {jdbc: 'jdbc:x://u:geheim@db/x', table: t, increment: id, password: geheim}\n"
        "    to: [{jdbc: 'jdbc:x://db', table: u, password: geheim, options: {token: geheim}}]\n"
    )
    assert "geheim" not in records(load, text)["db"].encode()


FROM = "  - {name: db, from: {jdbc: 'URL', table: t, increment: id}, to: {topic: u}}\n"
INTO = "  - {name: db, from: {topic: orders}, to: {jdbc: 'URL', table: t, keys: [id]}}\n"


def of_database(load: Load, stage: str, url: str, shown: str | None = None) -> StageRecord:
    """The record of a stage; with `shown` as an earlier release wrote it, which knew the shown URL only."""
    record = records(load, FILE + stage.replace("URL", url))["db"]
    if shown is None:
        return record
    values = json.loads(record.encode())
    for entry in (*values["inputs"], *values["sinks"]):
        if entry["kind"] == "jdbc":
            entry.pop("database", None)
            entry["target"] = f"t of {shown}"
    return StageRecord.decode(json.dumps(values))


@pytest.mark.parametrize(
    ("url", "shown"),
    [  # as releases before have shown it
        ("jdbc:oracle:thin:scott/tiger@//db:1521/orcl", "jdbc:oracle:thin:scott/tiger@//db:1521/orcl"),
        ("jdbc:oracle:thin:scott/new@//db:1521/orcl", "jdbc:oracle:thin:scott/tiger@//db:1521/orcl"),
        ("jdbc:postgresql://u:p@db/shop?ssl=true", "jdbc:postgresql://***@db/shop?ssl=true"),
        ("jdbc:postgresql://db/shop?user=u&password=p", "jdbc:postgresql://db/shop?user=u&password=***"),
        ("jdbc:sqlserver://db;password={p;w}x;databaseName=a", "jdbc:sqlserver://db;password=***;w}x;databaseName=a"),
        ("jdbc:snowflake://acc/?db=A", "jdbc:snowflake://acc/?db=A"),
        ("jdbc:postgresql://db/shop", "jdbc:postgresql://db/shop"),
        ("jdbc:mysql://u:p/w@db/shop", "jdbc:mysql://u:p/w@db/shop"),
    ],
)
@pytest.mark.parametrize("stage", [FROM, INTO])
def test_a_database_that_an_earlier_release_showed_otherwise_is_the_same(
    load: Load, stage: str, url: str, shown: str
) -> None:
    before = of_database(load, stage, url, shown)
    assert changes_of_stage("db", Deployed(True, before), of_database(load, stage, url)) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("jdbc:postgresql://db/shop", "jdbc:postgresql://db/other"),
        ("jdbc:snowflake://acc/?db=B", "jdbc:snowflake://acc/?db=A"),
        ("jdbc:snowflake://acc/?db=A", "jdbc:snowflake://acc/"),  # which database it was, it does not say
    ],
)
def test_a_source_that_is_not_proven_to_be_the_same_needs_a_reset(load: Load, url: str, shown: str) -> None:
    before = of_database(load, FROM, url, shown)
    [change] = changes_of_stage("db", Deployed(True, before), of_database(load, FROM, url))
    assert (change.effect, change.what) == (Effect.NEEDS_RESET, "other input")


@pytest.mark.parametrize("names", [("A", "B"), ("Ä b", "Ö b")])
def test_another_database_on_the_same_host_is_another_one(load: Load, names: tuple[str, str]) -> None:
    urls = [f"jdbc:snowflake://acc/?db={name}" for name in names]
    old, new = (of_database(load, FROM, url) for url in urls)
    [change] = changes_of_stage("db", Deployed(True, old), new)
    assert (change.effect, change.what) == (Effect.NEEDS_RESET, "other input")
    assert change.reason.count(names[0]) == (names[0] == "A")
    assert ("another database: what names it is not all shown" in change.reason) == (names[0] != "A")
    old, new = (of_database(load, INTO, url) for url in urls)
    found = changes_of_stage("db", Deployed(True, old), new)
    assert [(each.effect, each.what) for each in found] == [(Effect.SAFE, "sink added"), (Effect.SAFE, "sink removed")]


def test_a_table_of_another_database_is_another_table(load: Load) -> None:
    tables = "tables:\n  rates: {{jdbc: 'jdbc:snowflake://acc/?password={}&db={}', table: r}}\n"
    text = FILE.replace("tables:\n", tables.format("p", "A")).replace(
        "JOIN shops USING (shop)", "JOIN rates USING (shop)"
    )
    assert changed(load, "password=p", "password=q", text=text) == []
    found = changed(load, "db=A", "db=B", text=text)
    assert {each.what for each in found} == {"table rates"}
    assert [(each.stage, each.effect) for each in found] == [("sums", Effect.NEEDS_RESET), ("code", Effect.SAFE)]


def test_what_secrets_name_is_compared_where_they_have_values(load: Load) -> None:
    def record(shown: str | None = None, **environ: str) -> StageRecord:
        def with_values(text: str) -> Loaded:
            return load(text, environ=environ)

        return of_database(with_values, FROM, "${env:URL}", shown)

    one, two = record(URL="jdbc:postgresql://u:p@one/shop"), record(URL="jdbc:postgresql://two/shop")
    again = record(URL="jdbc:postgresql://u:q@one/shop")
    assert changes_of_stage("db", Deployed(True, one), again) == []
    assert [each.effect for each in changes_of_stage("db", Deployed(True, one), two)] == [Effect.NEEDS_RESET]
    for before, now, said in (
        (one, record(), "cannot be told here"),
        (record("${env:URL}", URL="jdbc:x://db"), one, "does not say which one ${env:URL} was"),
    ):
        [change] = changes_of_stage("db", Deployed(True, before), now)
        assert (change.effect, change.what) == (Effect.SAFE, "database of input input")
        assert said in change.reason


def test_a_renamed_stage_that_reads_a_database_is_recognised(load: Load) -> None:
    url = "jdbc:oracle:thin:scott/tiger@//db:1521/orcl"
    old = {"db": Deployed(True, of_database(load, FROM, url, url))}
    found = changes_of_pipeline({"other": of_database(load, FROM, url)}, old)
    assert found[0].what == "stage renamed"
