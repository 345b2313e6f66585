"""Quotas set and found through their APIs; what they do to requests that create and delete partitions."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.bootstrap import bootstrap
from headwater.logtier.controller.controller import Controller
from headwater.logtier.handlers.context import RequestContext, Services
from headwater.logtier.handlers.loop_time import LoopTime, measured
from headwater.logtier.handlers.quotas import (
    alter_client_quotas,
    describe_client_quotas,
)
from headwater.logtier.handlers.quotas.configured_quotas import configured_quotas
from headwater.logtier.handlers.topics import (
    create_partitions,
    create_topics,
    delete_topics,
    metadata,
)
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import RealDisk
from headwater.logtier.runtime.random_bytes import system_random_bytes
from tests.manual_clock import ManualClock


def some(**values: Any) -> Any:
    return SimpleNamespace(**values)


class World:
    """Services over a folder, and the times for which their clients were muted."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.muted: list[int] = []

    async def send(self, handler: ModuleType, version: int, request: Any) -> tuple[Any, RequestContext]:
        context = RequestContext(self.services, handler.API_KEY, version, 1, "client", "10.0.0.1", "User:alice")
        context.mute = self.muted.append
        answer = handler.handle(request, context)
        if not isinstance(answer, dict):
            answer = await answer
        if isinstance(answer, dict):
            assert messages.encode_response(handler.API_KEY, version, answer)
        return answer, context

    async def set(self, entity: dict[str, str | None], *, validate_only: bool = False, **values: float | None) -> Any:
        entry = some(
            entity=[some(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[some(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
        )
        answer, _ = await self.send(alter_client_quotas, 1, some(entries=[entry], validate_only=validate_only))
        return answer["entries"][0]["error_code"]

    async def find(self, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
        parts = [some(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
        answer, _ = await self.send(describe_client_quotas, 1, some(components=parts, strict=strict))
        if answer["error_code"] is not ErrorCode.none:
            return answer["error_code"]
        return [
            (
                {part["entity_type"]: part["entity_name"] for part in entry["entity"]},
                {value["key"]: value["value"] for value in entry["values"]},
            )
            for entry in answer["entries"]
        ]


def run(directory: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        config = BrokerConfig.from_properties({})
        store = LocalMetadataStore(str(directory), RealDisk())
        await store.start()
        cache = MetadataCache(config)
        follower = MetadataFollower(store, cache)
        controller = Controller(config, SystemClock(), random.Random(1), store, follower)
        await bootstrap(store, random.Random(1), system_random_bytes)
        await follower.start()
        await controller.start()
        await controller.register_broker(1, "here", 9092)
        nothing: Any = some(has_offline=False)
        services = Services(
            SystemClock(),
            random.Random(1),
            cache,
            controller,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            quotas=configured_quotas(cache),
        )
        try:
            await scenario(World(services))
        finally:
            await controller.stop()
            await follower.stop()
            await store.close()

    asyncio.run(main())


def is_active(world: World) -> bool:
    return world.services.quotas.is_active


def test_quotas_are_set_found_and_taken_away(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        assert not is_active(world)
        assert await world.set({"user": "alice"}, producer_byte_rate=1000, request_percentage=50) is ErrorCode.none
        assert await world.set({"user": None, "client-id": "c"}, consumer_byte_rate=10) is ErrorCode.none
        assert await world.set({"ip": "1.2.3.4"}, connection_creation_rate=5) is ErrorCode.none
        assert is_active(world)
        assert len(await world.find()) == 3
        assert await world.find(strict=True) == []
        alice = ({"user": "alice"}, {"producer_byte_rate": 1000.0, "request_percentage": 50.0})
        assert await world.find(("user", 0, "alice")) == [alice]
        assert await world.find(("user", 2, None), strict=True) == [alice]
        assert len(await world.find(("user", 2, None))) == 2
        assert await world.find(("user", 1, None)) == [({"client-id": "c", "user": None}, {"consumer_byte_rate": 10.0})]
        assert await world.set({"user": "alice"}, producer_byte_rate=None, request_percentage=None) is ErrorCode.none
        assert await world.find(("user", 0, "alice")) == []

    run(tmp_path, scenario)


def test_quotas_hold_after_a_restart(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        assert await world.set({"user": "a/b\n"}, producer_byte_rate=7) is ErrorCode.none
        assert await world.set({"user": "x"}, validate_only=True, producer_byte_rate=7) is ErrorCode.none

    async def after(world: World) -> None:
        assert await world.find() == [({"user": "a/b\n"}, {"producer_byte_rate": 7.0})]
        assert world.services.quotas.record_produce("a/b\n", "", 1000, 0) > 0

    run(tmp_path, before)
    run(tmp_path, after)


@pytest.mark.parametrize(
    "components",
    [
        [("", 0, "x")],
        [("user", 0, None)],
        [("user", 1, "x")],
        [("user", 2, "x")],
        [("user", 7, None)],
        [("user", 0, "x"), ("user", 1, None)],
        [("ip", 2, None), ("user", 2, None)],
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(tmp_path: Path, components: list[tuple[str, int, str | None]]) -> None:
    async def scenario(world: World) -> None:
        assert await world.find(*components) is ErrorCode.invalid_request
        assert await world.find(("group", 2, None)) is ErrorCode.unsupported_version

    run(tmp_path, scenario)


def test_a_mistake_leaves_the_quotas_of_its_entity_as_they_were(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        assert await world.set({"user": "u"}, producer_byte_rate=5) is ErrorCode.none
        wrong = await world.set({"user": "u"}, producer_byte_rate=6, connection_creation_rate=1)
        assert wrong is ErrorCode.invalid_request
        entry = some(
            entity=[some(entity_type="user", entity_name="u"), some(entity_type="user", entity_name="v")], ops=[]
        )
        answer, _ = await world.send(alter_client_quotas, 1, some(entries=[entry], validate_only=False))
        assert answer["entries"][0]["error_code"] is ErrorCode.invalid_request
        assert await world.find() == [({"user": "u"}, {"producer_byte_rate": 5.0})]

    run(tmp_path, scenario)


def new_topics(*names: str, partitions: int = 6) -> Any:
    topics = [
        some(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()) for name in names
    ]
    return some(topics=topics, validate_only=False)


def test_who_has_created_too_many_partitions_is_refused_and_told_until_when(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.set({"user": None}, controller_mutation_rate=1)
        answer, context = await world.send(create_topics, 7, new_topics("a", "b", "c"))
        codes = [topic["error_code"] for topic in answer["topics"]]
        assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.throttling_quota_exceeded]
        assert 0 < context.throttle_ms <= 1000
        assert world.muted == [context.throttle_ms]
        assert world.services.metadata.image.topic("c") is None
        answer, _ = await world.send(delete_topics, 5, some(topic_names=("a",)))
        assert answer["responses"][0]["error_code"] is ErrorCode.throttling_quota_exceeded
        grow = some(topics=[some(name="a", count=9, assignments=None)], validate_only=False)
        answer, _ = await world.send(create_partitions, 3, grow)
        assert answer["results"][0]["error_code"] is ErrorCode.throttling_quota_exceeded

    run(tmp_path, scenario)


def test_older_clients_are_served_and_wait(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.set({"user": None}, controller_mutation_rate=1)
        answer, context = await world.send(create_topics, 5, new_topics("a", "b", "c"))
        assert [topic["error_code"] for topic in answer["topics"]] == [ErrorCode.none] * 3
        assert 6000 < context.throttle_ms <= 7000
        assert world.muted == [context.throttle_ms]

    run(tmp_path, scenario)


def test_an_answer_made_before_tells_each_client_its_own_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        request = some(topics=None)
        (prefix, body), _ = await world.send(metadata, 9, request)
        handler_key = metadata.API_KEY
        context = RequestContext(world.services, handler_key, 9, 1, "client", "10.0.0.1", "User:alice")
        context.throttle(250)
        throttled_prefix, throttled = cast(list[bytes], await metadata.handle(request, context))
        assert throttled_prefix == prefix
        assert bytes(throttled)[:4] == (250).to_bytes(4, "big")
        assert bytes(throttled)[4:] == bytes(body)[4:]
        (_, again), _ = await world.send(metadata, 9, request)
        assert bytes(again) == bytes(body)

    run(tmp_path, scenario)


def test_waiting_does_not_count_as_time_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("headwater.logtier.handlers.loop_time.perf_counter_ns", lambda: clock.ms * 1_000_000)
    loop_time = LoopTime()

    async def steps() -> str:
        clock.ms += 3
        waiting = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(wake, waiting)
        await waiting
        clock.ms += 4
        return "done"

    def wake(waiting: asyncio.Future[None]) -> None:
        clock.ms += 50
        waiting.set_result(None)

    async def main() -> str:
        return await measured(steps(), loop_time)

    assert asyncio.run(main()) == "done"
    assert loop_time.take_ms() == 7
    assert loop_time.take_ms() == 0


def test_a_cancelled_request_ends_its_handler() -> None:
    ended = []

    async def steps() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main() -> None:
        async def measure() -> None:
            await measured(steps(), LoopTime())

        task = asyncio.ensure_future(measure())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == [True]
