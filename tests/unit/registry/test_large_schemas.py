"""What large and hostile schemas cost: in proportion to their size, and at a limit one clear message."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from types import CodeType, FrameType
from typing import Any

import httpx
import pytest

from headwater.api.registry.model import Schema, SchemaType
from headwater.api.registry.parsed import ParsedSchema
from headwater.api.registry.parsing import SchemaParser
from headwater.api.registry.routes.serving import LONG_REQUESTS_MAX
from headwater.pipelines.schemas.errors import InvalidSchemaError
from tests.unit.registry.conftest import Client, application


def parsed(schema: Any, language: SchemaType = SchemaType.AVRO) -> ParsedSchema:
    return SchemaParser().parse(Schema(language, json.dumps(schema)), lambda _: None, new=True)


def record(name: str, fields: list[Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields, **more}


def lines_run(work: Callable[[], Any]) -> int:
    """Lines of Python that a call runs: work that, unlike time, is the same on every machine."""
    ours: dict[CodeType, bool] = {}
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        code = frame.f_code
        if not ours.setdefault(code, "schemas" in code.co_filename or "registry" in code.co_filename):
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def wide(count: int, prefix: str = "f") -> Any:
    return record("R", [{"name": f"{prefix}{i}", "type": "int", "default": i} for i in range(count)])


def union(count: int, prefix: str = "R") -> Any:
    return [record(f"{prefix}{i}", []) for i in range(count)]


def same_enum(count: int) -> Any:
    symbols = {"type": "enum", "name": "E", "symbols": [f"s{i}" for i in range(count)]}
    last = f"s{count - 1}"
    return record(
        "R", [{"name": "e", "type": symbols}, *({"name": f"f{i}", "type": "E", "default": last} for i in range(count))]
    )


@pytest.mark.parametrize("made", [wide, union, same_enum])
def test_twice_the_parts_are_twice_the_work(made: Callable[[int], Any]) -> None:
    def work(count: int) -> Callable[[], Any]:
        def register() -> None:
            assert parsed(made(count)).problems_reading(parsed(made(count))) == []

        return register

    assert lines_run(work(400)) < 2.2 * lines_run(work(200))


def test_twice_the_parts_that_do_not_fit_are_twice_the_work() -> None:
    def work(count: int) -> Callable[[], Any]:
        def register() -> None:
            assert parsed(wide(count, "g")).problems_reading(parsed(wide(count))) == []
            assert parsed(union(count, "A")).problems_reading(parsed(union(count)))

        return register

    assert lines_run(work(400)) < 2.2 * lines_run(work(200))


def test_branches_that_fail_late_make_the_pair_fail() -> None:
    """The only branch that could be meant depends on a type that does not resolve."""
    inner = record("I", [{"name": "x", "type": "int"}])
    writer = ["null", record("A", [{"name": "i", "type": inner}])]
    reader = ["null", record("A", [{"name": "i", "type": record("I", [{"name": "y", "type": "int"}])}])]
    found = parsed(reader).problems_reading(parsed(writer))
    assert [problem.kind for problem in found] == ["MISSING_UNION_BRANCH"]
    assert parsed(writer).problems_reading(parsed(writer)) == []


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            record(
                "Y",
                [
                    {"name": "a", "type": record("X", [{"name": "u", "type": [*union(2_000), "int"]}])},
                    *({"name": f"f{i}", "type": "X", "default": {"u": 1}} for i in range(600)),
                ],
            ),
            "defaults",
        ),
        (record("a" * 2_001, []), "longer than"),
        (record("R", [], namespace="a" * 2_001), "longer than"),
    ],
)
def test_what_multiplies_has_a_limit(schema: Any, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        parsed(schema)


def test_branches_that_all_could_mean_each_other_have_a_limit() -> None:
    alike = parsed([record("R", [], namespace=f"n{i}") for i in range(1_000)])
    with pytest.raises(InvalidSchemaError, match="comparisons"):
        alike.problems_reading(alike)


@pytest.mark.parametrize("language", ["AVRO", "JSON"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"type": "string", "x": ' + "9" * 5_000 + "}", "more than 4300 digits"),
        ('{"type": "string", "doc": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "deeply"),
    ],
)
def test_json_that_cannot_be_taken_is_422_and_says_why(client: Any, language: str, text: str, reason: str) -> None:
    body = {"schema": text, "schemaType": language}
    for path in ("/subjects/s/versions", "/subjects/s", "/compatibility/subjects/s/versions/latest"):
        assert client.failure("POST", path, body) == (422, 42201)
        assert reason in client.call("POST", path, body).json()["message"]


def test_who_reads_the_state_holds_up_nobody(client: Any) -> None:
    client.register("s", '"int"')
    with client.registry.state() as before:
        other = threading.Thread(target=client.register, args=("t", '"string"'))
        other.start()
        other.join(timeout=60)
        assert not other.is_alive()
        assert sorted(before.subjects) == ["s"]
    with client.registry.state() as after:
        assert sorted(after.subjects) == ["s", "t"]


def test_bodies_that_do_not_come_hold_up_nobody(client: Client) -> None:
    app = application()
    app.state.registry = client.registry

    headers = {"content-type": "application/json"}

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async def scenario() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://registry", timeout=None) as caller:
            stalled = [
                asyncio.ensure_future(caller.post("/subjects/s/versions", content=never(), headers=headers))
                for _ in range(LONG_REQUESTS_MAX)
            ]
            for _ in range(100):  # turns of the loop, by which all wait for their bodies
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                answer = await caller.post("/subjects/t/versions", json={"schema": '"int"'})
            assert answer.status_code == 200, answer.text
            for each in stalled:
                each.cancel()
            await asyncio.gather(*stalled, return_exceptions=True)

    asyncio.run(scenario())
