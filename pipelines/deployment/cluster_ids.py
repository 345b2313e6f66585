"""Ids of the cluster and of topics: an id shows that a cluster or a topic was recreated under the same name."""

from __future__ import annotations

from collections.abc import Collection

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.options import WriteOptions

__all__ = ["ids_of"]

#: The answer of brokers that predate topic ids.
_NO_ID = "00000000-0000-0000-0000-000000000000"


def ids_of(brokers: Brokers, topics: Collection[str]) -> tuple[str | None, dict[str, str]]:
    """The cluster's id and the ids of the existing topics.

    Unreachable brokers yield no ids: the run itself reports them.
    """
    client = WriteOptions.parse(connection_options(brokers)).client
    try:
        with ClusterClient(client) as cluster:
            cluster.retry("the ids of topics", lambda: cluster.refresh_metadata(sorted(topics)))
            found = {name: str(known) for name in topics if (known := cluster.topic_id(name)) is not None}
            return cluster.cluster_id, {name: known for name, known in found.items() if known != _NO_ID}
    except ClientError:
        return None, {}
