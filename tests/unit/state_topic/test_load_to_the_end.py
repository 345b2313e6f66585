"""A coordinator's load over a real log of several replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from headwater.logtier.records.batch import Record, build_batch
from tests.unit.replication.replicated_node import P0, TOPIC, ReplicatedNode
from tests.unit.state_topic.test_log import KeyLog, Keys


class ReplicatedKeyLog(KeyLog):
    """Keys in a partition that this node leads, beside two followers."""

    TOPIC = TOPIC

    def __init__(self, node: ReplicatedNode) -> None:
        super().__init__()
        self._replicas = cast("Any", node.replicas)
        self._metadata = cast("Any", node.metadata)


def test_a_load_reads_to_the_logs_end_and_not_to_the_watermark(tmp_path: Path) -> None:
    """A new leader's watermark lags behind what the old leader acknowledged: the state up to the end must count.

    A load to the watermark would forget the newest commits of a group, although their answers were sent.
    """
    node = ReplicatedNode(tmp_path)
    node.start()
    for key in (b"a", b"b", b"c"):
        node.replicas.append(P0, build_batch([Record(key, b"", 0)]), acks=-1)
    for follower in (2, 3):
        node.fetched(follower, 1)
    node.change(leader_epoch=1)
    assert (node.partition().high_watermark, node.partition().log.log_end_offset) == (1, 3)
    log = ReplicatedKeyLog(node)
    assert log.new_partitions() == [0, 1]
    replay = Keys()
    assert asyncio.run(log._read(0, replay))
    assert replay.seen == [b"a", b"b", b"c"]
    node.kill()
