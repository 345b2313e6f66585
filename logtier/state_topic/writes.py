"""Writes to one partition of a coordinator's topic: appended at once, applied in the log's order, then answered."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from headwater.logtier.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

#: Takes a write over, which is in the log: the offset of its first record.
Applied = Callable[[int], None]
#: Takes back what was prepared for a write that does not count.
Refused = Callable[[KafkaError], None]


class PartitionState(Enum):
    """How far the state of a partition is known."""

    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class StateWrite:
    """One batch that is in the log and not yet applied.

    Attributes:
        name: The group or transactional id that it is about.
        answer: Done when the write is applied or refused; whoever asked waits for it, behind a shield.
        outcome: Whether the batch is replicated; None until that is known.
    """

    name: str
    first_offset: int
    applied: Applied
    refused: Refused
    answer: asyncio.Future[int]
    outcome: KafkaError | bool | None = None


@dataclass(slots=True, eq=False)
class LedPartition:
    """A partition while this broker leads it in one leader epoch, and the writes that are under way.

    Invariant: writes are applied, or refused, in the order of the log. Whoever asked for one may be gone by then. With
    the leadership (`resign`) all of them end at once: the next leader reads from the log whether they count.
    """

    leader_epoch: int
    state: PartitionState = PartitionState.LOADING
    writes: deque[StateWrite] = field(default_factory=deque)

    def add(self, write: StateWrite, replication: Coroutine[Any, Any, None] | None) -> asyncio.Task[None] | None:
        """A batch was appended. Apply it when it is replicated; the task, if there is something to wait for."""
        self.writes.append(write)
        if replication is not None:
            return asyncio.get_running_loop().create_task(self._wait(write, replication))
        write.outcome = True
        self._drain()
        return None

    def resign(self, error: KafkaError) -> None:
        """This broker leads the partition no longer: refuse what is under way."""
        writes, self.writes = self.writes, deque()
        for write in writes:
            _refuse(write, error)

    async def written(self, name: str) -> None:
        """Wait until no write of this group or id is under way."""
        while (answer := next((each.answer for each in reversed(self.writes) if each.name == name), None)) is not None:
            await asyncio.wait([answer])

    async def _wait(self, write: StateWrite, replication: Coroutine[Any, Any, None]) -> None:
        try:
            await replication
            write.outcome = True
        except KafkaError as error:
            write.outcome = error
        except BaseException as error:
            write.outcome = KafkaError(ErrorCode.unknown_server_error, f"the write was interrupted: {error!r}")
            raise
        finally:
            self._drain()

    def _drain(self) -> None:
        while self.writes and self.writes[0].outcome is not None:
            write = self.writes.popleft()
            if isinstance(write.outcome, KafkaError):
                _refuse(write, write.outcome)
                continue
            try:
                write.applied(write.first_offset)
            except Exception as error:
                logger.exception("a write of %r cannot be taken over", write.name[:249])
                _answer(write, KafkaError(ErrorCode.unknown_server_error, str(error)))
            else:
                write.answer.set_result(write.first_offset)


def _refuse(write: StateWrite, error: KafkaError) -> None:
    try:
        write.refused(error)
    except Exception:
        logger.exception("a write of %r cannot be taken back", write.name[:249])
    _answer(write, error)


def _answer(write: StateWrite, error: KafkaError) -> None:
    write.answer.set_exception(error)
    write.answer.exception()  # told to whoever asked, if he is still there
