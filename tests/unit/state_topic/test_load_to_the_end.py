"""A coordinator's load over a real log of several replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from headwater.logtier.records.batch import Record, build_batch
from tests.unit.replication.replicated_node import P0, TOPIC, ReplicatedNode
from tests.unit.state_topic.surroundings import settle
from tests.unit.state_topic.test_log import KeyLog, Keys


class ReplicatedKeyLog(KeyLog):
    """Keys in a partition that this node leads, beside two followers."""

    TOPIC = TOPIC

    def __init__(self, node: ReplicatedNode) -> None:
        super().__init__()
        self._replicas = cast("Any", node.replicas)
        self._metadata = cast("Any", node.metadata)


def test_a_load_reads_to_the_logs_end_and_serves_when_the_watermark_has_passed_it(tmp_path: Path) -> None:
    """A new leader's watermark lags behind what the old leader acknowledged: the state up to the end must count.

    A load to the watermark would forget the newest commits of a group, although their answers were sent. A leader that
    served before the watermark has passed the end could lose what it has answered to yet another leader.
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

    async def scenario() -> None:
        adopted: list[bytes | None] = []
        replay = Keys()
        rest = await log._read(0, replay, lambda: adopted.extend(replay.seen))
        assert rest is not None
        waiting = asyncio.ensure_future(rest())
        for offset in (1, 2):
            for follower in (2, 3):
                node.fetched(follower, offset)
            await settle()
            assert (adopted, waiting.done(), log.is_active(0)) == ([], False, False)
        for follower in (2, 3):
            node.fetched(follower, 3)
        await waiting
        assert (adopted, log.is_active(0)) == ([b"a", b"b", b"c"], True)

    asyncio.run(scenario())
    node.kill()
