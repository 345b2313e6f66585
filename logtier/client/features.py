"""The feature levels of a cluster (KIP-584): what its brokers support, what is finalized, and changes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headwater.logtier.client.administration import ask_controller
from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import broker_error
from headwater.logtier.client.messages import ApiKey, kio_request

__all__ = ["ClusterFeature", "cluster_features", "update_features"]


class ClusterFeature(NamedTuple):
    """A feature: the levels that all brokers support, and the finalized one. `last` is below `first` if none is."""

    name: str
    first: int
    last: int
    finalized: int


def cluster_features(cluster: ClusterClient) -> tuple[int, list[ClusterFeature]]:
    """Returns the number of changes of the levels so far, and every feature by name; asks each live broker.

    Raises:
        ClientError: A broker does not answer.
    """

    def ask() -> list[Any]:
        cluster.refresh_metadata(())
        return [_ask(cluster.connection(node_id)) for node_id in cluster.nodes()]

    answers = cluster.retry("the features of the brokers", ask)
    newest = max(answers, key=lambda answer: int(answer.finalized_features_epoch))
    finalized = {str(each.name): int(each.max_version_level) for each in newest.finalized_features}
    supported = [
        {str(each.name): (int(each.min_version), int(each.max_version)) for each in answer.supported_features}
        for answer in answers
    ]
    names = sorted({*finalized, *(name for ranges in supported for name in ranges)})
    features = []
    for name in names:
        # A broker that does not know a feature supports it at level 0.
        ranges = [each.get(name, (0, 0)) for each in supported]
        first, last = max(low for low, _ in ranges), min(high for _, high in ranges)
        features.append(ClusterFeature(name, first, last, finalized.get(name, 0)))
    return int(newest.finalized_features_epoch), features


def _ask(connection: BlockingConnection) -> Any:
    version = connection.version(ApiKey.API_VERSIONS)
    software = {"client_software_name": "headwater", "client_software_version": "1"}
    request = kio_request(ApiKey.API_VERSIONS, version, software)
    answer = connection.call(request)
    if answer.error_code:
        raise broker_error(int(answer.error_code), f"ApiVersions at {connection.address}")
    return answer


def update_features(
    cluster: ClusterClient, levels: Mapping[str, int], upgrade_type: int, *, validate_only: bool = False
) -> None:
    """Changes levels, all or none; `upgrade_type` has the protocol's numbers.

    Raises:
        BrokerError: The update is refused, with the reason.
    """
    updates = tuple(
        {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type} for name, level in levels.items()
    )
    what, values = "changing feature levels", {"feature_updates": updates, "validate_only": validate_only}
    cluster.retry(what, lambda: ask_controller(cluster, ApiKey.UPDATE_FEATURES, values, what))
