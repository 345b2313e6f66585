"""Long requests are answered in slices, as they would be in one piece."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headwater.logtier.handlers.configs import describe_configs
from headwater.logtier.handlers.context import RequestContext, Services
from headwater.logtier.handlers.dispatcher import LONG_REQUEST_BYTES, LONG_REQUESTS_MAX, Dispatcher
from headwater.logtier.handlers.long_requests import CREATED_TOPICS_MAX, SLICE_RULES, SliceRule, join_answers, slices_of
from headwater.logtier.handlers.records import list_offsets
from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.handlers.topics import (
    create_topics,
    delete_topics,
    describe_log_dirs,
    metadata,
)
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.protocol.request_counts import ANSWERED_IN_SLICES, ELEMENTS_MAX, WHOLE_ELEMENTS_MAX
from headwater.logtier.protocol.schema_types import inner_type
from headwater.logtier.runtime.fair_turns import OWNER_SHARE
from headwater.logtier.security.listener import PLAINTEXT_LISTENER
from tests.handler_client import SECOND_MS, Client, build, create_request, run


@dataclasses.dataclass(frozen=True)
class Topic:
    name: str
    partitions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Group:
    name: str
    topics: tuple[Topic, ...] | None


@dataclasses.dataclass(frozen=True)
class Request:
    topics: tuple[Any, ...] = ()
    groups: tuple[Group, ...] = ()


def answer(request: Request) -> dict[str, Any]:
    return {
        "groups": [
            {
                "name": group.name,
                "topics": [{"name": topic.name, "partitions": list(topic.partitions)} for topic in group.topics or ()],
            }
            for group in request.groups
        ]
    }


NESTED = SliceRule(("groups", "topics", "partitions"), ("groups", "topics", "partitions"), slice_max=3)


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 8), max_size=5)), min_size=1, max_size=6))
def test_what_is_cut_is_whole_again_when_it_is_joined_and_no_slice_is_too_large(
    shape: list[list[int] | None],
) -> None:
    request = Request(
        groups=tuple(
            Group(
                f"g{i}", None if sizes is None else tuple(Topic(f"t{j}", tuple(range(n))) for j, n in enumerate(sizes))
            )
            for i, sizes in enumerate(shape)
        )
    )
    sliced = slices_of(request, (NESTED,))
    if sliced is None:
        return
    rule, slices = sliced
    assert join_answers(rule, [answer(each) for each in slices]) == answer(request)
    for each in slices:
        assert (
            sum(
                sum(max(1, len(topic.partitions)) for topic in group.topics) if group.topics else 1
                for group in each.groups
            )
            <= 3
        )


def test_an_error_of_one_slice_is_one_of_the_whole() -> None:
    rule = SliceRule(("groups", "topics"), ("groups", "topics"), slice_max=1)
    failed = {"error_code": 14, "groups": [{"group_id": "g", "error_code": 14, "topics": []}]}
    found = {"error_code": 0, "groups": [{"group_id": "g", "error_code": 0, "topics": [{"name": "t"}]}]}
    for answers in ([failed, found], [found, failed], [found, failed, found]):
        joined = join_answers(rule, answers)
        assert (joined["error_code"], [group["error_code"] for group in joined["groups"]]) == (14, [14])


def test_the_same_element_is_answered_once_or_two_of_it_stay_together() -> None:
    elements = tuple(Topic(name, ()) for name in "abcadaba")
    once = SliceRule(("topics",), ("topics",), slice_max=2, key=lambda topic: topic.name)
    sliced = slices_of(Request(topics=elements), (once,))
    assert sliced is not None
    assert [[topic.name for topic in each.topics] for each in sliced[1]] == [["a", "b"], ["c", "d"]]
    sliced = slices_of(Request(topics=elements), (dataclasses.replace(once, copies=2),))
    assert sliced is not None
    assert [[topic.name for topic in each.topics] for each in sliced[1]] == [["a", "a"], ["b", "b"], ["c", "d"]]


def test_a_short_request_is_left_as_it_is() -> None:
    rule = SliceRule(("topics",), ("topics",), key=lambda topic: topic.name)
    assert slices_of(Request(topics=(Topic("a", ()), Topic("b", ()))), (rule,)) is None
    assert slices_of(Request(), (rule,)) is None


def test_more_elements_than_an_api_takes_are_refused() -> None:
    rule = SliceRule(("topics",), ("topics",), key=lambda topic: topic.name, elements_max=2)
    with pytest.raises(KafkaError, match="3 topics exceed the limit of 2"):
        slices_of(Request(topics=tuple(Topic(name, ()) for name in "abc")), (rule,))


def test_every_rule_names_arrays_of_its_messages_in_every_version() -> None:
    names = {messages.api_name(key): key for key in HANDLERS}
    assert SLICE_RULES.keys() == ANSWERED_IN_SLICES
    for name, rules in SLICE_RULES.items():
        first, last = HANDLERS[names[name]].VERSIONS
        for version in range(first, last + 1):
            asked = load_request_schema(names[name], version)
            told = load_response_schema(names[name], version)
            rule = next((rule for rule in rules if has(asked, rule.asked[:1])), None)
            if rule is None:
                assert name == "find_coordinator"
                assert version < 4
                continue
            assert has(asked, rule.asked), (name, version)
            assert has(told, rule.answered), (name, version)
            assert len(rule.asked) == len(rule.answered)


def has(schema: Any, path: tuple[str, ...]) -> bool:
    for step in path:
        field = next((field for field in dataclasses.fields(schema) if field.name == step), None)
        if field is None:
            return False
        schema, is_array = inner_type(field.type)
        assert is_array
    return True


class Turns:
    """Counts how often others had their turn."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._turn)

    def stop(self) -> int:
        self._handle.cancel()
        return self.count


def frame_of(handler: ModuleType, version: int, fields: Mapping[str, Any]) -> memoryview:
    schema = load_request_schema(handler.API_KEY, version)
    buffer = BytesIO()
    entity_writer(schema)(buffer, build(schema, fields))
    head = messages._HEADER.pack(handler.API_KEY, version, 7, -1)
    return memoryview(head + (b"\0" if schema.__flexible__ else b"") + buffer.getvalue())


def connection_of(principal: str) -> SimpleNamespace:
    return SimpleNamespace(
        peer_host="127.0.0.1",
        principal=principal,
        sasl=None,
        listener=PLAINTEXT_LISTENER,
        logs_refusal=lambda _: False,
        keep_request_memory=lambda: False,
        release_request_memory=lambda: None,
    )


async def dispatched(services: Services, handler: ModuleType, version: int, **fields: Any) -> tuple[Any, int]:
    """The answer, and how many turns others had meanwhile."""
    connection = connection_of("User:ANONYMOUS")
    frame = frame_of(handler, version, fields)
    turns = Turns()
    response = Dispatcher(services, HANDLERS).dispatch(frame, cast("Any", connection))
    if not isinstance(response, list):
        response = await cast("Any", response)
    others = turns.stop()
    prefix, body = response
    told, size = entity_reader(load_response_schema(handler.API_KEY, version))(body, 0)
    assert size == len(body)
    assert prefix == messages.response_prefix(handler.API_KEY, version, 7, len(body))
    return told, others


def scenario_of(directory: Path, steps: Callable[[Client], Any]) -> None:
    run(directory, steps, num_partitions=2)


def test_a_broker_that_is_named_again_and_again_is_described_once(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        asked = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}] * 2000
        told, _ = await dispatched(
            client.services,
            describe_configs,
            4,
            resources=asked,
            include_synonyms=True,
            include_documentation=False,
        )
        assert [result.resource_name for result in told.results] == ["1"]
        assert len(told.results[0].configs) > 100

    scenario_of(tmp_path, scenario)


def test_thousands_of_topics_are_answered_with_turns_for_others(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.create("there", 2)
        names = [f"missing-{number}-{'x' * 20}" for number in range(3000)] + ["there", "there"]
        asked = [{"topic_id": None, "name": name} for name in names]
        told, others = await dispatched(client.services, metadata, 12, topics=asked, allow_auto_topic_creation=False)
        assert [topic.name for topic in told.topics] == names[:-1]
        assert [topic.error_code for topic in told.topics][:-1] == [ErrorCode.unknown_topic_or_partition] * 3000
        assert len(told.topics[-1].partitions) == 2
        assert [broker.host for broker in told.brokers] == ["broker.example"]
        assert others >= 15

    scenario_of(tmp_path, scenario)


def test_partitions_of_one_topic_are_cut_and_answered_as_one_topic(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        partitions = [{"partition_index": index, "timestamp": -1} for index in range(2000)]
        asked = [{"name": "t", "partitions": partitions}, {"name": "u", "partitions": partitions[:1]}]
        told, others = await dispatched(
            client.services, list_offsets, 7, replica_id=-1, topics=asked, isolation_level=0
        )
        assert [(topic.name, len(topic.partitions)) for topic in told.topics] == [("t", 2000), ("u", 1)]
        assert [partition.partition_index for partition in told.topics[0].partitions] == list(range(2000))
        assert others >= 10

    scenario_of(tmp_path, scenario)


def test_topics_are_created_slice_by_slice_and_one_that_stands_twice_is_still_refused(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        one = create_request("t", 1, {})
        names = [f"t{number}" for number in range(300)] + ["t0"]
        fields = {**one, "topics": [{**one["topics"][0], "name": name} for name in names], "validate_only": True}
        told, _ = await dispatched(client.services, create_topics, 7, **fields)
        codes = {topic.name: topic.error_code for topic in told.topics}
        assert codes == {name: ErrorCode.invalid_request if name == "t0" else ErrorCode.none for name in names}
        assert len(told.topics) == 300
        assert client.services.metadata.image.topics == {}
        told, others = await dispatched(client.services, create_topics, 7, **{**fields, "validate_only": False})
        assert len(client.services.metadata.image.topics) == 299
        assert others >= 2
        timeout = messages.to_timedelta(SECOND_MS)
        told, _ = await dispatched(
            client.services,
            delete_topics,
            6,
            topics=[{"name": name, "topic_id": None} for name in names],
            timeout=timeout,
        )
        assert client.services.metadata.image.topics == {}

    scenario_of(tmp_path, scenario)


def test_too_many_topics_to_create_are_refused_before_anything_is_made_of_them(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        one = create_request("t", 1, {})
        topics = [{**one["topics"][0], "name": f"t{number}"} for number in range(CREATED_TOPICS_MAX + 1)]
        told, _ = await dispatched(client.services, create_topics, 7, **{**one, "topics": topics})
        assert {topic.error_code for topic in told.topics} == {ErrorCode.invalid_request}
        assert client.services.metadata.image.topics == {}

    scenario_of(tmp_path, scenario)


@pytest.mark.parametrize("name", ["x", "x" * 400])
def test_many_long_requests_of_one_client_keep_no_other_client_waiting(tmp_path: Path, name: str) -> None:
    """Long for their elements, and for their bytes too."""

    async def scenario(client: Client) -> None:
        goes_on = asyncio.Event()
        begun: list[str] = []

        async def handle(request: Any, context: RequestContext) -> Any:
            begun.append(context.principal)
            if context.principal == "User:many":
                await goes_on.wait()
            return cast("dict[str, Any]", await metadata.handle(request, context))

        handler = SimpleNamespace(VERSIONS=metadata.VERSIONS, handle=handle)
        dispatcher = Dispatcher(client.services, {metadata.API_KEY: cast("Any", handler)})
        topics = [{"topic_id": None, "name": f"{name}{number}"} for number in range(300)]
        frame = frame_of(metadata, 12, {"topics": topics, "allow_auto_topic_creation": False})
        assert (len(frame) > LONG_REQUEST_BYTES) is (len(name) > 1)

        def asked(principal: str) -> Any:
            connection = connection_of(principal)
            answering: asyncio.Future[Any] = asyncio.ensure_future(
                cast("Any", dispatcher.dispatch(frame, cast("Any", connection)))
            )
            return answering

        waiting = [asked("User:many") for _ in range(3 * LONG_REQUESTS_MAX)]
        async with asyncio.timeout(10):
            while len(begun) < LONG_REQUESTS_MAX // OWNER_SHARE:  # noqa: ASYNC110 (nobody is told of it)
                await asyncio.sleep(0.001)
            others = [asked("User:other"), asked("User:third")]
            await asyncio.gather(*others)
        assert not any(each.done() for each in waiting)
        goes_on.set()
        await asyncio.gather(*waiting)

    scenario_of(tmp_path, scenario)


def test_a_request_that_is_long_for_its_bytes_alone_is_answered(tmp_path: Path) -> None:
    """By handlers that answer at once, too, whose API is not cut."""

    async def scenario(client: Client) -> None:
        services = dataclasses.replace(
            client.services, groups=cast("Any", None), replica_manager=cast("Any", SimpleNamespace())
        )
        asked = [{"topic": f"{'x' * 200}{number}", "partitions": (0,)} for number in range(400)]
        assert len(frame_of(describe_log_dirs, 4, {"topics": asked})) > LONG_REQUEST_BYTES
        told, _ = await dispatched(services, describe_log_dirs, 4, topics=asked)
        # There are no folders here: the fault is answered, and ends nothing.
        assert told.error_code is ErrorCode.unknown_server_error

    scenario_of(tmp_path, scenario)


@pytest.mark.parametrize(
    ("handler", "count", "limit"),
    [(metadata, ELEMENTS_MAX + 1, ELEMENTS_MAX), (describe_log_dirs, WHOLE_ELEMENTS_MAX + 1, WHOLE_ELEMENTS_MAX)],
)
def test_elements_are_counted_before_anything_is_made_of_them(handler: ModuleType, count: int, limit: int) -> None:
    if handler is metadata:
        body = (count).to_bytes(4, "big") + b"\0\1x" * count
        header = messages.RequestHeader(handler.API_KEY, 1, 7, None, 0)
    else:
        body = (1).to_bytes(4, "big") + b"\0\1x" + (count - 1).to_bytes(4, "big") + bytes(4 * (count - 1))
        header = messages.RequestHeader(handler.API_KEY, 1, 7, None, 0)
    with pytest.raises(ProtocolViolationError, match=f"more than {limit} elements"):
        messages.read_request(header, body)


def test_elements_of_a_produce_request_are_counted() -> None:
    count = WHOLE_ELEMENTS_MAX + 1
    partition = bytes(4) + b"\xff\xff\xff\xff"
    body = b"\xff\xff" + bytes(6) + (1).to_bytes(4, "big") + b"\0\1t" + count.to_bytes(4, "big") + partition * count
    with pytest.raises(ProtocolViolationError, match=f"more than {WHOLE_ELEMENTS_MAX} elements"):
        messages.read_request(messages.RequestHeader(messages.PRODUCE_KEY, 7, 7, None, 0), body)
