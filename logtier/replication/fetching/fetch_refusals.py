"""Which error codes of leaders a follower logs, and how often."""

from __future__ import annotations

import logging
from typing import Final

from headwater.logtier.client.errors import error_name
from headwater.logtier.peers.backoff import FailureNotices
from headwater.logtier.peers.remedies import UNAUTHORIZED_REMEDY
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.replication.fetching.followed_partition import FollowedPartition
from headwater.logtier.runtime.clock import Clock

logger = logging.getLogger(__name__)

#: Answers of leaders and followers whose metadata differ for a moment.
_PASSING: Final = frozenset(
    (
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.inconsistent_topic_id,
    )
)
#: A leader answers so for each partition where it refuses the broker as a whole.
_UNAUTHORIZED: Final = frozenset((ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed))


class FetchRefusals:
    """The log lines about refused fetches, which are repeated every second until they succeed.

    A leader that does not authorize this broker is one line, whatever the number of partitions.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: By leader: those that refuse this broker as a whole.
        self._unauthorized: dict[int, FailureNotices] = {}

    def refused(self, followed: FollowedPartition, error_code: int) -> None:
        """Log an error code of one partition."""
        leader_id = followed.leader_id
        if error_code in _UNAUTHORIZED:
            self._not_authorized(leader_id, error_code)
            return
        level = logging.DEBUG if error_code in _PASSING else logging.ERROR
        logger.log(level, "%s: broker %d answered %s", followed.topic_partition, leader_id, error_name(error_code))

    def fetched(self, leader_id: int) -> None:
        """Note that a leader has served a partition."""
        if self._unauthorized and self._unauthorized.pop(leader_id, None) is not None:
            logger.info("broker %d serves fetches of this broker", leader_id)

    def _not_authorized(self, leader_id: int, error_code: int) -> None:
        """Log that a leader refuses this broker."""
        notices = self._unauthorized.setdefault(leader_id, FailureNotices())
        if notices.is_due(error_name(error_code), self._clock.monotonic_ms()):
            logger.error(
                "broker %d refuses fetches of this broker: %s; %s; the broker tries again",
                leader_id,
                error_name(error_code),
                UNAUTHORIZED_REMEDY,
            )
