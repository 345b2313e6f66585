"""Any small cluster, for properties of reassignment."""

from __future__ import annotations

from hypothesis import strategies as st

from headwater.cli.reassignment.snapshot import BrokerSnapshot, ClusterSnapshot, LogDirSnapshot, PartitionSnapshot
from headwater.logtier.protocol.topic_partition import TopicPartition

SIZES = st.one_of(st.integers(0, 5), st.integers(0, 300))


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSnapshot:
    """Clusters of up to six brokers, some of them away, with racks or without, with one to three folders each."""
    ids = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    away = draw(st.sets(st.sampled_from(ids), max_size=1)) if len(ids) > 1 else set()
    has_racks = draw(st.booleans())
    brokers = {}
    for each in ids:
        if each not in away:
            rack = draw(st.sampled_from("xyz")) if has_racks else None
            room = st.one_of(st.none(), st.integers(0, 2_000))
            folders = [
                LogDirSnapshot(path, draw(st.one_of(st.none(), st.just(1_000))), draw(room))
                for path in "abc"[: draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 3))]
            ]
            brokers[each] = BrokerSnapshot(each, rack, tuple(folders))
    partitions = {}
    for number in range(draw(st.integers(0, 14))):
        replicas = tuple(draw(st.permutations(ids))[: draw(st.integers(1, min(3, len(ids))))])
        isr = tuple(each for each in replicas if each in brokers)
        dirs = {
            each: draw(st.sampled_from([folder.path for folder in brokers[each].log_dirs]))
            for each in isr
            if brokers[each].log_dirs
        }
        leader = draw(st.sampled_from(isr)) if isr else None
        key = TopicPartition(draw(st.sampled_from(("t", "u"))), number)
        partitions[key] = PartitionSnapshot(key, replicas, leader, isr, draw(SIZES), dirs)
    return ClusterSnapshot(brokers, partitions)
