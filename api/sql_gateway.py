"""What the REST API knows of the SQL service: a query, the events of its answer, its failures.

The API never imports Spark: what starts it passes in a `SqlGateway` that reaches the service's process.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

STATEMENT_CHARACTERS_MAX: Final = 65_536
SESSION_LENGTH_MAX: Final = 100
PARAMETERS_MAX: Final = 100
ROWS_DEFAULT: Final = 10_000
ROWS_MAX: Final = 1_000_000
TIMEOUT_DEFAULT_MS: Final = 60_000
TIMEOUT_MAX_MS: Final = 3_600_000


class RowForm(enum.Enum):
    """How the rows of an answer are written."""

    NDJSON = "ndjson"  # a JSON array a line
    ARROW = "arrow"  # Arrow's IPC stream


class SqlFailureCode(enum.Enum):
    """Why a query has no answer, or no whole one."""

    INVALID = "INVALID"  # Spark refuses the statement
    NOT_PERMITTED = "NOT_PERMITTED"  # it is more than a query of the catalog
    BUSY = "BUSY"  # too many queries run
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"  # a correct statement failed
    UNAVAILABLE = "UNAVAILABLE"  # no service, or it went away


class SqlFailure(Exception):  # noqa: N818 - the failure of a query, which is no fault of the server
    """A query failed: one line, with line and column (from 1) in the statement if they are known."""

    def __init__(self, code: SqlFailureCode, message: str, place: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.place = place

    def value(self) -> dict[str, Any]:
        """As a JSON object.

        >>> SqlFailure(SqlFailureCode.INVALID, "there is no column 'a'", (1, 8)).value()
        {'code': 'INVALID', 'message': "there is no column 'a'", 'line': 1, 'column': 8}
        """
        found: dict[str, Any] = {"code": self.code.value, "message": self.message}
        if self.place is not None:
            found["line"], found["column"] = self.place
        return found


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """One statement to run; queries of one `session` share a fair share of Spark. The limits are those asked for."""

    query_id: str
    statement: str
    session: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    row_limit: int = ROWS_DEFAULT
    timeout_ms: int = TIMEOUT_DEFAULT_MS
    form: RowForm = RowForm.NDJSON


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """The first event of an answer: names and Spark's types of the columns."""

    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class QueryEnd:
    """The last event of a whole answer; `truncated` tells the limit that ended it early: rows, bytes, or nothing."""

    rows: int
    truncated: str | None
    seconds: float


QueryEvent = QueryColumns | bytes | QueryEnd
"""Columns, then rows in the form that was asked for, then the end."""


class SqlGateway(Protocol):
    """Runs queries somewhere else. Leaving the context of an answer ends its query, finished or not."""

    def run(self, query: SqlQuery) -> AbstractAsyncContextManager[AsyncIterator[QueryEvent]]:
        """The events of a query's answer. The iterator raises SqlFailure."""

    def cancel(self, query_id: str) -> bool:
        """Cancel a query, whose answer then ends with CANCELLED; whether one of this id runs."""

    def running(self) -> list[SqlQuery]:
        """The queries that run, oldest first."""
