"""Asks the brokers for what a load's decision needs of a topic's log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.configs import topic_configs
from headwater.logtier.client.errors import BrokerConnectionError, ClientError, UnknownTopicError
from headwater.logtier.client.fetcher import FetchConfig, read_partition
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.planning import Planner
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.ranges import Ranges

__all__ = ["bytes_per_offset", "client_of", "is_compacted", "keeps_all_records", "log_state"]

_POLICY: Final = "cleanup.policy"
_SAMPLE_BYTES: Final = 1 << 20
_NO_ID = "00000000-0000-0000-0000-000000000000"


def client_of(brokers: Brokers, topic: str = "-") -> ClientConfig:
    """The client's settings: what the brokers' file of properties says, and read_committed."""
    return _options(brokers, topic).client


def _options(brokers: Brokers, topic: str) -> ReadOptions:
    given = {**connection_options(brokers), "subscribe": topic, "kafka.isolation.level": "read_committed"}
    return ReadOptions.parse(given)


def log_state(brokers: Brokers, topic: str, times_ms: Iterable[int] = ()) -> LogState:
    """The topic's log now. Raises LoadError for a topic that does not exist, LoadFailed if no broker answers."""
    options = _options(brokers, topic)
    try:
        with ClusterClient(options.client) as cluster:
            planner = Planner(cluster, options)
            partitions = planner.partitions()
            topic_id = planner.topic_id(topic)
            first, end = planner.earliest(partitions), planner.latest(partitions)
            at = {time_ms: planner.at_or_after(partitions, time_ms) for time_ms in times_ms}
            if planner.partitions() != partitions or planner.topic_id(topic) != topic_id:
                raise LoadFailed(f"topic {topic} was made anew, or got more partitions, while it was looked at")
    except UnknownTopicError:
        raise LoadError(f"there is no topic '{topic}'") from None
    except BrokerConnectionError as error:
        raise LoadFailed(str(error)) from error
    except ClientError as error:
        raise LoadFailed(f"topic {topic}: {error}") from error
    return LogState(
        topic,
        "" if str(topic_id) in ("None", _NO_ID) else str(topic_id),
        {partition: offset for (_, partition), offset in first.items()},
        {partition: offset for (_, partition), offset in end.items()},
        # Records may have come since the ends were asked.
        {time_ms: {p: min(offset, end[t, p]) for (t, p), offset in found.items()} for time_ms, found in at.items()},
    )


def bytes_per_offset(brokers: Brokers, topic: str, ranges: Ranges) -> float | None:
    """The size of an offset in the log, by the first fetch of the largest range; None if it holds no batch."""
    partition, (start, end) = max(
        ((partition, each) for partition, parts in ranges.items() for each in parts), key=lambda p: p[1][1] - p[1][0]
    )
    options = _options(brokers, topic)
    fetch = FetchConfig(bytes_max=_SAMPLE_BYTES, wait_ms=0)
    try:
        with ClusterClient(options.client) as cluster:
            for fetched in read_partition(cluster, topic, partition, start, end, fetch):
                read = min(fetched.next_offset, end) - start
                return len(fetched.data) / read if read > 0 and len(fetched.data) else None
    except ClientError:
        return None  # the read itself reports it
    return None


def is_compacted(brokers: Brokers, topic: str) -> bool:
    """Whether the topic's cleanup.policy has compact.

    Raises LoadError if this user may not know it, LoadFailed if no broker answers.
    """
    try:
        with ClusterClient(client_of(brokers)) as cluster:
            policy = topic_configs(cluster, (topic,), _POLICY).get(topic)
    except ClientError as error:
        raise LoadFailed(f"the configs of topic {topic}: {error}") from error
    if policy is None:  # a topic is not taken for one that keeps all its records because nobody may look
        raise LoadError(f"the {_POLICY} of {topic} may not be described (DescribeConfigs): grant it")
    return "compact" in policy


def keeps_all_records(brokers: Brokers, topic: str) -> tuple[bool, list[str]]:
    """Whether a verification looks for rows that the log lacks, and the problem if nobody may know that.

    Of a compacted topic, a target has what the log had. Raises LoadFailed if no broker answers.
    """
    try:
        return not is_compacted(brokers, topic), []
    except LoadError as error:
        return False, [f"rows that the log lacks were not looked for: {error}"]
