"""A client of handlers: requests through kio's writer and our reader, answers through our encoder and kio's reader."""

import asyncio
import dataclasses
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.bootstrap import bootstrap
from headwater.logtier.controller.controller import Controller
from headwater.logtier.handlers.context import RequestContext, Services
from headwater.logtier.handlers.topics import create_topics
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.refusals import refusal
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import RealDisk
from headwater.logtier.runtime.random_bytes import system_random_bytes

CORRELATION_ID = 77
SECOND_MS = 1000


class Client:
    """Sends requests to handlers as a connection would."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def send(self, handler: ModuleType, version: int, **fields: Any) -> Any:
        request = self._through_the_wire(handler.API_KEY, version, fields)
        context = RequestContext(
            self.services, handler.API_KEY, version, CORRELATION_ID, "tester", "127.0.0.1", "User:ANONYMOUS"
        )
        try:
            answer = handler.handle(request, context)
            if inspect.isawaitable(answer):
                answer = await answer
        except KafkaError as error:
            answer = refusal(handler.API_KEY, version, error.code, error.message, request)
        if isinstance(answer, dict):
            body = messages.encode_response(handler.API_KEY, version, answer)
        else:
            prefix, body = answer
            assert prefix == messages.response_prefix(handler.API_KEY, version, CORRELATION_ID, len(body))
        response, size = entity_reader(load_response_schema(handler.API_KEY, version))(body, 0)
        assert size == len(body)
        return response

    @staticmethod
    def _through_the_wire(api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        schema = load_request_schema(api_key, version)
        buffer = BytesIO()
        entity_writer(schema)(buffer, build(schema, fields))
        header = messages.RequestHeader(api_key, version, CORRELATION_ID, "tester", 0)
        head = b"\0" if messages.is_flexible(api_key, version) else b""
        return messages.read_request(header, head + buffer.getvalue())

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        response = await self.send(create_topics, 7, **create_request(name, partitions, configs))
        return response.topics[0]


def build(schema: Any, fields: Mapping[str, Any]) -> Any:
    """An entity of one version; what that version does not have is left out."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.name not in fields:
            if field.default is dataclasses.MISSING and field.metadata.get("kafka_type") == "bool":
                given[field.name] = False
            continue
        value = fields[field.name]
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            inner = field.type.__args__[0]  # type: ignore[union-attr]
            inner = inner.__args__[0] if not isinstance(inner, type) or hasattr(inner, "__args__") else inner
            value = tuple(build(inner, item) for item in value)
        elif isinstance(value, list):
            value = tuple(value)
        given[field.name] = value
    return schema(**given)


def create_request(name: str, partitions: int, configs: Mapping[str, str | None]) -> dict[str, Any]:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    return {"topics": [topic], "timeout": messages.to_timedelta(SECOND_MS), "validate_only": False}


def run(directory: Path, scenario: Callable[[Client], Awaitable[None]], **properties: object) -> None:
    async def main() -> None:
        config = BrokerConfig.from_properties({name.replace("_", "."): value for name, value in properties.items()})
        store = LocalMetadataStore(str(directory), RealDisk())
        await store.start()
        cache = MetadataCache(config)
        prng = random.Random(5)
        follower = MetadataFollower(store, cache)
        controller = Controller(config, SystemClock(), prng, store, follower)
        await bootstrap(store, random.Random(1), system_random_bytes)
        await follower.start()
        await controller.start()
        await controller.register_broker(1, "broker.example", 19092, "rack-a")
        nothing = cast("Any", None)
        # Without logs: what is asked of it here is only whether a folder has failed.
        log_manager = LogManager(config, RealDisk(), SystemClock(), prng, cluster_id="c", topic_configs={})
        later = asyncio.get_running_loop().call_later
        replica_manager = ReplicaManager(1, cache.topic_config, log_manager, SystemClock(), later)
        parts = (replica_manager, nothing, nothing, nothing, nothing)
        services = Services(SystemClock(), prng, cache, controller, *parts)
        try:
            await scenario(Client(services))
        finally:
            await controller.stop()
            await follower.stop()
            await store.close()

    asyncio.run(main())
