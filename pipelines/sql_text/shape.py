"""The shape of an SQL text: the parts on which a streaming query's state depends. Pure.

Two texts that differ only in layout, comments, quotes or the case of names have one shape. An unparsable text is
compared as text, and counts as stateful.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqlglot import Token, exp

__all__ = [
    "SqlShape",
    "group_keys",
    "normal_expression",
    "parsed",
    "parsed_query",
    "readable",
    "sql_shape",
    "tokens_of",
]

STAR = "*"
TEXTS_KEPT: Final = 128
"""Cached trees: a check, a record and a comparison parse the same text within one plan."""
# Behind GROUP BY, sqlglot takes the name for the clause WINDOW.
_GROUP_BY_WINDOW = re.compile(r"(\bGROUP\s+BY\s+)(window)\b", re.IGNORECASE)
_QUOTED_WINDOW = re.compile(r"`window`(?=\()", re.IGNORECASE)
#: Where a name stands in the text: nobody asks, and copies of trees, of which there are many, cost less without it.
_POSITION: Final = ("line", "col", "start", "end")


@dataclass(frozen=True, slots=True)
class SqlShape:
    """The analysis of an SQL text.

    `operators` are the operators with state, each with its `kind`: aggregate (keys, functions), join (how, on, with),
    distinct (columns), and subquery (columns), which feeds the others from within the text. `outputs` are the result
    columns with their expressions, `uses` the columns that the operators read, `reads` the streams in the order of
    their names in the text. `is_known` is false for an unparsable text.
    """

    text: str
    operators: tuple[dict[str, Any], ...] = ()
    outputs: dict[str, str] = field(default_factory=dict)
    uses: frozenset[str] = frozenset()
    reads: tuple[str, ...] = ()
    is_known: bool = True


def sql_shape(text: str, streams: Collection[str]) -> SqlShape:
    """Analyse a text whose `streams` are views of streams; every other table is static.

    >>> shape = sql_shape("SELECT shop, SUM(x) AS s -- all\\n FROM orders GROUP BY 1", ["orders"])
    >>> shape.operators
    ({'kind': 'aggregate', 'keys': ['shop'], 'functions': ['SUM(x)']},)
    >>> shape.text == sql_shape("select shop, sum(x) as s from `orders` group by 1", ["orders"]).text
    True
    >>> sql_shape("SELECT shop, count(*) FROM shops GROUP BY 1", ["orders"]).operators
    ()
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = parsed(text)
        if not isinstance(tree, exp.Query):
            return SqlShape(_plain(text), is_known=False)
        written = _written(tree)
        tree = _normal(tree)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return SqlShape(_plain(text), is_known=False)
    streaming = _streaming_names(tree, streams)
    operators: list[dict[str, Any]] = []
    for select in tree.find_all(exp.Select):
        operators += _of_select(select, streaming, is_root=select is _root_select(tree))
    for union in tree.find_all(exp.SetOperation):
        if union.args.get("distinct") and _reads(union, streaming):
            operators.append({"kind": "distinct", "columns": ["all columns of a UNION"]})
    if all(each["kind"] == "subquery" for each in operators):
        operators.clear()  # nothing keeps state: what feeds it does not matter
    uses = frozenset(column.name for column in _columns_of_state(tree, streaming))
    return SqlShape(written, tuple(operators), _outputs(_root_select(tree)), uses, _read_order(tree, streams))


def readable(text: str) -> str:
    """Rewrite Spark SQL to a form that sqlglot parses.

    >>> readable("SELECT 1 FROM t GROUP BY window(at, '1 hour')")
    "SELECT 1 FROM t GROUP BY `window`(at, '1 hour')"
    """
    return _GROUP_BY_WINDOW.sub(r"\1`\2`", text)


@functools.lru_cache(TEXTS_KEPT)
def parsed(text: str) -> exp.Expr:
    """Parse a text to sqlglot's tree, which is shared: callers must not change it. Raises sqlglot's errors."""
    import sqlglot

    tree = sqlglot.parse_one(readable(text), read="spark")
    for node in tree.walk():
        if node.meta_get(_POSITION[0]) is not None:
            for name in _POSITION:
                node.meta.pop(name, None)
    return tree


@functools.lru_cache(TEXTS_KEPT)
def _tokens(text: str) -> tuple[Token, ...]:
    import sqlglot

    return tuple(sqlglot.Dialect.get_or_raise("spark").tokenize(text))


@functools.lru_cache(TEXTS_KEPT)
def parsed_query(text: str) -> exp.Query | None:
    """Parse a query to a shared tree with names in lower case; None if sqlglot cannot parse it."""
    import sqlglot
    from sqlglot import exp

    try:
        tree = parsed(text)
        if not isinstance(tree, exp.Query):
            return None
        tree = _normal(tree)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return None
    for node in tree.walk():
        node.comments = None
        if isinstance(node, exp.Anonymous):
            node.set("this", node.name.lower())
        if isinstance(node, exp.Join) and (node.kind == "INNER" or (node.side and node.kind == "OUTER")):
            node.set("kind", None)  # INNER and OUTER may be left out
    return tree if isinstance(tree, exp.Query) else None


def is_understood(text: str) -> bool:
    """Return whether sqlglot's tree of a query contains every name, number and text of the query.

    sqlglot silently drops some arguments, such as the third argument of `percentile`.

    >>> is_understood("SELECT k, percentile(v, 0.5) FROM t GROUP BY k")
    True
    >>> is_understood("SELECT k, percentile(v, 0.5, n) FROM t GROUP BY k")
    False
    """
    import sqlglot

    try:
        return not _values_in(readable(text)) - _values_in(parsed(text).sql(dialect="spark"))
    except (sqlglot.errors.SqlglotError, RecursionError):
        return False


def _values_in(text: str) -> Counter[str]:
    """Count names of columns, numbers and texts by their occurrences."""
    from sqlglot import TokenType

    tokens = _tokens(text)
    values = {TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.STRING}
    # A name before a parenthesis is a function's, which may be written in another way.
    return Counter(
        token.text.lower()
        for token, following in zip(tokens, (*tokens[1:], None), strict=True)
        if token.token_type in values and (following is None or following.token_type is not TokenType.L_PAREN)
    )


def tokens_of(text: str) -> str:
    """Return a text without layout and comments; a text without tokens is returned unchanged.

    Unlike `SqlShape.text`, the result is no translation: parts that sqlglot does not fully understand remain unchanged.

    >>> tokens_of("SELECT  a -- all\\n FROM  `t`, 'x  y'")
    "SELECT a FROM `t` , 'x  y'"
    """
    import sqlglot

    try:
        tokens = _tokens(text)
    except (sqlglot.errors.SqlglotError, RecursionError):
        return text
    return " ".join(text[token.start : token.end + 1] for token in tokens) or text


def normal_expression(text: str) -> str:
    """Normalize layout, comments and the case of names in an expression; in an unparsable one, only white space.

    >>> normal_expression("to_date( At )") == normal_expression("TO_DATE(`at`) -- day")
    True
    """
    import sqlglot

    try:
        return _sql(_normal(sqlglot.parse_one(text, read="spark")))
    except (sqlglot.errors.SqlglotError, RecursionError):
        return _plain(text)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _written(tree: exp.Expr) -> str:
    """Return the text with column names as written: they are the names of the rows."""
    return _QUOTED_WINDOW.sub("WINDOW", tree.sql("spark", comments=False, identify=True))


def _normal(tree: exp.Expr) -> exp.Expr:
    """Return a copy with all names in lower case, as Spark compares them."""
    from sqlglot import exp

    tree = tree.copy()
    for name in tree.find_all(exp.Identifier):
        name.set("this", str(name.this).lower())
        name.set("quoted", False)
    return tree


def _sql(node: exp.Expr) -> str:
    return _QUOTED_WINDOW.sub("WINDOW", node.sql("spark", comments=False))


def _streaming_names(tree: exp.Expr, streams: Collection[str]) -> set[str]:
    """Return the names of streams: the inputs' views, and common table expressions that read a stream."""
    from sqlglot import exp

    names = {name.lower() for name in streams}  # one that an expression shadows counts on: it often reads it
    grown = True
    while grown:
        grown = False
        for cte in tree.find_all(exp.CTE):
            if cte.alias not in names and _reads(cte.this, names):
                names.add(cte.alias)
                grown = True
    return names


def _reads(node: exp.Expr, streaming: Collection[str]) -> bool:
    from sqlglot import exp

    return any(not table.db and table.name in streaming for table in node.find_all(exp.Table))


def _root_select(tree: exp.Expr) -> exp.Expr:
    """Return the SELECT that defines the columns of the text."""
    from sqlglot import exp

    while isinstance(tree, exp.Subquery | exp.SetOperation):
        tree = tree.this
    return tree


def _of_select(select: exp.Select, streaming: Collection[str], *, is_root: bool) -> Iterator[dict[str, Any]]:
    """Yield the operators of one SELECT, without those of nested ones."""
    sources = _sources(select)
    if not any(_reads(source, streaming) for source, _ in sources):
        return
    before = False
    for source, join in sources:
        is_stream = _reads(source, streaming)
        if join is not None and before and is_stream:
            yield _join(source, join)
        before = before or is_stream
    functions = sorted({_sql(function) for function in _functions(select)})
    keys = [_sql(key) for key in group_keys(select)]
    if keys or functions:
        yield {"kind": "aggregate", "keys": keys, "functions": functions}
    if select.args.get("distinct"):
        yield {"kind": "distinct", "columns": [_sql(column) for column in select.expressions]}
    if not is_root:
        yield {"kind": "subquery", "columns": [_sql(column) for column in select.expressions]}


def _sources(select: exp.Select) -> list[tuple[exp.Expr, exp.Join | None]]:
    found: list[tuple[exp.Expr, exp.Join | None]] = []
    first = select.args.get("from_")
    if first is not None:
        found.append((first.this, None))
    found += [(join.this, join) for join in select.args.get("joins") or ()]
    return found


def _join(source: exp.Expr, join: exp.Join) -> dict[str, Any]:
    using = [column.name for column in join.args.get("using") or ()]
    on = join.args.get("on")
    how = " ".join(part for part in (join.method, join.side, join.kind) if part) or "INNER"
    condition = f"USING ({', '.join(using)})" if using else _sql(on) if on is not None else "true"
    return {"kind": "join", "how": how, "with": source.alias_or_name, "on": condition}


def _own(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield every expression of a SELECT's columns, HAVING and ORDER BY, without nested queries."""
    from sqlglot import exp

    parts = [*select.expressions, select.args.get("having"), select.args.get("order")]
    for part in parts:
        if part is not None:
            yield from part.walk(prune=lambda node: isinstance(node, exp.Query))


def _functions(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield calls of aggregate functions; with GROUP BY also calls of unknown functions."""
    from sqlglot import exp

    grouped = select.args.get("group") is not None
    keys: set[str] | None = None
    for node in _own(select):
        is_unknown = False
        if grouped and isinstance(node, exp.Anonymous):
            keys = {_sql(key) for key in group_keys(select)} if keys is None else keys
            is_unknown = _sql(node) not in keys
        if (isinstance(node, exp.AggFunc) or is_unknown) and not isinstance(node.parent, exp.Window):
            yield node


def group_keys(select: exp.Select) -> list[exp.Expr]:
    """Return the grouping expressions; column numbers and aliases are resolved to their columns."""
    from sqlglot import exp

    group = select.args.get("group")
    if group is None:
        return []
    named = {column.alias: column.unalias() for column in select.expressions if isinstance(column, exp.Alias)}
    keys = []
    for key in group.expressions:
        if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(select.expressions):
            keys.append(select.expressions[int(key.name) - 1].unalias())
        elif isinstance(key, exp.Column) and not key.table and key.name in named:
            keys.append(named[key.name])
        else:
            keys.append(key)
    if group.args.get("all"):
        keys += [c.unalias() for c in select.expressions if not isinstance(c, exp.AggFunc) and not c.find(exp.AggFunc)]
    elif any(value for name, value in group.args.items() if name != "expressions"):
        rest = group.copy()
        rest.set("expressions", [])
        keys.append(rest)  # CUBE, ROLLUP, GROUPING SETS
    return keys


def _columns_of_state(tree: exp.Expr, streaming: Collection[str]) -> Iterator[exp.Column]:
    """Yield the columns that stream joins, groups, aggregate functions and DISTINCT read."""
    from sqlglot import exp

    for select in tree.find_all(exp.Select):
        sources = _sources(select)
        if not any(_reads(source, streaming) for source, _ in sources):
            continue
        parts: list[exp.Expr] = [*_functions(select), *group_keys(select)]
        parts += [join.args["on"] for _, join in sources if join is not None and join.args.get("on") is not None]
        if select.args.get("distinct"):
            parts += select.expressions
        for part in parts:
            yield from part.find_all(exp.Column)
        for _, join in sources:
            for name in (join.args.get("using") or ()) if join is not None else ():
                yield exp.column(name.name)


def _outputs(select: exp.Expr) -> dict[str, str]:
    from sqlglot import exp

    found = {}
    for column in select.expressions if isinstance(select, exp.Select) else ():
        found[STAR if column.is_star else column.alias_or_name] = _sql(column.unalias())
    return found


def _read_order(tree: exp.Expr, streams: Sequence[str] | Collection[str]) -> tuple[str, ...]:
    from sqlglot import exp

    wanted = {name.lower() for name in streams}
    found = [table.name for table in tree.find_all(exp.Table, bfs=False) if not table.db and table.name in wanted]
    return tuple(dict.fromkeys(found))
