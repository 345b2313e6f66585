"""Clients whose requests go to coordinators, and are repeated until they are answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.clients import RETRIABLE, RETRY_S, Brokers, Worker
from tests.simulation.history import History

#: Codes of coordinators after which a request is repeated.
WAIT = {*RETRIABLE, ErrorCode.concurrent_transactions}


class CoordinatedWorker(Worker):
    """A client that knows the coordinators of its name, by the type of the key."""

    def __init__(
        self, name: str, brokers: Brokers, history: History, chance: random.Random, partitions: list[TopicPartition]
    ) -> None:
        super().__init__(name, brokers, history, chance, partitions)
        self._hosts: dict[int, str] = {}

    async def _ask(
        self,
        key_type: int,
        make: Callable[[], Request[Any]],
        code_of: Callable[[Any], int],
        what: str,
        attempts: int | None = None,
    ) -> Any:
        """Repeat a request to a coordinator until it is answered without a code that asks for a retry.

        Return None after `attempts`.
        """
        while attempts is None or attempts > 0:
            attempts = None if attempts is None else attempts - 1
            try:
                host = self._hosts.get(key_type)
                if host is None:
                    host = self._hosts[key_type] = await self.coordinator(self.name, key_type)
                answer = await self.ask(make(), host)
            except ConnectionError as error:
                self.note("lost", what, type(error).__name__)
                self._hosts.pop(key_type, None)
            else:
                code = code_of(answer)
                self.note(what, code)
                if code not in WAIT:
                    return answer
                if code != ErrorCode.concurrent_transactions:
                    self._hosts.pop(key_type, None)
            await asyncio.sleep(self.chance.uniform(*RETRY_S))
        return None
