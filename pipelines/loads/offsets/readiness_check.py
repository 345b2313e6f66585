"""Looks at topics on the brokers to see whether they have passed a time (see `readiness`)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from headwater.logtier.client.cluster import LATEST, ClientConfig, ClusterClient
from headwater.logtier.client.errors import ClientError, UnknownTopicError
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.log_state import client_of
from headwater.pipelines.loads.offsets.readiness import PartitionEnds, Unready, unready

__all__ = ["check_readiness"]


def check_readiness(
    brokers: Brokers,
    topics: Sequence[str],
    time_ms: int,
    idle_s: float,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Unready]:
    """The partitions that have not passed a time. Looks twice if only the clock can decide.

    Raises LoadError for a topic that does not exist, LoadFailed if no broker answers.
    """
    config = client_of(brokers)
    first = _look(config, topics, time_ms)
    if clock() * 1000 < time_ms or not unready(first):
        return unready(first)
    sleep(idle_s)
    return unready(first, _look(config, topics, time_ms))


def _look(config: ClientConfig, topics: Sequence[str], time_ms: int) -> list[PartitionEnds]:
    try:
        # The end of all records is asked first: one that is added in between then makes no open transaction.
        with ClusterClient(dataclasses.replace(config, read_committed=False)) as cluster:
            partitions = [(topic, partition) for topic in topics for partition in cluster.partitions(topic)]
            ends = cluster.list_offsets(dict.fromkeys(partitions, LATEST))
        with ClusterClient(dataclasses.replace(config, read_committed=True)) as cluster:
            at = cluster.list_offsets(dict.fromkeys(partitions, time_ms))
            stable = cluster.list_offsets(dict.fromkeys(partitions, LATEST))
    except UnknownTopicError as error:
        raise LoadError(str(error)) from None
    except ClientError as error:
        raise LoadFailed(str(error)) from error
    return [
        PartitionEnds(topic, partition, 0 <= at[topic, partition] < stable[topic, partition], stable[topic, partition],
                      ends[topic, partition])
        for topic, partition in partitions
    ]  # fmt: skip
