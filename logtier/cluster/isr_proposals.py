"""Asks the controller for the ISRs that leaders on this broker propose (AlterPartition, KIP-497)."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

from headwater.logtier.client.errors import UnsupportedVersionError
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.peers.backoff import ExponentialBackoff
from headwater.logtier.peers.controller_channel import NOT_CONTROLLER, STALE_BROKER_EPOCH, ControllerChannel
from headwater.logtier.peers.controller_requests import (
    AlteredPartition,
    AlterPartitionResult,
    ProposedPartition,
    alter_partition_request,
)
from headwater.logtier.peers.errors import PeersClosedError
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition_instructions import IsrDecision, ProposeIsr
from headwater.logtier.runtime.clock import Clock

log = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX: Final = 1_000
"""Partitions of one request: with ten members each it is within the element limit of requests (`request_counts`).
The next request takes the others."""

REPEAT_BACKOFF_MS: Final = 100
REPEAT_BACKOFF_MAX_MS: Final = 1_000
"""Delays before repeated proposals, as between attempts of the channel."""
CALM_MS: Final = 10_000
"""Time without a repeated proposal after which the delays begin anew."""


class _Pending(NamedTuple):
    """A proposal, and the topic as it was when the leader made it: a topic made anew has the same name."""

    proposal: ProposeIsr
    topic_id: UUID


class IsrProposals:
    """The proposals of this broker's leaders, until the controller has decided about them.

    Used on one event loop. Many partitions share a request: what is proposed while a request is under way waits for the
    next one. Invariants:

    - At most one request is under way, and so at most one proposal of a partition; of those waiting only the newest.
    - A new state is handed to the leader after this broker's image has it, and so has every earlier change: otherwise
      the leader would count with the new ISR and an older min.insync.replicas.
    - A proposal whose topic is gone, or which a newer one of its partition replaces, is dropped.

    The partitions' states bound the memory: each has one proposal under way at most.
    """

    def __init__(
        self,
        broker_id: int,
        channel: ControllerChannel,
        metadata: MetadataCache,
        clock: Clock,
        broker_epoch: Callable[[], int],
    ) -> None:
        """`broker_epoch` returns the epoch of this broker's present registration."""
        self._broker_id = broker_id
        self._channel = channel
        self._metadata = metadata
        self._clock = clock
        self._broker_epoch = broker_epoch
        #: Receives each decision; set once, before the first proposal.
        self.decided: Callable[[ProposeIsr, IsrDecision], None] = _nobody
        self._waiting: dict[TopicPartition, _Pending] = {}
        #: Repeated proposals, until the delay is over.
        self._delayed: dict[TopicPartition, _Pending] = {}
        #: Decisions whose state the image does not have yet.
        self._unapplied: dict[TopicPartition, tuple[_Pending, IsrDecision]] = {}
        self._backoff = ExponentialBackoff(REPEAT_BACKOFF_MS, REPEAT_BACKOFF_MAX_MS, lambda: 0.5)
        self._repeated_ms = clock.monotonic_ms()
        self._delay: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False
        metadata.subscribe(self._metadata_changed)

    def propose(self, proposal: ProposeIsr) -> None:
        """Ask for an ISR; `decided` gets the answer, never during this call."""
        key = proposal.topic_partition
        topic = self._metadata.image.topic(key.topic)
        if topic is None or self._is_closed:
            return
        for pending in (self._waiting, self._delayed, self._unapplied):
            pending.pop(key, None)
        if proposal.is_repeated:
            self._delayed[key] = _Pending(proposal, topic.topic_id)
            self._schedule()
        else:
            self._waiting[key] = _Pending(proposal, topic.topic_id)
            self._begin()

    async def aclose(self) -> None:
        """Ask no more; proposals under way stay undecided."""
        self._is_closed = True
        self._waiting.clear()
        self._delayed.clear()
        self._unapplied.clear()
        if self._delay is not None:
            self._delay.cancel()
        if self._sending is not None:
            self._sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sending

    # -- requests

    def _schedule(self) -> None:
        """Send the repeated proposals after a delay, all of them together."""
        if self._delay is not None:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._repeated_ms >= CALM_MS:
            self._backoff.reset()
        self._repeated_ms = now_ms
        delay_s = self._backoff.next_delay_ms() / 1000
        self._delay = asyncio.get_running_loop().call_later(delay_s, self._delay_is_over)

    def _delay_is_over(self) -> None:
        self._delay = None
        self._waiting.update(self._delayed)
        self._delayed.clear()
        self._begin()

    def _begin(self) -> None:
        if self._waiting and self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.pop(key) for key in list(self._waiting)[:PARTITIONS_PER_REQUEST_MAX]]
                self._answered(batch, await self._ask(batch))
        except PeersClosedError:
            pass  # the broker stops
        finally:
            self._sending = None

    async def _ask(self, batch: list[_Pending]) -> AlterPartitionResult:
        """Return the controller's answer; every attempt leaves out what is no longer asked for.

        An attempt without an answer may have been executed: the repetition compares with the same partition epochs,
        and an ISR that is stored already is answered with its state.
        """
        try:
            return await self._channel.call(
                lambda: alter_partition_request(
                    self._broker_id,
                    self._broker_epoch(),
                    [_proposed(pending) for pending in batch if self._is_wanted(pending)],
                ),
                lambda result: result.error_code,
                retriable=(NOT_CONTROLLER, STALE_BROKER_EPOCH),
            )
        except UnsupportedVersionError as error:
            log.warning("the controller does not take proposals of ISRs: %s", error)
            return AlterPartitionResult(ErrorCode.unsupported_version, [])
        except PeersClosedError:
            raise
        except Exception:
            # Undecided, the partitions would propose nothing any more.
            log.exception("proposals of %d ISRs failed", len(batch))
            return AlterPartitionResult(ErrorCode.unknown_server_error, [])

    def _is_wanted(self, pending: _Pending) -> bool:
        key = pending.proposal.topic_partition
        is_replaced = key in self._waiting or key in self._delayed
        return not is_replaced and pending.topic_id in self._metadata.image.topic_names

    # -- decisions

    def _answered(self, batch: list[_Pending], result: AlterPartitionResult) -> None:
        if result.error_code not in (ErrorCode.none, ErrorCode.cluster_authorization_failed):  # the channel logs it
            log.warning("proposals of %d ISRs failed: %s", len(batch), _code(result.error_code).name)
        altered = {(each.topic_id, each.partition): each for each in result.partitions}
        for pending in batch:
            if not self._is_wanted(pending):
                continue
            answer = altered.get((pending.topic_id, pending.proposal.topic_partition.partition))
            decision = _decision(result.error_code, answer)
            if self._is_applied(pending, decision):
                self._hand_over(pending, decision)
            else:
                self._unapplied[pending.proposal.topic_partition] = (pending, decision)

    def _is_applied(self, pending: _Pending, decision: IsrDecision) -> bool:
        """Whether this broker's image has the decided state, or a later one."""
        if decision.error_code is not ErrorCode.none:
            return True
        topic = self._metadata.image.topic_by_id(pending.topic_id)
        if topic is None:
            return True
        return topic.partitions[pending.proposal.topic_partition.partition].partition_epoch >= decision.partition_epoch

    def _metadata_changed(self, _: MetadataDelta) -> None:
        # After the other subscribers: the leader's own state follows the image first.
        if self._unapplied:
            asyncio.get_running_loop().call_soon(self._hand_over_applied)

    def _hand_over_applied(self) -> None:
        for key, (pending, decision) in list(self._unapplied.items()):
            # A decision before may have led to a newer proposal of this partition, which replaces this one.
            if key in self._unapplied and self._is_applied(pending, decision):
                del self._unapplied[key]
                self._hand_over(pending, decision)

    def _hand_over(self, pending: _Pending, decision: IsrDecision) -> None:
        try:
            self.decided(pending.proposal, decision)
        except Exception:
            # The other partitions of the request get their decisions all the same.
            log.exception("a decision about the ISR of %s could not be applied", pending.proposal.topic_partition)


def _proposed(pending: _Pending) -> ProposedPartition:
    """Return the proposal as sent. A leader that asks has recovered (KIP-704)."""
    proposal = pending.proposal
    return ProposedPartition(
        pending.topic_id,
        proposal.topic_partition.partition,
        proposal.leader_epoch,
        {member.broker_id: member.broker_epoch for member in proposal.members},
        proposal.partition_epoch,
        is_recovering=False,
    )


def _decision(error_code: int, answer: AlteredPartition | None) -> IsrDecision:
    if error_code:
        return IsrDecision(_code(error_code))
    if answer is None:
        return IsrDecision(ErrorCode.unknown_server_error)  # the controller left it out: asked again
    if answer.error_code:
        return IsrDecision(_code(answer.error_code))
    return IsrDecision(ErrorCode.none, answer.leader_epoch, answer.partition_epoch, answer.isr)


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


def _nobody(proposal: ProposeIsr, _: IsrDecision) -> None:
    raise AssertionError(f"nobody waits for the decision about {proposal}")
