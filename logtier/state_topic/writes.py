"""Writes to one partition of a coordinator's topic: appended at once, applied in log order, then answered."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from headwater.logtier.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

#: What is to be awaited begins when this is called.
Wait = Callable[[], Coroutine[Any, Any, None]]
#: Applies a write in the log; called with the offset of its first record.
Applied = Callable[[int], None]
#: Reverts the preparation of a failed write.
Refused = Callable[[KafkaError], None]


class PartitionState(Enum):
    """The state of the loading of a partition."""

    #: To be read.
    LOADING = auto()
    READING = auto()
    #: Read; the high watermark has not passed the end of what was read.
    WAITING = auto()
    ACTIVE = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class StateWrite:
    """A batch that is in the log and not yet applied.

    Attributes:
        name: The group or transactional id of the write.
        answer: Completed when the write is applied or refused; the caller awaits it behind a shield.
        outcome: True if the batch is committed, an error if it cannot be known here, None while it is open.
    """

    name: str
    first_offset: int
    applied: Applied
    refused: Refused
    answer: asyncio.Future[int]
    outcome: KafkaError | bool | None = None


@dataclass(slots=True, eq=False)
class LedPartition:
    """A partition led by this broker in one leader epoch, with its running writes.

    Invariant: writes are applied or refused in log order, even if the caller was cancelled. At the end of the
    leadership (`resign`) all of them fail at once: the next leader's log decides whether they count.
    """

    leader_epoch: int
    state: PartitionState = PartitionState.LOADING
    writes: deque[StateWrite] = field(default_factory=deque)
    #: Set while no load is under way: the partition is loaded, failed or resigned.
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, state: PartitionState) -> None:
        """Change the state; what waits for the end of the load goes on."""
        self.state = state
        if state in (PartitionState.ACTIVE, PartitionState.FAILED):
            self.settled.set()
        else:
            self.settled.clear()

    def add(self, write: StateWrite, commitment: Wait | None) -> asyncio.Task[None] | None:
        """Add an appended batch, to be applied when committed; return the task that waits for that, if any."""
        self.writes.append(write)
        if commitment is not None:
            return asyncio.get_running_loop().create_task(self._wait(write, commitment))
        write.outcome = True
        self._drain()
        return None

    def resign(self, error: KafkaError) -> None:
        """End the leadership: fail all running writes."""
        self.settled.set()
        writes, self.writes = self.writes, deque()
        for write in writes:
            _refuse(write, error)

    async def written(self, name: str) -> None:
        """Wait until no write of this group or id is running."""
        while (answer := next((each.answer for each in reversed(self.writes) if each.name == name), None)) is not None:
            await asyncio.wait([answer])

    async def _wait(self, write: StateWrite, commitment: Wait) -> None:
        try:
            await commitment()
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
                logger.exception("a write of %r cannot be applied", write.name[:249])
                _answer(write, KafkaError(ErrorCode.unknown_server_error, str(error)))
            else:
                write.answer.set_result(write.first_offset)


def _refuse(write: StateWrite, error: KafkaError) -> None:
    try:
        write.refused(error)
    except Exception:
        logger.exception("a failed write of %r cannot be reverted", write.name[:249])
    _answer(write, error)


def _answer(write: StateWrite, error: KafkaError) -> None:
    write.answer.set_exception(error)
    write.answer.exception()  # marked as retrieved; the caller, if not cancelled, gets it as well
