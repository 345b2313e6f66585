"""The nodes of Catalyst's plans as `query_judge` takes them. Every access to a node is a call over py4j.

Depends on `TreeNode.children`, `origin.startIndex`, `QueryPlan.expressions`, and on these fields, which hold plans or
expressions that are no children: `SubqueryExpression.plan`, `UnresolvedStarExceptOrReplace.replacements`,
`UnresolvedWith.cteRelations`, `WithWindowDefinition.windowDefinitions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.spark import jvm
from headwater.pipelines.sql.query_judge import SeenNode, StatementRefusal, judge_analysed, judge_parsed
from headwater.pipelines.sql.relations import LAKE
from headwater.pipelines.sql.shared_views import LOG, log_view_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["refusal_of_frame", "refusal_of_text"]

_WITH_PLANS: Final = frozenset({"Exists", "LateralSubquery", "ListQuery", "ScalarSubquery"})
_WITHOUT_CHILDREN: Final = frozenset(
    {"AttributeReference", "Literal", "NamedParameter", "OuterReference", "UnresolvedAttribute", "UnresolvedStar"}
)


def refusal_of_text(spark: SparkSession, text: str) -> StatementRefusal | None:
    """Judge a statement as Spark parses it; nothing is analysed. Raises Spark's ParseException."""
    return judge_parsed(_seen(jvm.parsed_plan(spark, text)))


def refusal_of_frame(frame: DataFrame) -> StatementRefusal | None:
    """Judge a frame's analysed plan; nothing runs."""
    return judge_analysed(_seen(jvm.analyzed_plan(frame)))


def _seen(plan: Any) -> Iterator[SeenNode]:
    """The nodes of a plan, those above first; not those of views, which are Headwater's own."""
    waiting: list[tuple[Any, bool, bool]] = [(plan, True, False)]
    while waiting:
        node, is_plan, of_lake = waiting.pop()
        kind = str(node.getClass().getName())
        short = kind.rpartition(".")[2]
        start = node.origin().startIndex()
        yield SeenNode(
            kind,
            int(start.get()) if start.isDefined() else None,
            is_plan,
            _name(node, short),
            short == "UnresolvedRelation" and (bool(node.isStreaming()) or not node.options().isEmpty()),
            short == "View" and (bool(node.isTempView()) or _is_log_view(node.desc())),
            of_lake,
        )
        if is_plan:
            if short == "View":
                continue
            is_lake = short == "SubqueryAlias" and [part.lower() for part in _parts(node.identifier().qualifier())][
                -1:
            ] == [LAKE]
            waiting += [(child, True, is_lake) for child in _items(node.children())]
            waiting += [(each, False, False) for each in _items(node.expressions())]
            waiting += [(each, is_own, False) for each, is_own in _hidden(node, short)]
        elif short not in _WITHOUT_CHILDREN:
            waiting += [(each, is_own, False) for each, is_own in _hidden(node, short)]
            waiting += [(child, False, False) for child in _items(node.children())]
            if short in _WITH_PLANS:
                waiting.append((node.plan(), True, False))


def _is_log_view(definition: Any) -> bool:
    """Whether a view of the session catalog is one that `shared_views` made, by its `CatalogTable`."""
    schema, text = definition.identifier().database(), definition.viewText()
    name = str(definition.identifier().table())
    return bool(
        schema.isDefined() and str(schema.get()) == LOG and text.isDefined() and str(text.get()) == log_view_text(name)
    )


def _name(node: Any, short: str) -> tuple[str, ...]:
    if short == "UnresolvedRelation":
        return tuple(_parts(node.multipartIdentifier()))
    if short == "UnresolvedFunction":
        return tuple(_parts(node.nameParts()))
    if short == "UnresolvedTableValuedFunction":
        return tuple(_parts(node.name()))
    if short == "UnresolvedGenerator":
        name = node.name()
        return (str(name.unquotedString()),)
    return ()


def _hidden(node: Any, short: str) -> Iterator[tuple[Any, bool]]:
    """Plans (True) and expressions (False) that a node holds, and that are neither children nor expressions of it."""
    if short == "UnresolvedWith":
        for relation in _items(node.cteRelations()):
            yield relation._2(), True
    elif short == "UnresolvedStarExceptOrReplace":
        replacements = node.replacements()
        for each in _items(replacements.get()) if replacements.isDefined() else ():
            yield each, False
    elif short == "WithWindowDefinition":
        for definition in _items(node.windowDefinitions().values().toSeq()):
            yield definition, False


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(position) for position in range(sequence.size())]


def _parts(sequence: Any) -> list[str]:
    return [str(part) for part in _items(sequence)]
