"""All partitions are fenced, and lead again, whatever happens to one of them; nothing is written in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from tests.unit.replication.replicated_node import P0, P1, ReplicatedNode


def test_an_error_at_one_partition_keeps_no_other_one_fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = ReplicatedNode(tmp_path)
    node.start()
    replication = node.replicas.partition_replication
    noted: list[bool] = []
    replication.on_fenced = lambda: noted.append(node.partition(P1).is_leader)
    check_all = replication.check_all

    def fail_once(key: object) -> None:
        monkeypatch.setattr(replication, "check_all", check_all)
        raise RuntimeError(f"a waiting request of {key}")

    for change in (replication.fence, replication.unfence):
        monkeypatch.setattr(replication, "check_all", fail_once)
        change()
    assert noted == [False, True], "the coordinators know each time"
    assert node.partition(P0).is_leader
    assert set(replication.followed) == {P0, P1}
    node.close()


def test_a_log_that_fails_when_it_leads_again_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of both goes offline at the first one."""
    node = ReplicatedNode(tmp_path)
    node.start()
    replication = node.replicas.partition_replication
    replication.fence()
    take_offline = node.logs.on_offline
    assert take_offline is not None

    def fail(_: object) -> None:
        monkeypatch.undo()
        take_offline([P0, P1])

    monkeypatch.setattr(replication, "_note_epoch", fail)
    replication.unfence()
    assert P1 not in replication.followed, "it would propose ISRs of a replica that is gone"
    node.close()


def test_no_marker_is_written_while_the_session_is_in_doubt(tmp_path: Path) -> None:
    node = ReplicatedNode(tmp_path)
    node.start()
    node.replicas.partition_replication.is_in_doubt = lambda: True
    end = node.partition().log.log_end_offset
    with pytest.raises(KafkaError) as refused:
        node.replicas.append_end_txn_marker(
            P0, producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=True, transaction_version=2
        )
    assert refused.value.code is ErrorCode.not_leader_or_follower
    assert node.partition().log.log_end_offset == end
    node.close()
