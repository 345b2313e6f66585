"""The offsets of an OffsetCommit or TxnOffsetCommit request, with the partitions rejected separately."""

from dataclasses import dataclass
from typing import Any

from headwater.logtier.group.persistence.offsets import NO_LEADER_EPOCH, CommittedOffset
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType


@dataclass(frozen=True, slots=True)
class RequestedCommits:
    """The offsets to commit, and the response if they are committed.

    Attributes:
        commits: The valid commits.
        answers: The responses of every topic in the request.
        accepted: The responses of the partitions in `commits`.
    """

    commits: dict[TopicPartition, CommittedOffset]
    answers: list[dict[str, Any]]
    accepted: list[dict[str, Any]]

    def refuse(self, code: ErrorCode) -> None:
        """Set the error of the partitions in `commits`, which were not committed."""
        for answer in self.accepted:
            answer["error_code"] = code


def requested_commits(
    request: Any,
    context: RequestContext,
    now_ms: int,
    refusal: ErrorCode | None,
    *,
    has_leader_epoch: bool,
    expire_timestamp_ms: int | None = None,
) -> RequestedCommits:
    """Check the request: unknown partitions, too long metadata and topics that the client may not read are rejected.

    Args:
        refusal: An error of the whole request, None without one.
        has_leader_epoch: Whether the request's version has leader epochs.
        expire_timestamp_ms: The client's expiry of its offsets, if any.
    """
    image = context.services.metadata.image
    metadata_max = context.services.metadata.config.offset_metadata_max_bytes
    commits: dict[TopicPartition, CommittedOffset] = {}
    answers = []
    accepted = []
    for requested in request.topics:
        topic = image.topic(requested.name)
        partition_count = 0 if topic is None else len(topic.partitions)
        topic_id = None if topic is None else topic.topic_id
        denial = refusal
        if denial is None and not context.is_authorized(AclOperation.read, ResourceType.topic, requested.name):
            denial = ErrorCode.topic_authorization_failed
        partitions = []
        for partition in requested.partitions:
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            answer = {"partition_index": index, "error_code": ErrorCode.none}
            if denial is not None:
                answer["error_code"] = denial
            elif not 0 <= index < partition_count:
                answer["error_code"] = ErrorCode.unknown_topic_or_partition
            elif len(metadata) > metadata_max:
                answer["error_code"] = ErrorCode.offset_metadata_too_large
            else:
                accepted.append(answer)
                commits[TopicPartition(requested.name, index)] = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch if has_leader_epoch else NO_LEADER_EPOCH,
                    metadata,
                    now_ms,
                    expire_timestamp_ms,
                    topic_id,
                )
            partitions.append(answer)
        answers.append({"name": requested.name, "partitions": partitions})
    return RequestedCommits(commits, answers, accepted)
