"""What requests of administrators share: the way to the controller, and partitions by topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import BrokerError, broker_error
from headwater.logtier.client.messages import kio_request

__all__ = ["ask_controller", "partitions_by_topic", "refusal"]


def ask_controller(cluster: ClusterClient, api_key: int, values: Mapping[str, Any], what: str) -> Any:
    """Returns the response to a request that any broker forwards to the controller, with the client's time limit.

    Raises:
        BrokerError: The whole request is refused.
    """
    connection = cluster.any_connection()
    timeout = timedelta(milliseconds=cluster.config.request_timeout_ms)
    response = connection.call(kio_request(api_key, connection.version(api_key), {**values, "timeout": timeout}))
    if (error := refusal(response, what)) is not None:
        raise error
    return response


def refusal(answer: Any, what: str) -> BrokerError | None:
    """Returns the error of a response, or of a part of it; None without one."""
    code = int(answer.error_code)
    return broker_error(code, what, getattr(answer, "error_message", None)) if code else None


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the numbers of partitions, sorted, by topic.

    >>> partitions_by_topic([("b", 1), ("a", 2), ("b", 0)])
    {'a': [2], 'b': [0, 1]}
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics
