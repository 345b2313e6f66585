"""A group and a transactional id that one broker coordinates, and what that broker answers about them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import GROUP_KEY, RETRY_S, TRANSACTION_KEY, Client
from tests.simulation.group_offsets import offset_fetch

_JOIN, _SYNC, _HEARTBEAT, _DESCRIBE_GROUPS = 7, 5, 4, 5
_INIT_PRODUCER_ID, _ADD_PARTITIONS, _END_TXN, _DESCRIBE_TRANSACTIONS = 4, 3, 4, 0
#: Longer than any scenario: neither the group's member nor the transaction times out.
_LONG = timedelta(minutes=10)
_PROTOCOLS = ({"name": "all", "metadata": b""},)

Ask = Callable[[Request[Any]], Awaitable[Any]]


class Coordinated:
    """One member, which has its assignment, of a group; another one, which waits for it; and an open transaction.

    Args:
        ask: Sends a request to the broker that coordinates both.
    """

    def __init__(self, ask: Ask, group: str, transactional_id: str, key: TopicPartition) -> None:
        self._ask = ask
        self._group = group
        self._transactional_id = transactional_id
        self._key = key
        self._member_id = ""
        self._producer: dict[str, object] = {}
        self.joining: asyncio.Task[int] | None = None

    async def begin(self) -> None:
        """Make the group and the transaction; a second member joins, and waits for the first one to join again."""
        self._member_id = str((await self._join("")).member_id)
        joined = await self._join(self._member_id)
        share = {"member_id": self._member_id, "assignment": b"all"}
        values = {
            **self._membership(int(joined.generation_id)),
            "protocol_type": "consumer",
            "protocol_name": "all",
            "assignments": (share,),
        }
        synced = await self._ask(kio_request(ApiKey.SYNC_GROUP, _SYNC, values))
        assert int(synced.error_code) == ErrorCode.none
        started = await self._ask(
            kio_request(
                ApiKey.INIT_PRODUCER_ID,
                _INIT_PRODUCER_ID,
                {
                    "transactional_id": self._transactional_id,
                    "transaction_timeout": _LONG,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            )
        )
        assert int(started.error_code) == ErrorCode.none
        self._producer = {"producer_id": started.producer_id, "producer_epoch": started.producer_epoch}
        topic = {"name": self._key.topic, "partitions": (self._key.partition,)}
        values = {"v3_and_below_transactional_id": self._transactional_id, "v3_and_below_topics": (topic,)}
        values |= {f"v3_and_below_{name}": value for name, value in self._producer.items()}
        added = await self._ask(kio_request(ApiKey.ADD_PARTITIONS_TO_TXN, _ADD_PARTITIONS, values))
        [of_topic] = added.results_by_topic_v3_and_below
        assert int(of_topic.results_by_partition[0].partition_error_code) == ErrorCode.none
        codes = await self.codes()
        assert codes == dict.fromkeys(codes, ErrorCode.none)
        other = str((await self._join("")).member_id)
        self.joining = asyncio.create_task(self._joined(other))

    async def codes(self, *, with_end: bool = False) -> dict[str, ErrorCode]:
        """What the broker answers now; `with_end` also asks it to commit the transaction."""
        fetched = await self._ask(offset_fetch(self._group, [self._key]))
        beaten = await self._ask(kio_request(ApiKey.HEARTBEAT, _HEARTBEAT, self._membership(1)))
        values: dict[str, object] = {"groups": (self._group,), "include_authorized_operations": False}
        described = await self._ask(kio_request(ApiKey.DESCRIBE_GROUPS, _DESCRIBE_GROUPS, values))
        values = {"transactional_ids": (self._transactional_id,)}
        # Needs no write, which the fenced leader of the partition would refuse.
        shown = await self._ask(kio_request(ApiKey.DESCRIBE_TRANSACTIONS, _DESCRIBE_TRANSACTIONS, values))
        codes = {
            "OffsetFetch": int(fetched.error_code),
            "Heartbeat": int(beaten.error_code),
            "DescribeGroups": int(described.groups[0].error_code),
            "DescribeTransactions": int(shown.transaction_states[0].error_code),
        }
        if with_end:
            values = {"transactional_id": self._transactional_id, **self._producer, "committed": True}
            ended = await self._ask(kio_request(ApiKey.END_TXN, _END_TXN, values))
            codes["EndTxn"] = int(ended.error_code)
        return {name: ErrorCode(code) for name, code in codes.items()}

    def _membership(self, generation: int) -> dict[str, object]:
        return {
            "group_id": self._group,
            "generation_id": generation,
            "member_id": self._member_id,
            "group_instance_id": None,
        }

    async def _join(self, member_id: str) -> Any:
        values = {
            "group_id": self._group,
            "session_timeout": timedelta(minutes=1),
            "rebalance_timeout": timedelta(minutes=1),
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": _PROTOCOLS,
        }
        return await self._ask(kio_request(ApiKey.JOIN_GROUP, _JOIN, values))

    async def _joined(self, member_id: str) -> int:
        return int((await self._join(member_id)).error_code)


async def coordinated_by(host: str, admin: Client, ask: Ask, key: TopicPartition) -> Coordinated:
    """Find names that a broker coordinates, and begin a group and a transaction with them."""
    group = await _name(host, admin, "group", GROUP_KEY)
    transactional_id = await _name(host, admin, "transaction", TRANSACTION_KEY)
    found = Coordinated(ask, group, transactional_id, key)
    await found.begin()
    return found


async def _name(host: str, admin: Client, prefix: str, key_type: int) -> str:
    for number in itertools.count():
        while True:
            try:
                coordinator = await admin.coordinator(f"{prefix}-{number}", key_type)
                break
            except ConnectionError:  # The topic is being made.
                await asyncio.sleep(RETRY_S[1])
        if coordinator == host:
            return f"{prefix}-{number}"
    raise AssertionError
