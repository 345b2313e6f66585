"""The nodes of Catalyst's plans as `query_judge` takes them. Every access to a node is a call over py4j.

Depends on `TreeNode.children`, `origin.startIndex`, `QueryPlan.expressions`, and on these fields, which hold plans or
expressions that are no children: `SubqueryExpression.plan`, `UnresolvedStarExceptOrReplace.replacements`,
`UnresolvedWith.cteRelations`, `WithWindowDefinition.windowDefinitions`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.spark import jvm
from headwater.pipelines.sql.lake_tables import LAKE
from headwater.pipelines.sql.query_judge import SeenNode, StatementRefusal, judge_analysed, judge_parsed
from headwater.pipelines.sql.shared_views import log_view_text
from headwater.pipelines.sql_text.scanner import Name

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


def refusal_of_frame(frame: DataFrame, made: Collection[Name]) -> StatementRefusal | None:
    """Judge a frame's analysed plan; nothing runs.

    `made` are the names with a schema, in lower case, that stand for relations of Headwater's, made for the statement:
    clients of other protocols may have made others.
    """
    return judge_analysed(_seen(jvm.analyzed_plan(frame), made))


def _seen(plan: Any, made: Collection[Name] = ()) -> Iterator[SeenNode]:
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
            short == "View" and _is_own_view(node, made),
            of_lake,
        )
        if is_plan:
            if short == "View":
                continue
            is_lake = short == "SubqueryAlias" and _is_own_table(node.identifier(), made)
            waiting += [(child, True, is_lake) for child in _items(node.children())]
            waiting += [(each, False, False) for each in _items(node.expressions())]
            waiting += [(each, is_own, False) for each, is_own in _hidden(node, short)]
        elif short not in _WITHOUT_CHILDREN:
            waiting += [(each, is_own, False) for each, is_own in _hidden(node, short)]
            waiting += [(child, False, False) for child in _items(node.children())]
            if short in _WITH_PLANS:
                waiting.append((node.plan(), True, False))


def _is_own_view(view: Any, made: Collection[Name]) -> bool:
    """Whether a view is Headwater's: the session's own, which no query can make, or a shared one of this statement."""
    definition = view.desc()
    schema = definition.identifier().database()
    if not schema.isDefined():
        return bool(view.isTempView())
    name = (str(schema.get()).lower(), str(definition.identifier().table()).lower())
    if name not in made:
        return False
    text = definition.viewText()
    return bool(view.isTempView()) or (text.isDefined() and str(text.get()) == log_view_text(name[1]))


def _is_own_table(alias: Any, made: Collection[Name]) -> bool:
    """Whether an `AliasIdentifier` names a table of `lake` that is where Headwater knows it to be."""
    schema = [part.lower() for part in _parts(alias.qualifier())][-1:]
    return schema == [LAKE] and (LAKE, str(alias.name()).lower()) in made


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
