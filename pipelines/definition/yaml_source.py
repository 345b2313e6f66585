"""Parses YAML to plain values, each with its line and column.

PyYAML's node graph is used instead of its loader, because only nodes have positions. Every walk has a limit, so a
hostile file (deep nesting, an alias that expands to billions of nodes, a duplicate key) is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from headwater.pipelines.errors import PipelineError, Problem

FILE_BYTES_MAX = 256 * 1024  # a pipeline of 200 stages is about 100 KiB
NESTING_MAX = 20  # the deepest field of the format is at 6; JSON in options may add some
UNQUOTED_SHOWN_MAX = 80  # characters of a value in a message
NODES_MAX = 20_000  # counted after aliases are expanded: this is what defuses an alias bomb

# A plain scalar with variables, as it is written inside braces or brackets.
_UNQUOTED = re.compile(r"(?:\$\{[^\s{}]*\}|[^\s,\[\]{}])+")

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the file, counted from 1. `block` is the line where the text of a literal block (`|`) begins.

    `file` is '' for the document's own file, and the name of an included file.
    """

    line: int
    column: int
    block: int = 0
    file: str = ""


@dataclass(slots=True)
class Document:
    """The values of a file and, for each path, the marks of the value and of its key.

    `references` are the secrets named in the text, each with the place of its first reference.
    """

    file: str
    values: Any = field(default=None, repr=False)  # may hold a password that somebody wrote into the file
    marks: dict[Loc, Mark] = field(default_factory=dict, repr=False)
    keys: dict[Loc, Mark] = field(default_factory=dict, repr=False)
    references: dict[str, Loc] = field(default_factory=dict)

    def mark(self, loc: Loc) -> Mark:
        """Mark of the value at `loc`, or of the nearest value that encloses it."""
        while loc:
            if loc in self.marks:
                return self.marks[loc]
            loc = loc[:-1]
        return self.marks.get((), Mark(1, 1))

    def key_mark(self, loc: Loc) -> Mark:
        """Mark of the key at `loc` (the field's own name), or of the nearest value that encloses it."""
        return self.keys.get(loc) or self.mark(loc)

    def place(self, loc: Loc) -> Loc:
        """Convert a path in the models to a path in the file: a single value in place of a list has no index.

        >>> Document("f", {"from": {"topic": "t"}}).place(("from", 0, "topic"))
        ('from', 'topic')
        """
        found: Loc = ()
        value = self.values
        for part in loc:
            if part == 0 and not isinstance(value, list):
                continue
            found = (*found, part)
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                value = []  # not in the file: the rest of the path is taken as it is
        return found

    def take_marks(self, source: Loc, target: Loc) -> None:
        """Give the values at `target` the positions of the values at `source`."""
        for marks in (self.marks, self.keys):
            for loc in [loc for loc in marks if loc[: len(target)] == target]:
                del marks[loc]
            for loc in [loc for loc in marks if loc[: len(source)] == source]:
                marks[(*target, *loc[len(source) :])] = marks[loc]

    def problem(self, loc: Loc, message: str, hint: str = "", *, at_key: bool = False) -> Problem:
        """Return a problem at a position."""
        mark = self.key_mark(loc) if at_key else self.mark(loc)
        return Problem(mark.file or self.file, mark.line, mark.column, field_name(loc), message, hint)


def field_name(loc: Loc) -> str:
    """Format a path as users write it.

    >>> field_name(("stages", 0, "from", "topic"))
    'stages[0].from.topic'
    """
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def read(text: str, file: str) -> Document:
    """Parse `text`. Raises PipelineError for text that is not YAML, is too large, nests too deep, or repeats a key."""
    if len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        raise PipelineError([Problem(file, 0, 0, "", f"the file is larger than {FILE_BYTES_MAX} bytes", "split it")])
    try:
        _check_nesting(text, file)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        if unquoted := _unquoted_variable(text, file, error):
            raise PipelineError([unquoted]) from None
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise PipelineError([Problem(file, line, column, "", f"not valid YAML: {what}")]) from None
    except yaml.YAMLError as error:
        raise PipelineError([Problem(file, 0, 0, "", f"not valid YAML: {str(error).splitlines()[0]}")]) from None
    document = Document(file)
    if node is None:
        raise PipelineError([Problem(file, 1, 1, "", "the file is empty", "start with `pipeline: NAME`")])
    builder = _Builder(document)
    document.values = builder.build(node, ())
    if builder.problems:
        raise PipelineError(builder.problems)
    return document


def _unquoted_variable(text: str, file: str, error: yaml.MarkedYAMLError) -> Problem | None:
    """The problem of a `${name}` inside braces or brackets, where YAML reads `{` as the start of a mapping."""
    mark = error.problem_mark
    if mark is None or text[mark.index - 1 : mark.index + 1] != "${":
        return None
    start = mark.index - 1
    while start > 0 and text[start - 1] not in " \t\n,[]{}":
        start -= 1
    match = _UNQUOTED.match(text, start)
    if match is None or match.end() <= mark.index:
        return None  # the brace is not closed
    shown = match[0].rstrip(":")[:UNQUOTED_SHOWN_MAX]
    what = f"{shown} is not quoted: inside braces and brackets, YAML reads its brace as a mapping"
    return Problem(file, mark.line + 1, mark.column + 1 - (mark.index - start), "", what, f'quote it: "{shown}"')


def _check_nesting(text: str, file: str) -> None:
    """Check the nesting with the event parser, which does not recurse, before the recursive composer runs."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > NESTING_MAX:
                mark = event.start_mark
                place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
                raise PipelineError([Problem(file, *place, "", f"nested deeper than {NESTING_MAX} levels")])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Builder:
    """Builds plain values from nodes; collects problems, so that all are reported at once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._nodes = 0
        self._scalars = yaml.SafeLoader("")

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        self._nodes += 1
        if self._nodes > NODES_MAX or len(loc) > NESTING_MAX:
            mark = node.start_mark
            limit = f"{NODES_MAX} values" if self._nodes > NODES_MAX else f"{NESTING_MAX} levels"
            what = f"more than {limit} once aliases are expanded"
            place = (mark.line + 1, mark.column + 1)
            raise PipelineError([Problem(self.document.file, *place, "", what, "write fewer aliases")])
        block = node.start_mark.line + 2 if getattr(node, "style", None) == "|" else 0
        self.document.marks[loc] = Mark(node.start_mark.line + 1, node.start_mark.column + 1, block)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*loc, index)) for index, child in enumerate(node.value)]
        if node.tag in _NUMBERS and ":" in node.value:
            return str(node.value)  # 1:47 is text, as in YAML 1.2; PyYAML's 1.1 takes it for 107, in base 60
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError):
            self.problems.append(
                self.document.problem(loc, f"cannot read the value {str(node.value)[:60]!r}", "quote it")
            )
            return None

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            mark = Mark(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if key is None:
                self.problems.append(
                    Problem(
                        self.document.file,
                        mark.line,
                        mark.column,
                        field_name(loc),
                        "a field's name must be text",
                        'a variable is written "${name}", in quotes' if isinstance(key_node, yaml.MappingNode) else "",
                    )
                )
                continue
            place = (*loc, key)
            if key in values:
                first = self.document.keys[place].line
                self.problems.append(
                    Problem(
                        self.document.file,
                        mark.line,
                        mark.column,
                        field_name(place),
                        f"'{key}' is defined twice (first on line {first})",
                        "remove one",
                    )
                )
                continue
            self.document.keys[place] = mark
            values[key] = self.build(value_node, place)
        return values
