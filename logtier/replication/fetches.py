"""Fetches of several partitions: read at once, or when there are records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headwater.logtier.replication.cold_reads import ColdRead, warm
from headwater.logtier.replication.delayed_fetch import DelayedFetch, is_satisfied
from headwater.logtier.replication.fetch_session import FetchSession
from headwater.logtier.replication.partition_reads import Fetched, FetchingFollower, FetchPartition, PartitionReads
from headwater.logtier.replication.partition_replication import PartitionReplication
from headwater.logtier.replication.replication_throttles import ReplicationThrottles
from headwater.logtier.replication.session_moves import DuePartitions, SessionMoves
from headwater.logtier.replication.throttled_reads import throttled_fetch
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.read_ahead import ReadAhead


class Fetches:
    """Reads for consumers and followers, from the event loop."""

    def __init__(
        self,
        reads: PartitionReads,
        replication: PartitionReplication,
        throttles: ReplicationThrottles,
        clock: Clock,
        read_ahead: ReadAhead | None,
    ) -> None:
        """Without `read_ahead`, look-ups of fetches may wait for the device."""
        self._reads = reads
        self._replication = replication
        self._throttles = throttles
        self._clock = clock
        self._read_ahead = read_ahead

    def fetch(
        self,
        wanted: Sequence[FetchPartition],
        *,
        bytes_max: int,
        bytes_min: int,
        wait_ms_max: int,
        may_wait: bool = False,
        follower: FetchingFollower | None = None,
        due: DuePartitions | None = None,
    ) -> Fetched | asyncio.Future[Fetched]:
        """Read several partitions, at once or when `bytes_min` are available.

        Args:
            follower: The follower that fetches; None for a consumer.
            may_wait: Whether look-ups may wait for the device on this thread.
            due: The partitions of a session of which `wanted` are those that are due now: the fetch waits for all of
                the session's. `bytes_min` is at most 1. None for the wanted partitions alone.

        Returns:
            The partitions in the order of the request, or of `due` when they are there; or a future of them: cancel it
            when the client disconnects.
        """
        if follower is not None:
            self._replication.follower_heard(follower, wanted)
            if (throttle := self._throttles.leader).is_active:
                now_ms = self._clock.monotonic_ms()
                wanted = throttled_fetch(throttle, wanted, follower.broker_id, self._reads.partition, now_ms)

        def wanted_now() -> Sequence[FetchPartition]:
            return wanted if due is None else due.read_again()

        cold: list[ColdRead] | None = None if may_wait or self._read_ahead is None else []
        fetched = self._reads.read(wanted, bytes_max, cold)
        if cold:
            return asyncio.ensure_future(
                self._warmed(
                    cold,
                    lambda: self.fetch(
                        wanted_now(),
                        bytes_max=bytes_max,
                        bytes_min=bytes_min,
                        wait_ms_max=wait_ms_max,
                        may_wait=True,
                        follower=follower,
                        due=due,
                    ),
                )
            )
        if follower is not None:
            self._replication.note_follower(follower, wanted, fetched)
        if wait_ms_max <= 0 or (not wanted and due is None) or is_satisfied(fetched, bytes_min):
            return fetched
        operation = DelayedFetch(
            wanted,
            fetched,
            bytes_min,
            self._reads,
            lambda: self.fetch(wanted_now(), bytes_max=bytes_max, bytes_min=0, wait_ms_max=0),
            may_wait=cold is None,
        )
        if operation.is_due:
            return fetched
        if due is not None:
            return due.wait(operation, wait_ms_max / 1000)
        watch = self._replication.delayed_fetches.watch(operation, operation.partitions, wait_ms_max / 1000)
        operation.future.add_done_callback(lambda done: watch.forget() if done.cancelled() else None)
        return operation.future

    def moves(self, session: FetchSession[FetchPartition]) -> SessionMoves:
        """Follow what moves in a session's partitions from now on."""
        return SessionMoves(session, self._reads, self._replication.delayed_fetches)

    @property
    def reads_all(self) -> bool:
        """Whether each fetch concerns all partitions: a throttle (KIP-73), or leaderships that a follower confirms."""
        return self._throttles.leader.is_active or self._replication.has_cut_off

    async def _warmed(
        self, cold: Sequence[ColdRead], fetch: Callable[[], Fetched | asyncio.Future[Fetched]]
    ) -> Fetched:
        """Fetch when what was not in memory is."""
        assert self._read_ahead is not None
        await warm(cold, self._read_ahead)
        fetched = fetch()
        return fetched if isinstance(fetched, list) else await fetched
