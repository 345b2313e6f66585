"""Changes of the metadata that a broker of a cluster needs for itself: topics and blocks of producer ids."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import ClientError, error_name
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.controller.commands import NewTopic, TopicResult
from headwater.logtier.controller.producer_ids import ProducerIds
from headwater.logtier.controller.state import CountMutations, unlimited
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.peers.controller_channel import NOT_CONTROLLER, STALE_BROKER_EPOCH, ControllerChannel
from headwater.logtier.peers.controller_requests import allocate_producer_ids_request
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.messages import to_timedelta

TIMEOUT_MS: Final = 15_000
"""Time limit of all attempts: clients wait for the answer, and have time to ask again within request.timeout.ms."""

CREATE_TIMEOUT_MS: Final = 3_000
"""The same for topics. A client asks for one by Metadata, on a connection on which it produces to others: they must not
wait as long as there is no controller."""

IMAGE_TIMEOUT_S: Final = 5.0
"""Time limit of the wait until this broker's image has a created topic. The controller has it by then, and the others
follow within milliseconds, unless this broker is cut off from the metadata store."""


class RemoteChanges:
    """The controller of the cluster, asked by requests; implements `MetadataChanges`.

    Each request is safe to repeat: a topic that was created is answered as existing, which callers accept, and a block
    of producer ids whose answer was lost stays unused.
    """

    def __init__(
        self,
        broker_id: int,
        channel: ControllerChannel,
        follower: MetadataFollower,
        broker_epoch: Callable[[], int],
    ) -> None:
        """`broker_epoch` returns the epoch of this broker's present registration."""
        self._broker_id = broker_id
        self._channel = channel
        self._follower = follower
        self._broker_epoch = broker_epoch
        self.producer_ids = ProducerIds(self.allocate_producer_ids)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, count_mutations: CountMutations = unlimited
    ) -> list[TopicResult]:
        """Create topics with CREATE of this broker; one result for each name.

        Args:
            count_mutations: Applies the quota of the client for whom the topics are created.
        """
        asked = {topic.name: topic for topic in topics}
        results: dict[str, TopicResult] = {}
        for topic in asked.values():
            try:
                count_mutations(self._partition_count(topic))
            except KafkaError as error:
                results[topic.name] = TopicResult(topic.name, error)
        wanted = [topic for name, topic in asked.items() if name not in results]
        if wanted:
            results |= await self._created(wanted)
        return [results[name] for name in asked]

    def _partition_count(self, topic: NewTopic) -> int:
        default = self._follower.cache.config.num_partitions
        return len(topic.assignments) or (default if topic.num_partitions == -1 else topic.num_partitions)

    async def _created(self, topics: Sequence[NewTopic]) -> dict[str, TopicResult]:
        request = _create_topics_request(topics)
        try:
            response = await self._channel.call(lambda: request, _error_of_any, timeout_ms=CREATE_TIMEOUT_MS)
        except ClientError as error:
            failure = KafkaError(ErrorCode.request_timed_out, f"The controller did not answer: {error}")
            return {topic.name: TopicResult(topic.name, failure) for topic in topics}
        errors = {each.name: _error(each) for each in response.topics}
        there = {name for name, error in errors.items() if error is None or _is_there(error)}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IMAGE_TIMEOUT_S):
                await self._follower.until(lambda image: there <= image.topics.keys())
        missing = KafkaError(ErrorCode.unknown_server_error, "The controller did not answer for the topic.")
        return {
            topic.name: TopicResult(topic.name, errors.get(topic.name, missing), self._follower.image.topic(topic.name))
            for topic in topics
        }

    async def allocate_producer_ids(self, count: int) -> range:  # noqa: ARG002 (the controller decides on the size)
        """Return a block of producer ids, which overlaps no other block.

        Raises:
            KafkaError: coordinator_load_in_progress, which clients retry, as in Kafka; unknown_server_error, which they
                do not, when only an administrator can mend what the controller has logged.
        """
        try:
            block = await self._channel.call(
                lambda: allocate_producer_ids_request(self._broker_id, self._broker_epoch()),
                lambda block: block.error_code,
                timeout_ms=TIMEOUT_MS,
                retriable=(NOT_CONTROLLER, STALE_BROKER_EPOCH),
            )
        except ClientError as error:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, f"no block of producer ids: {error}") from error
        if block.error_code == ErrorCode.unknown_server_error:
            raise KafkaError(ErrorCode.unknown_server_error, "the controller has no producer ids; its log says why")
        if block.error_code:
            raise KafkaError(
                ErrorCode.coordinator_load_in_progress, f"the controller answered {error_name(block.error_code)}"
            )
        return range(block.first, block.first + block.length)


def _create_topics_request(topics: Sequence[NewTopic]) -> Request[Any]:
    return kio_request(
        ApiKey.CREATE_TOPICS,
        7,
        {
            "topics": tuple(
                {
                    "name": topic.name,
                    "num_partitions": topic.num_partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": tuple(
                        {"partition_index": index, "broker_ids": tuple(brokers)}
                        for index, brokers in topic.assignments.items()
                    ),
                    "configs": tuple({"name": name, "value": value} for name, value in topic.configs.items()),
                }
                for topic in topics
            ),
            "timeout": to_timedelta(CREATE_TIMEOUT_MS),
            "validate_only": False,
        },
    )


def _error_of_any(response: Any) -> int:
    """Return NOT_CONTROLLER if a topic has it, as all topics have then."""
    return NOT_CONTROLLER if any(each.error_code == NOT_CONTROLLER for each in response.topics) else 0


def _error(topic: Any) -> KafkaError | None:
    code = ErrorCode(topic.error_code)
    return None if code is ErrorCode.none else KafkaError(code, topic.error_message or "")


def _is_there(error: KafkaError) -> bool:
    return error.code is ErrorCode.topic_already_exists
