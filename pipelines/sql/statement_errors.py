"""Spark's errors about a statement: one line, with line and column, and the near miss of an unknown name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.datasource.errors import is_source_failure
from headwater.pipelines.errors import nearest
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql_text.scanner import Name, Statement, tokens

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

__all__ = [
    "NOT_FOUND",
    "StatementError",
    "explained",
    "is_mistake",
    "missing_format",
    "missing_relation",
    "missing_relation_of_plan",
]

NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_COLUMN: Final = ("UNRESOLVED_COLUMN", "UNRESOLVED_MAP_KEY")
_PLACE: Final = re.compile(r"\(?line (\d+),? pos (\d+)\)?")
_FORMAT: Final = re.compile(r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: (\w+)")
_IN_PLAN: Final = re.compile(rf"\[{NOT_FOUND}\] The table or view ((?:`(?:[^`]|``)*`\.?)+) cannot be found")


class StatementError(Exception):
    """A statement failed: `message` is one line, `place` is line and column in the text that the user gave, if known.

    `is_users` is true if the statement is wrong, and false if a correct statement failed.
    """

    def __init__(self, message: str, place: tuple[int, int] | None = None, *, is_users: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.is_users = is_users

    def line(self, file: str = "") -> str:
        """The error with its place, as compilers write it.

        >>> StatementError("there is no column 'a'", (2, 8)).line("daily.sql")
        "daily.sql:2:8: there is no column 'a'"
        >>> StatementError("there is no column 'a'", (2, 8)).line()
        "line 2, column 8: there is no column 'a'"
        """
        if self.place is None:
            return f"{file}: {self.message}" if file else self.message
        line, column = self.place
        return f"{file}:{line}:{column}: {self.message}" if file else f"line {line}, column {column}: {self.message}"


def name_of(quoted: str) -> Name:
    """Divide a name as Spark's errors quote it.

    >>> name_of("`log`.`a.b`"), name_of("x")
    (('log', 'a.b'), ('x',))
    """
    return tuple(token.name for token in tokens(quoted) if token.text != ".")


def missing_relation(error: PySparkException) -> Name | None:
    """The name of the relation that Spark misses; None for another error."""
    if error.getCondition() != NOT_FOUND:
        return None
    return name_of((error.getMessageParameters() or {}).get("relationName", "")) or None


def missing_relation_of_plan(text: str) -> Name | None:
    """The name of the relation that EXPLAIN misses: its result is then the error's text."""
    found = _IN_PLAN.search(text)
    return name_of(found[1]) if found else None


def missing_format(error: Exception) -> str | None:
    """The line for a session that lacks the code of Delta or of `format("headwater")`; None for another error.

    Spark's error for a missing format has a class of PySpark's in some calls, and Py4J's in others.
    """
    from headwater.pipelines.spark.session import DELTA_PACKAGE

    found = _FORMAT.search(str(error))
    if found is None:
        return None
    if found[1].lower() == "delta":
        return f"the session has no Delta: start it with spark.jars.packages={DELTA_PACKAGE} and Delta's settings"
    if found[1].lower() == "headwater":
        return (
            "Spark's Python has no Headwater: set PYSPARK_PYTHON to an interpreter that has it, and start Spark again"
        )
    return None


def is_mistake(error: Exception) -> bool:
    """Whether an error of Spark's says that the statement is wrong, and not that a correct one failed."""
    from pyspark.errors import AnalysisException, ParseException

    if isinstance(error, AnalysisException | ParseException):
        # What a topic's source says while a statement is analysed has the class of a mistake.
        return not is_source_failure(error)
    return False


def explained(error: PySparkException, statement: Statement, suggest: Callable[[Name], str]) -> StatementError:
    """Explain an error of Spark's; `suggest` returns the hint for an unknown relation, '' for none."""
    condition = error.getCondition() or ""
    given: dict[str, Any] = error.getMessageParameters() or {}
    is_users = is_mistake(error)
    if condition == NOT_FOUND:
        name = name_of(given.get("relationName", ""))
        message = f"there is no topic, table or view '{'.'.join(name)}'"
        hint = suggest(name)
    elif condition.startswith(_COLUMN) and "objectName" in given:
        column = ".".join(name_of(given["objectName"]))
        known = [".".join(name_of(part)) for part in _proposals(given.get("proposal", ""))]
        message, hint = f"there is no column '{column}'", _near_column(column, known)
    else:
        message, hint = missing_format(error) or first_line(error), ""
    return StatementError(f"{message}; {hint}" if hint else message, _place(error, statement), is_users=is_users)


def _proposals(text: str) -> list[str]:
    return [part.strip() for part in text.split(", ") if part.strip()]


def _near_column(column: str, known: Sequence[str]) -> str:
    """The hint for an unknown column; Spark's proposals are the nearest columns of the rows, qualified if need be.

    >>> _near_column("shp", ["shop", "id"]), _near_column("x", ["t.shop"])
    ("did you mean 'shop'?", 'known: t.shop')
    """
    return nearest(column, known)


def _place(error: PySparkException, statement: Statement) -> tuple[int, int] | None:
    """Line and column of an error, from its query context, else from its text."""
    for context in error.getQueryContext() or ():
        try:
            start = context.startIndex()
            fragment = context.fragment()
        except Exception:  # noqa: BLE001, S112 - the context of a frame's operation, which has no place in a text
            continue
        # A view's own text is another text than the statement's.
        if start >= 0 and statement.text[start : start + len(fragment)] == fragment:
            return statement.place(start)
    found = _PLACE.search(str(error))
    if found is None:
        return None
    lines = statement.text.splitlines(keepends=True)
    line, column = int(found[1]), int(found[2])
    if not 0 < line <= max(len(lines), 1):
        return None
    return statement.place(sum(len(each) for each in lines[: line - 1]) + column)
