"""Whether a statement is only a query over the catalog. Pure: judges the nodes of a plan by class and name.

Spark SQL is a shell: TRANSFORM runs programs, text.`/etc/passwd` reads files, reflect calls Java. What is not known to
be harmless is refused, and so is what a later version of Spark may add. The parsed plan is judged before it is
analysed, as commands run, and inline tables are computed, while Spark analyses; the analysed plan is judged before it
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headwater.pipelines.sql.lake_tables import LAKE
from headwater.pipelines.sql.shared_views import LOG, TOPICS
from headwater.pipelines.sql_text.functions import FUNCTIONS
from headwater.pipelines.sql_text.scanner import SqlToken, SqlTokenKind, tokens

__all__ = ["DEPTH_MAX", "NODES_MAX", "SeenNode", "StatementRefusal", "judge_analysed", "judge_nesting", "judge_parsed"]

NODES_MAX: Final = 5_000  # each takes about a millisecond to look at
#: Of parentheses and types within each other. Nothing ends Spark's parser, which takes a minute for 15,000 parentheses;
#: it refuses most of what is nested 300 times itself, and everything else, such as CASE, within seconds.
DEPTH_MAX: Final = 100
SPARK: Final = "org.apache.spark.sql."
_LOGICAL: Final = f"{SPARK}catalyst.plans.logical."
_ANALYSIS: Final = f"{SPARK}catalyst.analysis."
_EXPRESSIONS: Final = f"{SPARK}catalyst.expressions."

#: Operators of queries, before and after the analysis.
_OPERATORS: Final = frozenset(
    _LOGICAL + name
    for name in (
        "Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin",
        "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "Pivot", "Project", "Range", "RebalancePartitions",
        "Repartition", "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union", "Unpivot",
    )
)  # fmt: skip
_PARSED: Final = _OPERATORS | {
    *(_LOGICAL + name for name in ("UnresolvedHint", "UnresolvedWith", "WithWindowDefinition")),
    *(
        _ANALYSIS + name
        for name in (
            "UnresolvedHaving", "UnresolvedInlineTable", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases",
            "UnresolvedTableValuedFunction",
        )
    ),
    _EXPRESSIONS + "PipeOperator",  # an operator, whatever its package
}  # fmt: skip
_PARSED_EXPRESSIONS: Final = frozenset(
    _ANALYSIS + name
    for name in (
        "MultiAlias", "NamedParameter", "UnresolvedAlias", "UnresolvedAttribute", "UnresolvedCollation",
        "UnresolvedExtractValue", "UnresolvedFunction", "UnresolvedGenerator", "UnresolvedOrdinal", "UnresolvedStar",
        "UnresolvedStarExceptOrReplace",
    )
)  # fmt: skip
#: Views are those of Headwater's relations, which are not looked into; relations are of `lake` (`SeenNode.of_lake`).
_VIEW: Final = _LOGICAL + "View"
_ANALYSED: Final = _OPERATORS | {
    *(
        _LOGICAL + name
        for name in ("CTERelationDef", "CTERelationRef", "Deduplicate", "Expand", "ResolvedHint", "Window", "WithCTE")
    ),
    _ANALYSIS + "ResolvedInlineTable",
}
_STORED: Final = frozenset(
    {
        f"{SPARK}execution.datasources.LogicalRelation",
        f"{SPARK}execution.datasources.v2.DataSourceV2Relation",
    }
)
#: Classes that call code of others', or read files; a name of a part of a package ends with a dot.
_DENIED_EXPRESSIONS: Final = frozenset(
    _EXPRESSIONS + name
    for name in (
        "ApplyFunctionExpression", "CallMethodViaReflection", "FromAvro", "FromProtobuf",
        "FunctionTableSubqueryArgumentExpression", "PythonUDAF", "PythonUDF", "PythonUDTF", "ScalaUDF", "SchemaOfAvro",
        "SchemaOfXml", "StructsToXml", "ToAvro", "ToProtobuf", "TryReflect", "UnresolvedPolymorphicPythonUDTF",
        "VariableReference", "XmlToStructs",
    )
)  # fmt: skip
_DENIED_PACKAGES: Final = (_EXPRESSIONS + "xml.",)
#: They call Java, read a file that an option or an argument names, or parse XML.
_DENIED_FUNCTIONS: Final = frozenset(
    {
        "from_avro", "from_protobuf", "from_xml", "java_method", "reflect", "schema_of_avro", "schema_of_xml",
        "to_avro", "to_protobuf", "to_xml", "try_reflect", "xpath", "xpath_boolean", "xpath_double", "xpath_float",
        "xpath_int", "xpath_long", "xpath_number", "xpath_short", "xpath_string",
    }
)  # fmt: skip
#: Functions that stand for a relation.
_TABLE_FUNCTIONS: Final = frozenset(
    {
        "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "range",
        "stack", "variant_explode", "variant_explode_outer",
    }
)  # fmt: skip
#: What the parser makes of syntax, and no list of functions has.
_SYNTAX_FUNCTIONS: Final = frozenset({"when", "struct", "named_struct", "!", "timestampadd", "timestampdiff"})
_SCHEMAS: Final = (TOPICS, LOG, LAKE)
#: Types that have others between `<` and `>`.
_WITH_TYPES: Final = frozenset({"ARRAY", "MAP", "STRUCT"})
_HINT: Final = "/*+"


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node of a plan, or an expression in it.

    Attributes:
        kind: Its class in Java.
        at: The position in the statement's text; None if unknown.
        is_plan: Whether it is an operator, rather than an expression.
        name: The parts of the relation's or the function's name, if it has one.
        has_options: Whether a relation has options, or is a stream.
        is_own: Whether a view is one of Headwater's: a temporary one, or `log.NAME`.
        of_lake: Whether it is directly below the alias of a table of the schema `lake`.
    """

    kind: str
    at: int | None = None
    is_plan: bool = True
    name: tuple[str, ...] = ()
    has_options: bool = False
    is_own: bool = False
    of_lake: bool = False


@dataclass(frozen=True, slots=True)
class StatementRefusal:
    """Why a statement is refused, and the position of the reason; None if unknown."""

    reason: str
    at: int | None


def judge_nesting(text: str) -> StatementRefusal | None:
    """Judge a text before it is parsed.

    >>> judge_nesting("SELECT " + "(" * 100 + "1" + ")" * 100) is None, judge_nesting("SELECT ([" * 51)
    (True, StatementRefusal(reason='the statement is nested more than 100 times', at=457))
    """
    depth = types = 0
    before = ""
    for token, at in _parsed_tokens(text):
        if token.kind is SqlTokenKind.SYMBOL:
            if token.text in "([":
                depth += 1
            elif token.text in ")]":
                depth = max(depth - 1, 0)
            elif token.text == "<" and before in _WITH_TYPES:
                types += 1
            elif token.text == ">":
                types = max(types - 1, 0)
        if depth + types > DEPTH_MAX:
            return StatementRefusal(f"the statement is nested more than {DEPTH_MAX} times", at)
        before = token.text.upper()
    return None


def _parsed_tokens(text: str) -> Iterator[tuple[SqlToken, int]]:
    """The tokens that Spark parses, with their positions: those in hints, too, which are comments to others."""
    for token in tokens(text):
        if token.kind is not SqlTokenKind.COMMENT:
            yield token, token.start
        elif token.text.startswith(_HINT):
            for inner, at in _parsed_tokens(token.text[len(_HINT) :]):
                yield inner, token.start + len(_HINT) + at


def judge_parsed(nodes: Iterable[SeenNode]) -> StatementRefusal | None:
    """Judge a parsed plan.

    >>> relation = _ANALYSIS + "UnresolvedRelation"
    >>> judge_parsed([SeenNode(_LOGICAL + "Project", 0), SeenNode(relation, 14, name=("log", "flights"))]) is None
    True
    >>> judge_parsed([SeenNode(relation, 14, name=("text", "/etc/hostname"))]).reason
    'text.`/etc/hostname` is no relation of the catalog, which has NAME, topics.NAME, log.NAME and lake.NAME'
    """
    return _first(nodes, _parsed_reason)


def judge_analysed(nodes: Iterable[SeenNode]) -> StatementRefusal | None:
    """Judge an analysed plan.

    >>> judge_analysed([SeenNode(f"{SPARK}execution.datasources.LogicalRelation")]).reason
    'a relation that is none of the catalog is read (LogicalRelation)'
    """
    return _first(nodes, _analysed_reason)


def _first(nodes: Iterable[SeenNode], reason_of: Callable[[SeenNode], str | None]) -> StatementRefusal | None:
    for count, node in enumerate(nodes, start=1):
        if count > NODES_MAX:
            return StatementRefusal(f"the statement has more than {NODES_MAX} operators and expressions", None)
        reason = reason_of(node)
        if reason is not None:
            return StatementRefusal(reason, node.at)
    return None


def _parsed_reason(node: SeenNode) -> str | None:
    if node.is_plan:
        if node.kind not in _PARSED:
            return f"only queries are run here, and this is none ({_short(node.kind)})"
        if node.kind == _ANALYSIS + "UnresolvedRelation":
            return _relation_reason(node)
        if node.kind == _ANALYSIS + "UnresolvedTableValuedFunction":
            return _function_reason(node.name, _TABLE_FUNCTIONS)
        return None
    if node.kind in (_ANALYSIS + "UnresolvedFunction", _ANALYSIS + "UnresolvedGenerator"):
        return _function_reason(node.name, FUNCTIONS | _SYNTAX_FUNCTIONS)
    if node.kind in _PARSED_EXPRESSIONS:
        return None
    return _expression_reason(node)


def _analysed_reason(node: SeenNode) -> str | None:
    if not node.is_plan:
        return _expression_reason(node)
    if node.kind == _VIEW:
        return (
            None
            if node.is_own
            else "a view is read that is no topic of the statement; topics.NAME and log.NAME are written as names"
        )
    if node.kind in _STORED:
        return None if node.of_lake else f"a relation that is none of the catalog is read ({_short(node.kind)})"
    return None if node.kind in _ANALYSED else f"only queries are run here, and this is none ({_short(node.kind)})"


def _relation_reason(node: SeenNode) -> str | None:
    shown = ".".join(part if part.isidentifier() else f"`{part}`" for part in node.name)[:200]
    if node.has_options:
        return f"{shown} is read with options, or as a stream"
    if len(node.name) == 1 or (len(node.name) == 2 and node.name[0].lower() in _SCHEMAS):
        return None
    return f"{shown} is no relation of the catalog, which has NAME, topics.NAME, log.NAME and lake.NAME"


def _function_reason(name: tuple[str, ...], known: frozenset[str]) -> str | None:
    """Why a function is refused.

    >>> _function_reason(("Sum",), FUNCTIONS) is None, _function_reason(("reflect",), FUNCTIONS)
    (True, 'the function reflect is not permitted here')
    """
    if len(name) == 1 and name[0].lower() in known and name[0].lower() not in _DENIED_FUNCTIONS:
        return None
    return f"the function {'.'.join(name)[:100]} is not permitted here"


def _expression_reason(node: SeenNode) -> str | None:
    is_known = node.kind.startswith(_EXPRESSIONS) and not node.kind.startswith(_DENIED_PACKAGES)
    if is_known and node.kind not in _DENIED_EXPRESSIONS:
        return None
    return f"an expression is not permitted here ({_short(node.kind)})"


def _short(kind: str) -> str:
    return kind.rpartition(".")[2].rstrip("$")
