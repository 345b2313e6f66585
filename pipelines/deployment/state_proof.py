"""Proof that the state in a checkpoint equals the state that the changed steps of a stage would make. Pure.

A stage continues with its state only with this proof: all steps up to the last stateful operator are the same, and the
later steps use the same columns of that operator in the same order. Spark stores aggregates and join rows by position,
and omits columns that no later step uses. So swapping two sums, or no longer selecting a column, changes the state as
another function would. Anything unknown to this module counts as part of the state.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.pipelines.sql_text.functions import AGGREGATES
from headwater.pipelines.sql_text.shape import TEXTS_KEPT, group_keys, is_understood, parsed_query

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["StateForm", "state_form"]

_ALL = "*"


@dataclass(frozen=True, slots=True)
class StateForm:
    """The form of a state: two lists of steps with equal forms make the same state.

    `before` are the steps before the last stateful operator; `core` is that operator without its output columns; `keys`
    and `values` are its stored columns, in order; `behind` are later steps that could not be analysed.
    """

    before: tuple[str, ...]
    core: tuple[str, ...]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    behind: tuple[str, ...] = ()

    def difference(self, other: StateForm) -> str:
        """The first differing part, in words; '' if none."""
        if self.before != other.before:
            return "what comes before the operator that keeps state"
        if self.core != other.core:
            return "what the operator that keeps state reads, or how"
        if self.keys != other.keys:
            return "the keys of the state"
        if self.values != other.values:
            return "the values that the state holds, or their order"
        return "what follows the operator that keeps state" if self.behind != other.behind else ""


def state_form(steps: Sequence[Mapping[str, Any]], last: int | None) -> StateForm:
    """The form of the steps on the stream; `last` is the last step that is known to keep state.

    Without `last`, any step may keep state.

    >>> def form(sql):
    ...     return state_form([{"kind": "sql", "text": sql}], 0)
    >>> form("SELECT k, sum(a) AS s FROM t GROUP BY k") == form("SELECT k AS c, sum(a) * 2 FROM t GROUP BY 1")
    True
    >>> form("SELECT percentile(a, 0.5) FROM t") == form("SELECT percentile(a, 0.5, b) FROM t")
    False
    >>> form("SELECT sum(a), sum(b) FROM t").difference(form("SELECT sum(b), sum(a) FROM t"))
    'the values that the state holds, or their order'
    """
    if last is None:
        return StateForm(tuple(map(_whole, steps)), (), (), ())
    before = tuple(_whole(step) for step in steps[:last])
    step, rest = steps[last], steps[last + 1 :]
    if step["kind"] == "deduplicate":
        # It stores only the values of its columns, regardless of later steps.
        behind = () if all(_is_projection(each) for each in rest) else tuple(_whole(each) for each in rest)
        return StateForm(before, (_whole(step),), (), (), behind)
    made = _operator(step) if step["kind"] == "sql" else None
    if made is None:
        return StateForm(before, (_whole(step),), (), (), tuple(_whole(each) for each in rest))
    values = _values(made, rest)
    if values is None:
        # The later steps cannot be analysed: neither they nor their input may change.
        behind = (str(list(made.given.items())), *(_whole(each) for each in rest))
        return StateForm(before, made.core, made.keys, made.values(made.given), behind)
    return StateForm(before, made.core, made.keys, values)


def _values(made: _Operator, rest: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """The state's columns with these later steps; None if they cannot be analysed.

    Spark removes unused columns. The remaining columns have the order of the operator's own columns or, where Spark has
    merged the operator with a later step, the order of that step's columns: both orders must be the same. Spark does
    not merge across a HAVING.
    """
    steps: list[Mapping[str, tuple[str, ...]]] = []
    names: Collection[str] = made.given
    for each in rest:
        passed = _passed(each, {name: (name,) for name in names})
        if passed is None:
            return None
        steps.append(passed)
        names = passed
    given: list[Mapping[str, tuple[str, ...]]] = [made.given]
    for step in steps:
        given.append({name: _all(given[-1], columns) for name, columns in step.items()})
    orders = []
    for step in reversed(steps):
        orders.append(_distinct(_all(given.pop(), names)))
        read = {*_all(step, names)}
        names = [name for name in given[-1] if name in read]
    values = made.values(names)
    is_one_order = made.is_sorted or made.always or all(order == values for order in orders)
    return values if is_one_order else None


def _all(given: Mapping[str, tuple[str, ...]], names: Collection[str]) -> tuple[str, ...]:
    return tuple(value for name in names for value in given[name])


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _whole(step: Mapping[str, Any]) -> str:
    """A step as one text, normalized for layout, comments and the case of names."""
    if step["kind"] != "sql":
        return str(sorted((name, value) for name, value in step.items()))
    text = step.get("source", step["text"])
    tree = parsed_query(text)
    return text if tree is None or not is_understood(text) else repr(tree)


@dataclass(frozen=True, slots=True)
class _Operator:
    """One stateful SELECT; `given` are its columns, each with the state values that it is computed from.

    `always` are the values of its HAVING; `is_sorted` marks a state whose values are not in the order of their use.
    """

    core: tuple[str, ...]
    keys: tuple[str, ...]
    given: Mapping[str, tuple[str, ...]]
    always: tuple[str, ...]
    is_sorted: bool

    def values(self, used: Collection[str]) -> tuple[str, ...]:
        """The state's values, in order, if these columns are used."""
        found = _all(self.given, [column for column in self.given if column in used])
        distinct = _distinct([*found, *self.always])
        return tuple(sorted(distinct)) if self.is_sorted else distinct


class _OpaqueError(Exception):
    """An expression that the optimizer may rewrite in ways unknown to this module."""


def _operator(step: Mapping[str, Any]) -> _Operator | None:
    return _operator_of(step.get("source", step["text"]))


@functools.lru_cache(TEXTS_KEPT)
def _operator_of(text: str) -> _Operator | None:
    from sqlglot import exp

    tree = parsed_query(text) if is_understood(text) else None
    if not isinstance(tree, exp.Select) or tree.args.get("distinct") or not _is_plain_group(tree):
        return None
    if any(select.args.get("distinct") for select in tree.find_all(exp.Select)) or tree.find(exp.SetOperation):
        return None
    keys = [repr(key) for key in group_keys(tree)]
    having = _thresholds(tree)
    is_aggregate = bool(keys) or having is not None or any(_aggregates(column) for column in tree.expressions)
    if not is_aggregate and len(list(tree.find_all(exp.Select))) > 1:
        return None  # the operator is in a subquery
    given: dict[str, tuple[str, ...]] = {}
    is_opaque = False
    for column in tree.expressions:
        try:
            leaves = list(_leaves(column.unalias(), keys, is_aggregate=is_aggregate))
        except _OpaqueError:
            leaves, is_opaque = [f"as it is: {column.unalias()!r}"], True
        name = _ALL if column.is_star else column.alias_or_name or repr(column)
        if name in given:
            return None
        given[name] = tuple(leaves)
    rest = tree.copy()
    rest.set("expressions", [])
    if having is not None:
        rest.set("having", None)
    if group := rest.args.get("group"):
        # A name after GROUP BY may be an input column or an alias: both the name and its expression count.
        written = [repr(key) for key in group.expressions if not isinstance(key, exp.Literal)]
        group.set("expressions", [])
        keys += [text for text in written if text not in keys]
    core = [repr(rest)]
    if is_opaque:
        core += [column.alias_or_name for column in tree.expressions]  # a column may refer to another by name
    # A join stores its rows' columns in the order of the input.
    return _Operator(tuple(core), tuple(keys), given, tuple(having or ()), is_sorted=not is_aggregate)


def _is_plain_group(select: exp.Select) -> bool:
    """Whether GROUP BY lists plain expressions, without CUBE, ALL and so on."""
    group = select.args.get("group")
    return group is None or not any(value for name, value in group.args.items() if name != "expressions")


def _thresholds(select: exp.Select) -> list[str] | None:
    """The aggregates of a HAVING that only compares aggregates with numbers; None for any other or no HAVING.

    Only such a condition is applied after the state: Spark applies a condition on a key before it, which limits the
    groups.
    """
    from sqlglot import exp

    having = select.args.get("having")
    if having is None:
        return None
    conditions = list(having.this.flatten()) if isinstance(having.this, exp.And) else [having.this]
    found = []
    for each in conditions:
        condition = each.unnest()
        is_comparison = isinstance(condition, exp.GT | exp.GTE | exp.LT | exp.LTE)
        if not is_comparison or not _is_aggregate(condition.this) or not _is_number(condition.expression):
            return None
        found.append(repr(condition.this))
    return found


def _is_number(node: exp.Expr) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.Literal) and not node.is_string


def _is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is an aggregate call, including its FILTER or IGNORE NULLS."""
    from sqlglot import exp

    while isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        node = node.this
    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES)


def _aggregates(node: exp.Expr) -> bool:
    return any(_is_aggregate(each) for each in node.walk())


def _leaves(node: exp.Expr, keys: Sequence[str], *, is_aggregate: bool) -> Iterator[str]:
    """State values that an expression uses, in Spark's order. Raises _OpaqueError if it cannot be analysed.

    Accepted expressions use each of their leaves: the optimizer removes none.
    """
    from sqlglot import exp

    if repr(node) in keys or _is_number(node):
        return  # keys are stored whether or not they are selected
    is_leaf = _is_aggregate(node) if is_aggregate else isinstance(node, exp.Column | exp.Star)
    if is_leaf:
        yield repr(node)
    elif isinstance(node, exp.Dot) and repr(node.this) in keys and isinstance(node.expression, exp.Identifier):
        return
    elif _is_seen_through(node):
        for part in (node.this, node.expression if isinstance(node, exp.Binary) else None):
            if part is not None:
                yield from _leaves(part, keys, is_aggregate=is_aggregate)
    else:
        raise _OpaqueError


def _is_seen_through(node: exp.Expr) -> bool:
    from sqlglot import exp

    if isinstance(node, exp.Round):
        return all(_is_number(value) for name, value in node.args.items() if name != "this" and value)
    plain = exp.Paren, exp.Neg, exp.Abs, exp.Upper, exp.Lower, exp.Add, exp.Sub, exp.Mul, exp.Div
    return isinstance(node, plain)


def _computed(step: Mapping[str, Any]) -> exp.Select | None:
    """The SELECT of a step that only computes columns; None for any other step."""
    from sqlglot import exp

    tree = parsed_query(step.get("source", step["text"])) if step["kind"] == "sql" else None
    if not isinstance(tree, exp.Select):
        return None
    done = {name for name, value in tree.args.items() if value} - {"expressions", "from_", "from", "kind"}
    if done or len(list(tree.find_all(exp.Table))) != 1:
        return None
    for column in tree.expressions:
        if column.is_star and (not isinstance(column, exp.Star) or any(column.args.values())):
            return None
        try:
            list(_leaves(column.unalias(), (), is_aggregate=False))
        except _OpaqueError:
            return None
    return tree


def _is_projection(step: Mapping[str, Any]) -> bool:
    return _computed(step) is not None


def _passed(step: Mapping[str, Any], given: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]] | None:
    """The columns of a step that only computes columns from `given`; None for any other step."""
    from sqlglot import exp

    tree = _computed(step)
    if tree is None:
        return None
    found: dict[str, tuple[str, ...]] = {}
    for column in tree.expressions:
        if column.is_star:
            if found.keys() & given.keys():
                return None
            found |= given
            continue
        names = [each.name for each in column.find_all(exp.Column)]
        name_given = column.alias_or_name
        if not name_given or name_given in found or any(name not in given for name in names):
            return None
        found[name_given] = tuple(value for name in names for value in given[name])
    return found
