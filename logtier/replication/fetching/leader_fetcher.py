"""One loop of fetches from one leader."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headwater.logtier.client.errors import ClientError, error_name
from headwater.logtier.peers.leader_requests import ListedOffset, list_offsets_request
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.peers.replica_fetch import ReplicaFetchPartition, ReplicaFetchResponse, replica_fetch_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.fetching.fetch_plan import FetchPlan, PlannedFetch
from headwater.logtier.replication.fetching.followed_partition import FetchLimits, FollowedPartition
from headwater.logtier.replication.fetching.follower_logs import AnswerOutcome, FollowerLogs
from headwater.logtier.replication.replication_throttles import ReplicationThrottle
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

logger = logging.getLogger(__name__)

#: Timestamps of ListOffsets.
LATEST: Final = -1
EARLIEST: Final = -2
#: Longest wait of a request of those that catch up, in ms.
JOINING_MS: Final = 50
#: Records appended without a pause, in bytes: a few milliseconds of the event loop, as for a produce request.
TURN_BYTES: Final = 1 << 20

#: The leader evicted the session, or lost it with its process: a full request begins another one at once.
_SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    )
)


class FollowerIdentity(NamedTuple):
    """This broker, as its fetches state it (KIP-903)."""

    broker_id: int
    broker_epoch: Callable[[], int]


_Question = tuple[FollowedPartition, ReplicaFetchPartition]


class LeaderFetcher:
    """Fetches from one leader over one connection, one request at a time; the replica fetchers own it.

    Invariant: an answer is applied by `FollowerLogs`, which checks that the world has not changed meanwhile; a failing
    partition pauses alone, and only a request without an answer pauses all.
    """

    def __init__(
        self,
        leader_id: int,
        purpose: Purpose,
        identity: FollowerIdentity,
        peers: Peers,
        logs: FollowerLogs,
        clock: Clock,
        limits: Callable[[], FetchLimits],
        throttle: ReplicationThrottle,
    ) -> None:
        """`throttle` is the follower's side of this broker (KIP-73)."""
        self.leader_id = leader_id
        self._throttle = throttle
        self._purpose = purpose
        self._identity = identity
        self._peers = peers
        self._logs = logs
        self._clock = clock
        self._limits = limits
        self._plan = FetchPlan(lambda: limits().backoff_ms)
        #: The leader's high watermarks, as its last answers tell them.
        self._watermarks: dict[TopicPartition, int] = {}
        #: Partitions that another fetcher fetches until this one does, and what ends that.
        self._awaited: dict[TopicPartition, Callable[[], None]] = {}
        self._is_asking = False
        self._news = asyncio.Event()
        self._tasks = SpawnedTasks("replica fetchers")
        self._tasks.spawn(self._run())

    def __len__(self) -> int:
        """Number of partitions fetched."""
        return len(self._plan)

    @property
    def is_asking(self) -> bool:
        """Whether a request is under way, which may wait at the leader for `replica.fetch.wait.max.ms`."""
        return self._is_asking

    # -- events

    def follow(self, followed: FollowedPartition, taken_over: Callable[[], None] | None = None) -> None:
        """Fetch a partition from now on that is not fetched here.

        Args:
            taken_over: Called once, when a request asks for the partition or it is no longer followed here: until then
                another fetcher may fetch it.
        """
        self._plan.follow(followed)
        if taken_over is not None:
            self._awaited[followed.topic_partition] = taken_over
        self._news.set()

    def unfollow(self, key: TopicPartition) -> None:
        """Fetch a partition no longer."""
        self._plan.unfollow(key)
        self._watermarks.pop(key, None)
        if (taken_over := self._awaited.pop(key, None)) is not None:
            taken_over()

    def settled(self, key: TopicPartition) -> None:
        """Fetch a truncated partition again."""
        self._plan.release(key)
        self._news.set()

    def leader_returned(self) -> None:
        """Fetch at once from a leader that registered again."""
        self._plan.leader_returned()
        self._news.set()

    async def aclose(self) -> None:
        """Stop."""
        await self._tasks.cancel()

    # -- the loop

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception:
                logger.exception("fetching from broker %d failed", self.leader_id)
                self._plan.failed(self._clock.monotonic_ms())

    async def _turn(self) -> None:
        """Send one request and apply its answer, or wait until there is something to ask."""
        limits = self._limits()
        self._news.clear()
        now_ms = self._clock.monotonic_ms()
        planned = self._plan.next(now_ms, lambda followed: self._position(followed, limits.partition_bytes_max, now_ms))
        if self._awaited:
            self._take_over()
        if planned is None:
            await self._rest()
            return
        request = replica_fetch_request(
            self._identity.broker_id,
            self._identity.broker_epoch(),
            planned.positions,
            wait_ms=self._wait_ms(planned, limits),
            bytes_min=limits.bytes_min,
            bytes_max=limits.response_bytes_max,
            session_id=planned.session_id,
            session_epoch=planned.session_epoch,
            forgotten=planned.forgotten,
        )
        self._is_asking = True
        try:
            response = await self._peers.call(self.leader_id, self._purpose, request, limits.timeout_ms)
        except ClientError as error:
            logger.debug("no answer of broker %d to a fetch: %s", self.leader_id, error)
            self._plan.failed(self._clock.monotonic_ms())
            return
        finally:
            self._is_asking = False
        await self._take(planned, response)

    def _wait_ms(self, planned: PlannedFetch, limits: FetchLimits) -> int:
        """How long the leader may wait for records.

        Not at all if there is more to ask. Those that catch up have records; what joins those in sync is asked for here
        meanwhile, and must not wait for an earlier request of the same kind either.
        """
        if planned.is_full:
            return 0
        return limits.wait_ms_max if self._purpose is Purpose.FETCH_IN_SYNC else min(JOINING_MS, limits.wait_ms_max)

    def _take_over(self) -> None:
        """End the fetches elsewhere of what the planned request asks for."""
        for key in [key for key in self._awaited if self._plan.is_told(key)]:
            self._awaited.pop(key)()

    def _position(self, followed: FollowedPartition, bytes_max: int, now_ms: int) -> ReplicaFetchPartition | int | None:
        """Return where to fetch a partition; a throttled one that is not exempt pauses while the quota is exceeded."""
        position = self._logs.position(followed, bytes_max)
        if position is None or not self._throttle.is_active or self._is_exempt(followed, position):
            return position
        return self._throttle.wait_ms(followed.topic_partition, now_ms) or position

    def _is_exempt(self, followed: FollowedPartition, position: ReplicaFetchPartition) -> bool:
        """Whether producers wait for this replica, or will at once: at the leader's watermark it joins the ISR."""
        watermark = self._watermarks.get(followed.topic_partition)
        return followed.is_in_sync or (watermark is not None and position.fetch_offset >= watermark)

    async def _rest(self) -> None:
        wait_ms = self._plan.wait_ms(self._clock.monotonic_ms())
        try:
            async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _take(self, planned: PlannedFetch, response: ReplicaFetchResponse) -> None:
        """Apply an answer, partition by partition; other work of the broker runs in between."""
        if response.error_code:
            self._refused(planned, response.error_code)
            return
        self._plan.answered(response.session_id)
        turn_bytes = 0
        out_of_range: list[_Question] = []
        for answer in response.partitions:
            question = self._plan.asked(answer.topic_id, answer.partition)
            if question is None:
                continue  # followed elsewhere meanwhile, or not at all
            followed, asked = question
            outcome = self._logs.take(followed, asked, answer)
            if outcome is AnswerOutcome.OUT_OF_RANGE:
                self._plan.hold(followed)
                out_of_range.append(question)
            else:
                self._plan_after(outcome, followed)
            size = len(answer.records)
            if self._throttle.is_active:
                now_ms, is_exempt = self._clock.monotonic_ms(), self._is_exempt(followed, asked)
                self._throttle.record(followed.topic_partition, size, now_ms, is_exempt=is_exempt)
            if outcome is AnswerOutcome.APPLIED:
                self._watermarks[followed.topic_partition] = answer.high_watermark
            turn_bytes += size
            if turn_bytes >= TURN_BYTES:
                turn_bytes = 0
                await asyncio.sleep(0)
        if out_of_range:
            self._tasks.spawn(self._find_ends(out_of_range))

    def _refused(self, planned: PlannedFetch, error_code: int) -> None:
        if error_code in _SESSION_ERRORS and planned.session_epoch:
            self._plan.restart()
            return
        logger.warning("broker %d answered %s to a fetch", self.leader_id, error_name(error_code))
        self._plan.failed(self._clock.monotonic_ms())

    def _plan_after(self, outcome: AnswerOutcome, followed: FollowedPartition) -> None:
        match outcome:
            case AnswerOutcome.APPLIED:
                self._plan.touch(followed)
            case AnswerOutcome.TRUNCATED:
                self._plan.hold(followed)
            case AnswerOutcome.OUTDATED:
                # The leader counts its watermark as told.
                self._plan.restart()
            case AnswerOutcome.FAILED | AnswerOutcome.OUT_OF_RANGE:
                self._plan.back_off(followed, self._clock.monotonic_ms())

    # -- logs out of range

    async def _find_ends(self, questions: Sequence[_Question]) -> None:
        """Ask where the leader's logs begin and end, and move this broker's into them. Other fetches go on."""
        try:
            starts, ends = await self._list(questions, EARLIEST), await self._list(questions, LATEST)
        except ClientError as error:
            logger.debug("no answer of broker %d to a look-up of offsets: %s", self.leader_id, error)
            starts = ends = {}
        for followed, asked in questions:
            if not self._plan.is_held(followed):
                continue  # its truncation has settled meanwhile, by an answer of the other connection
            start, end = starts.get(followed.topic_partition), ends.get(followed.topic_partition)
            outcome = AnswerOutcome.FAILED
            if start is not None and end is not None and not start.error_code and not end.error_code:
                outcome = self._logs.move_into(followed, asked, start.offset, end.offset)
            # The answer is of this leader epoch only.
            self._plan_after(AnswerOutcome.FAILED if outcome is AnswerOutcome.OUTDATED else outcome, followed)

    async def _list(self, questions: Sequence[_Question], timestamp: int) -> dict[TopicPartition, ListedOffset]:
        wanted: dict[tuple[str, int], tuple[int, int]] = {
            followed.topic_partition: (followed.leader_epoch, timestamp) for followed, _ in questions
        }
        timeout_ms = self._limits().timeout_ms
        request = list_offsets_request(self._identity.broker_id, wanted, timeout_ms=timeout_ms)
        return await self._peers.call(self.leader_id, Purpose.OFFSETS, request, timeout_ms)
