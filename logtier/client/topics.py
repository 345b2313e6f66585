"""Creates topics that a client itself requires. The command line's administration is in other modules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import broker_error
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = ["ensure_topic"]

_TOPIC_ALREADY_EXISTS: Final = 36
_BROKER_DEFAULT: Final = -1


def ensure_topic(cluster: ClusterClient, topic: str, *, partitions: int, configs: Mapping[str, str]) -> None:
    """Creates a topic if it does not exist, with the brokers' default replication factor.

    Raises BrokerError, also for a missing permission.
    """

    def ask() -> None:
        connection = cluster.any_connection()
        response: Any = connection.call(
            kio_request(
                ApiKey.CREATE_TOPICS,
                connection.version(ApiKey.CREATE_TOPICS),
                {
                    "topics": (
                        {
                            "name": topic,
                            "num_partitions": partitions,
                            "replication_factor": _BROKER_DEFAULT,
                            "assignments": (),
                            "configs": tuple({"name": name, "value": value} for name, value in configs.items()),
                        },
                    ),
                    "timeout": timedelta(milliseconds=cluster.config.request_timeout_ms),
                    "validate_only": False,
                },
            )
        )
        [created] = response.topics
        if created.error_code not in (0, _TOPIC_ALREADY_EXISTS):
            raise broker_error(int(created.error_code), f"creating topic {topic!r}", created.error_message)

    cluster.retry(f"creating topic {topic!r}", ask)
