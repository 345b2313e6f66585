"""Requests the offsets of groups that other brokers coordinate, for the holds of retention."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from headwater.logtier.client.errors import ClientError
from headwater.logtier.peers.leader_requests import group_offsets_request, topic_names_request
from headwater.logtier.peers.peers import SendToBroker
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX: Final = 500
"""Partitions of one request, whose encoding and decoding block the event loop for milliseconds."""
TOPICS_PER_REQUEST_MAX: Final = 50
"""Topics of one Metadata request: the answer has all their partitions, wanted or not."""
TIMEOUT_MS: Final = 5_000
"""Time limit of one request, also for the connection."""

_REFUSALS: Final = {ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed}

_Wanted = Mapping[str, Mapping[TopicPartition, UUID]]
_Found = dict[str, dict[TopicPartition, int]]
_Item = TypeVar("_Item")


class RemoteGroupOffsets:
    """Asks group coordinators; a failure leaves offsets out, and the next pass asks again.

    OffsetFetch names topics, whose ids may differ: the coordinator leaves out offsets of another topic than the one in
    its metadata, and is asked before for the topics of these ids. It does not return to older metadata.
    """

    def __init__(self, send: SendToBroker) -> None:
        self._send = send
        #: Coordinators whose refusal is logged.
        self._refused_by: set[int] = set()

    async def committed(self, broker_id: int, wanted: _Wanted, offsets: _Found) -> None:
        """Add to `offsets` what a coordinator knows of the offsets of its groups, request by request."""
        try:
            for batch in _batches(await self._known(broker_id, wanted), PARTITIONS_PER_REQUEST_MAX):
                asked: dict[str, list[TopicPartition]] = {}
                for group_id, key in batch:
                    asked.setdefault(group_id, []).append(key)
                answers = await self._send(broker_id, group_offsets_request(asked), TIMEOUT_MS)
                for group_id, answer in answers.items():
                    if group_id in asked:
                        offsets.setdefault(group_id, {}).update(answer.offsets)
                    if not _REFUSALS.isdisjoint(answer.error_codes):
                        self._log_refusal(broker_id, f"the offsets of group {group_id!r}")
        except ClientError as error:
            logger.debug("no more offsets of %d groups from broker %d: %s", len(wanted), broker_id, error)

    async def _known(self, broker_id: int, wanted: _Wanted) -> list[tuple[str, TopicPartition]]:
        """Return what is wanted, by topic, of the topics that the coordinator knows by their ids."""
        names = {topic_id: key.topic for of_one in wanted.values() for key, topic_id in of_one.items()}
        known: set[UUID] = set()
        for topic_ids in _batches(sorted(names, key=names.__getitem__), TOPICS_PER_REQUEST_MAX):
            topics = await self._send(broker_id, topic_names_request(topic_ids), TIMEOUT_MS)
            for topic_id in topic_ids:
                if topics.names.get(topic_id) == names[topic_id]:
                    known.add(topic_id)
                elif topics.error_codes.get(topic_id) in _REFUSALS:
                    self._log_refusal(broker_id, f"the id of topic {names[topic_id]!r}")
        return sorted(
            ((group, key) for group, of_one in wanted.items() for key, topic_id in of_one.items() if topic_id in known),
            key=lambda each: each[1].topic,
        )

    def _log_refusal(self, broker_id: int, refused: str) -> None:
        """Log once that a coordinator refuses this broker: unlike other errors this one is not transient."""
        if broker_id not in self._refused_by:
            self._refused_by.add(broker_id)
            logger.warning(
                "broker %d refuses %s: this broker's principal lacks Describe on a group or its topics, so "
                "retention.hold.groups holds all records there; add the principal to super.users",
                broker_id,
                refused,
            )


def _batches(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Yield what goes into one request each."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
