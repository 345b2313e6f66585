"""Which plans are queries over the catalog: by the classes and names of their nodes, without Spark."""

from __future__ import annotations

import pytest

from headwater.pipelines.sql.query_judge import (
    DEPTH_MAX,
    NODES_MAX,
    SeenNode,
    judge_analysed,
    judge_nesting,
    judge_parsed,
)

SPARK = "org.apache.spark.sql."
LOGICAL = f"{SPARK}catalyst.plans.logical."
ANALYSIS = f"{SPARK}catalyst.analysis."
EXPRESSIONS = f"{SPARK}catalyst.expressions."
PROJECT = SeenNode(f"{LOGICAL}Project")


def relation(*name: str, has_options: bool = False) -> SeenNode:
    return SeenNode(f"{ANALYSIS}UnresolvedRelation", 14, name=name, has_options=has_options)


def function(*name: str, kind: str = "UnresolvedFunction") -> SeenNode:
    return SeenNode(f"{ANALYSIS}{kind}", 7, is_plan=kind == "UnresolvedTableValuedFunction", name=name)


@pytest.mark.parametrize(
    ("begin", "end", "depth"),
    [
        ("(", ")", 1),
        ("abs(", ")", 1),
        ("a[", "]", 1),
        ("map<int,", ">", 1),
        ("STRUCT<a:", ">", 1),
        ("CAST(NULL AS array < ", ">)", 2),
    ],
)
def test_what_is_nested_deeply_is_refused_at_its_place(begin: str, end: str, depth: int) -> None:
    most = DEPTH_MAX // depth
    assert judge_nesting("SELECT " + begin * most + "1" + end * most) is None
    refusal = judge_nesting("SELECT " + begin * (most + 1))
    assert refusal is not None
    assert refusal.at is not None
    assert refusal.at >= len("SELECT " + begin * most)


@pytest.mark.parametrize(
    "before", ["/*+ COALESCE(", "end, ", ") " * 1_000, "a > b, " * 1_000, "/* ( */ '(' `(` -- (\n", "/*+ a */"]
)
def test_nothing_before_it_hides_what_is_nested(before: str) -> None:
    assert judge_nesting(f"SELECT {before}" + "(" * (DEPTH_MAX + 1)) is not None
    assert judge_nesting(f"SELECT {before}" + "(" * (DEPTH_MAX - before.count("COALESCE("))) is None


def test_what_is_one_after_the_other_is_not_nested() -> None:
    pairs = "(1), a[1], CASE WHEN a < b THEN 1 END, x.case, CAST(a AS array<int>), a < b, b > a, '(((', `[[`, "
    assert judge_nesting("SELECT " + pairs * 500 + "1") is None


@pytest.mark.parametrize("name", [("flights",), ("log", "flights.1"), ("LAKE", "flights")])
def test_names_of_the_catalog_are_read(name: tuple[str, ...]) -> None:
    assert judge_parsed([PROJECT, relation(*name)]) is None


@pytest.mark.parametrize(
    "name",
    [
        ("text", "/etc/hostname"),
        ("delta", "/lake/flights"),
        ("default", "flights"),
        ("spark_catalog", "lake", "flights"),
        ("log", "a", "b"),
        (),
    ],
)
def test_files_and_other_schemas_are_refused_at_their_place(name: tuple[str, ...]) -> None:
    refusal = judge_parsed([PROJECT, relation(*name)])
    assert refusal is not None
    assert (refusal.at, "no relation of the catalog" in refusal.reason) == (14, True)


def test_options_of_a_relation_are_refused() -> None:
    assert judge_parsed([relation("flights", has_options=True)]) is not None


@pytest.mark.parametrize(
    "kind",
    [
        f"{LOGICAL}ScriptTransformation",
        f"{LOGICAL}InsertIntoStatement",
        f"{LOGICAL}CreateTableAsSelect",
        f"{LOGICAL}CacheTable",
        f"{LOGICAL}CompoundBody",
        f"{SPARK}execution.command.SetCommand",
        f"{SPARK}execution.command.AddJarsCommand",
        f"{ANALYSIS}RelationTimeTravel",
        f"{ANALYSIS}UnresolvedExecuteImmediate",
        f"{LOGICAL}WhateverComesNext",
    ],
)
@pytest.mark.parametrize("judge", [judge_parsed, judge_analysed])
def test_what_is_not_known_as_an_operator_of_queries_is_refused(judge: object, kind: str) -> None:
    assert callable(judge)
    assert judge([PROJECT, SeenNode(kind)]) is not None


@pytest.mark.parametrize("kind", ["UnresolvedFunction", "UnresolvedGenerator", "UnresolvedTableValuedFunction"])
@pytest.mark.parametrize("name", [("explode",), ("JSON_TUPLE",)])
def test_known_functions_are_called(kind: str, name: tuple[str, ...]) -> None:
    assert judge_parsed([function(*name, kind=kind)]) is None


@pytest.mark.parametrize("kind", ["UnresolvedFunction", "UnresolvedGenerator", "UnresolvedTableValuedFunction"])
@pytest.mark.parametrize(
    "name",
    [
        ("reflect",),
        ("Java_Method",),
        ("try_reflect",),
        ("from_protobuf",),
        ("from_xml",),
        ("xpath",),
        ("read_files",),
        ("users_function",),
        ("system", "builtin", "explode"),
        (),
    ],
)
def test_functions_that_reach_further_or_are_unknown_are_refused(kind: str, name: tuple[str, ...]) -> None:
    assert judge_parsed([function(*name, kind=kind)]) is not None


def test_a_function_of_values_is_no_relation() -> None:
    assert judge_parsed([function("sum", kind="UnresolvedTableValuedFunction")]) is not None


@pytest.mark.parametrize(
    "kind",
    [
        f"{EXPRESSIONS}CallMethodViaReflection",
        f"{EXPRESSIONS}PythonUDF",
        f"{EXPRESSIONS}ScalaUDF",
        f"{EXPRESSIONS}VariableReference",
        f"{EXPRESSIONS}xml.XPathString",
        f"{SPARK}hive.HiveSimpleUDF",
        "org.elsewhere.Expression",
    ],
)
@pytest.mark.parametrize("judge", [judge_parsed, judge_analysed])
def test_expressions_that_call_code_are_refused(judge: object, kind: str) -> None:
    assert callable(judge)
    assert judge([SeenNode(kind, is_plan=False)]) is not None


def test_an_expression_whose_name_spark_has_yet_to_find_is_refused_in_both_plans() -> None:
    node = SeenNode(f"{ANALYSIS}ExpressionWithUnresolvedIdentifier", is_plan=False)
    assert judge_parsed([node]) is not None
    assert judge_analysed([node]) is not None


def test_an_analysed_plan_reads_temporary_views_and_tables_of_lake_only() -> None:
    view, stored = f"{LOGICAL}View", f"{SPARK}execution.datasources.LogicalRelation"
    assert judge_analysed([SeenNode(view, is_own=True), SeenNode(stored, of_lake=True)]) is None
    assert judge_analysed([SeenNode(view)]) is not None
    assert judge_analysed([SeenNode(stored)]) is not None


def test_a_plan_of_too_many_nodes_is_refused() -> None:
    literal = SeenNode(f"{EXPRESSIONS}Literal", is_plan=False)
    assert judge_parsed([literal] * NODES_MAX) is None
    assert judge_parsed([literal] * (NODES_MAX + 1)) is not None
