"""A group coordinator and what stands around it, in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.group.events import Join, Sync
from headwater.logtier.protocol.errors import ErrorCode
from tests.manual_clock import ManualClock
from tests.unit.state_topic.surroundings import MemoryController, MemoryMetadata, MemoryReplicas, settle


@dataclass
class World:
    """A coordinator and what stands around it."""

    properties: dict[str, object] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    metadata: MemoryMetadata = field(default_factory=MemoryMetadata)

    def __post_init__(self) -> None:
        self.config = BrokerConfig.from_properties(
            {
                "group.initial.rebalance.delay.ms": 0,
                "group.min.session.timeout.ms": 1,
                "offsets.topic.num.partitions": 4,
                **self.properties,
            }
        )
        self.replicas = MemoryReplicas(self.metadata)
        self.controller = MemoryController(self.metadata)
        self.groups = self.new_coordinator()

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.config, self.clock, random.Random(1), self.replicas, self.controller, self.metadata
        )

    async def restart(self) -> None:
        """What a broker does after a crash: a new coordinator over the same log."""
        self.metadata.subscribers.clear()
        self.groups = self.new_coordinator()
        await self.groups.start()
        await settle()

    async def join(self, group_id: str, *, member_id: str = "", **named: Any) -> Any:
        """Join with ordinary arguments, through the hand-out of the member id."""
        arguments: dict[str, Any] = {
            "group_instance_id": None,
            "client_id": "client",
            "client_host": "/10.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [("range", bytes.fromhex("0000 00000001 0001 74 ffffffff"))],
            **named,
        }
        arguments["protocols"] = tuple(arguments["protocols"])
        request = Join(token=0, member_id=member_id, new_member_id="", **arguments)
        result = await self.groups.join(group_id, request)
        if result.error is ErrorCode.member_id_required:
            result = await self.groups.join(group_id, replace(request, member_id=result.member_id))
        return result

    async def sync(self, group_id: str, joined: Any, **assignments: bytes) -> Any:
        return await self.groups.sync(
            group_id,
            Sync(
                token=0,
                member_id=joined.member_id,
                group_instance_id=None,
                generation_id=joined.generation_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments={joined.member_id: b"everything"} if joined.members else {},
            ),
        )


@pytest.fixture
def make_world() -> Callable[..., World]:
    """Makes a coordinator with its surroundings; the tests run the loop."""
    return World


@pytest.fixture
def settled() -> Callable[[], Any]:
    return settle
