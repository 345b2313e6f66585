"""A registry over a list instead of a topic, and a client that calls its application without a server."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headwater.api.app import create_app
from headwater.api.registry.service import SchemaRegistry
from headwater.api.registry.topic_log import FencedError, KeyAndValue
from headwater.api.topic_admin import TopicAdmin

Apply = Callable[[bytes | None, bytes | None], None]

AVRO_WITH_REQUIRED = (
    '{"type":"record","name":"Flight","fields":[{"name":"number","type":"int"},{"name":"tail","type":"string"}]}'
)


@functools.cache
def application() -> FastAPI:
    """The application of all tests: it takes a tenth of a second to make."""
    return create_app(TopicAdmin("127.0.0.1:1"), hosts=("registry",))


class MemoryLog:
    """Records in a list. `fence` makes another registry write in between; `failures` are raised by appends."""

    def __init__(self, apply: Apply, reset: Callable[[], None], records: list[KeyAndValue]) -> None:
        self.name = "memory"
        self.changed = threading.Condition(threading.RLock())
        self.is_writer = False
        self.records = records
        self.failures: list[Exception] = []
        self._apply = apply
        self._read = 0
        reset()

    def await_loaded(self) -> None:
        while self._read < len(self.records):
            self._apply(*self.records[self._read])
            self._read += 1

    def become_writer(self, noop: KeyAndValue) -> None:
        if not self.is_writer:
            self.is_writer = True
            self.append([noop])

    def append(self, records: Sequence[KeyAndValue]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.records += records
        self.await_loaded()

    def fence(self, records: Sequence[KeyAndValue]) -> None:
        """Another registry has written these since."""
        self.records += records
        self.is_writer = False
        self.failures.append(FencedError())

    def close(self) -> None:
        pass


class Client:
    """Calls the registry's paths."""

    def __init__(self, records: list[KeyAndValue] | None = None) -> None:
        self.records: list[KeyAndValue] = [] if records is None else records

        def open_log(apply: Apply, reset: Callable[[], None]) -> MemoryLog:
            self.log = MemoryLog(apply, reset, self.records)
            return self.log

        self.registry = SchemaRegistry(open_log)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> httpx.Response:
        app = application()
        app.state.registry = self.registry

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://registry") as client:
                content = None if body is None else json.dumps(body)
                given = {"content-type": "application/vnd.schemaregistry.v1+json"} | (headers or {})
                return await client.request(method, path, content=content, headers=given)

        return asyncio.run(send())

    def register(self, subject: str, schema: str, **fields: Any) -> int:
        """Registers a schema that must be taken; gives its id."""
        answer = self.call("POST", f"/subjects/{subject}/versions", {"schema": schema, **fields})
        assert answer.status_code == 200, answer.text
        schema_id: int = answer.json()["id"]
        return schema_id

    def failure(self, method: str, path: str, body: Any = None) -> tuple[int, int]:
        """Status and code of a call that must fail."""
        answer = self.call(method, path, body)
        assert answer.status_code >= 400, answer.text
        assert answer.json()["message"]
        return answer.status_code, answer.json()["error_code"]


@pytest.fixture
def client() -> Client:
    """An empty registry."""
    return Client()
