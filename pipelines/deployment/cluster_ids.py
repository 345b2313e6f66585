"""Which cluster the brokers are, and which topics: ids tell what was made anew under an old name."""

from __future__ import annotations

from collections.abc import Collection

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.options import WriteOptions

__all__ = ["ids_of"]

#: What brokers that are older than topic ids answer.
_NO_ID = "00000000-0000-0000-0000-000000000000"


def ids_of(brokers: Brokers, topics: Collection[str]) -> tuple[str | None, dict[str, str]]:
    """The cluster's id and those of the topics, as far as they are there.

    Brokers that cannot be asked say nothing: the run itself tells of them.
    """
    client = WriteOptions.parse(connection_options(brokers)).client
    try:
        with ClusterClient(client) as cluster:
            cluster.retry("the ids of topics", lambda: cluster.refresh_metadata(sorted(topics)))
            found = {name: str(known) for name in topics if (known := cluster.topic_id(name)) is not None}
            return cluster.cluster_id, {name: known for name, known in found.items() if known != _NO_ID}
    except ClientError:
        return None, {}
