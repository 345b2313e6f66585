"""Reads configs of topics and brokers. Changes of configs are the command line's, in other modules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import AUTHORIZATION_FAILURES, broker_error
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = ["broker_config", "described_topics", "topic_configs"]

# Resource types of DescribeConfigs.
_TOPIC: Final = 2
_BROKER: Final = 4


def topic_configs(cluster: ClusterClient, topics: Collection[str], name: str) -> dict[str, str]:
    """Returns the value of one config by topic, without the topics whose configs this client may not describe."""
    found = described_topics(cluster, topics, (name,))
    return {topic: configs[name] for topic, configs in found.items() if name in configs}


def described_topics(
    cluster: ClusterClient, topics: Collection[str], names: Collection[str]
) -> dict[str, dict[str, str]]:
    """Returns values of configs by topic and name; those of one topic are of one moment.

    Topics whose configs this client may not describe are left out, as are configs that the broker does not know.
    """
    found: dict[str, dict[str, str]] = {}
    if not topics:
        return found

    def ask() -> None:
        for result in _describe(cluster.any_connection(), _TOPIC, topics, names):
            code = int(result.error_code)
            if code in AUTHORIZATION_FAILURES:
                continue
            if code:
                raise broker_error(code, f"describing topic {result.resource_name!r}", result.error_message)
            configs = {str(each.name): str(each.value) for each in result.configs if each.name in names}
            found[str(result.resource_name)] = configs

    what = "configs" if len(names) > 1 else "config"
    cluster.retry(f"the {what} {', '.join(names)} of topics", ask, topics=tuple(topics))
    return found


def broker_config(cluster: ClusterClient, name: str) -> str | None:
    """Returns the value of one config at any broker; None if there is no such config, or no permission to describe."""

    def ask() -> str | None:
        cluster.refresh_metadata(())
        node_id = cluster.nodes()[0]
        [result] = _describe(cluster.connection(node_id), _BROKER, (str(node_id),), (name,))
        code = int(result.error_code)
        if code in AUTHORIZATION_FAILURES:
            return None
        if code:
            raise broker_error(code, f"describing broker {node_id}", result.error_message)
        return next((str(each.value) for each in result.configs if each.name == name), None)

    return cluster.retry(f"the config {name} of a broker", ask)


def _describe(
    connection: BlockingConnection, kind: int, names: Collection[str], configs: Collection[str]
) -> tuple[Any, ...]:
    keys = tuple(configs)
    resources = tuple({"resource_type": kind, "resource_name": name, "configuration_keys": keys} for name in names)
    version = connection.version(ApiKey.DESCRIBE_CONFIGS)
    response = connection.call(kio_request(ApiKey.DESCRIBE_CONFIGS, version, {"resources": resources}))
    results: tuple[Any, ...] = response.results
    return results
