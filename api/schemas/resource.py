"""Parts of every v3 resource: kind, metadata, links."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

R = TypeVar("R")


class RequestBody(BaseModel):
    """A request body: an unknown field is refused by name."""

    model_config = ConfigDict(extra="forbid")


class Metadata(BaseModel):
    """A resource's own URL and its resource name."""

    self_url: str = Field(serialization_alias="self")
    resource_name: str


class ListMetadata(BaseModel):
    """A list's own URL; lists are never paginated, so `next` is always null."""

    self_url: str = Field(serialization_alias="self")
    next: str | None = None


class Relationship(BaseModel):
    """A link to a related resource."""

    related: str


class ResourceList(BaseModel, Generic[R]):
    """A list of resources."""

    kind: str
    metadata: ListMetadata
    data: list[R]


class ErrorBody(BaseModel):
    """A failure: `error_code` starts with the HTTP status."""

    error_code: int
    message: str
