"""Queries: the request body, and the list of those that run."""

from __future__ import annotations

from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from headwater.api.schemas.resource import ListMetadata, RequestBody
from headwater.api.sql_gateway import (
    PARAMETERS_MAX,
    ROWS_DEFAULT,
    ROWS_MAX,
    SESSION_LENGTH_MAX,
    STATEMENT_CHARACTERS_MAX,
    TIMEOUT_DEFAULT_MS,
    TIMEOUT_MAX_MS,
    SqlQuery,
)


class SqlQueryBody(RequestBody):
    """A statement, the values of its parameters (`:name`), and limits of its answer."""

    statement: StrictStr = Field(min_length=1, max_length=STATEMENT_CHARACTERS_MAX)
    session: StrictStr = Field(default="", max_length=SESSION_LENGTH_MAX)
    parameters: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr | None] = Field(
        default={}, max_length=PARAMETERS_MAX
    )
    row_limit: StrictInt = Field(default=ROWS_DEFAULT, ge=0, le=ROWS_MAX)
    timeout_ms: StrictInt = Field(default=TIMEOUT_DEFAULT_MS, ge=1, le=TIMEOUT_MAX_MS)


class RunningQueryData(BaseModel):
    """A query that runs."""

    kind: str = "HeadwaterQuery"
    query_id: str
    session: str
    statement: str

    @classmethod
    def of(cls, query: SqlQuery) -> RunningQueryData:
        """Describe a query."""
        return cls(query_id=query.query_id, session=query.session, statement=query.statement)


class RunningQueryListData(BaseModel):
    """The queries that run, oldest first."""

    kind: str = "HeadwaterQueryList"
    metadata: ListMetadata
    data: list[RunningQueryData]
