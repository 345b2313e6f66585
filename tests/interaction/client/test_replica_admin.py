"""Requests about replicas against a broker with two log folders."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headwater.cli.reassignment.balance import balance_plan
from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.reassignment.reading import read_cluster
from headwater.cli.reassignment.runner import PlanRunner
from headwater.cli.reassignment.snapshot import ClusterSnapshot
from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.errors import BrokerError
from headwater.logtier.client.replicas import BROKER_RESOURCE, TOPIC_RESOURCE, ReplicaAdmin
from headwater.logtier.client.topics import ensure_topic
from tests.interaction.own_broker import run_broker
from tests.waiting import until

pytestmark = pytest.mark.slow

PATIENCE_S = 60
RECORD = bytes(100_000)


def fill(address: str, records: Mapping[int, int]) -> None:
    """Write a number of records to each partition of the topic."""
    producer = Producer({"bootstrap.servers": address})
    for partition, count in records.items():
        for _ in range(count):
            producer.produce("t", RECORD, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def sizes(snapshot: ClusterSnapshot) -> dict[str, int]:
    """Bytes by folder's name."""
    found: dict[str, int] = {}
    for part in snapshot.partitions.values():
        for path in (part.log_dirs or {}).values():
            found[Path(path).name] = found.get(Path(path).name, 0) + part.size_bytes
    return found


def test_folders_of_a_broker_are_evened_out_while_it_runs(tmp_path: Path) -> None:
    def use(address: str) -> None:
        with ClusterClient(ClientConfig(parse_bootstrap_servers(address))) as cluster:
            ensure_topic(cluster, "t", partitions=4, configs={})
            admin = ReplicaAdmin(cluster)
            before, _ = read_cluster(admin)
            in_one = [
                key.partition for key, part in before.partitions.items() if part.log_dirs == {1: str(tmp_path / "a")}
            ]
            assert len(in_one) == 2, "a broker fills its folders by turns"
            fill(address, dict.fromkeys(in_one, 10))
            snapshot, running = read_cluster(admin)
            assert sizes(snapshot)["b"] == 0
            plan = balance_plan(snapshot, BalanceBand(10, 0))
            assert len(plan.log_dir_moves) == 1
            assert plan.moves == ()
            lines: list[str] = []
            runner = PlanRunner(admin, time, lines.append, nullcontext)
            result = runner.run(plan, snapshot, running, concurrent_moves=1, throttle_bytes=None)
            assert result.failures == {}
            assert lines[-1].startswith("moved 1 of 1 replicas, 1 MB of 1 MB")
            after, _ = read_cluster(admin)
            assert sizes(after)["a"] == sizes(after)["b"] > 0
            assert balance_plan(after, BalanceBand(10, 0)).is_empty

    run_broker({"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}", "node.id": 1}, use)


def test_configs_are_set_read_and_deleted_and_refusals_are_named(tmp_path: Path) -> None:
    def use(address: str) -> None:
        with ClusterClient(ClientConfig(parse_bootstrap_servers(address))) as cluster:
            ensure_topic(cluster, "t", partitions=1, configs={})
            admin = ReplicaAdmin(cluster)
            brokers, [part] = admin.assignments()
            assert [*brokers] == [1]
            assert (part.topic, part.leader, part.replicas, part.isr) == ("t", 1, (1,), (1,))
            assert admin.reassignments() == {}
            for kind, name, config in (
                (TOPIC_RESOURCE, "t", "retention.ms"),
                (BROKER_RESOURCE, "1", "log.cleaner.threads"),
            ):

                def configs(kind: int = kind, name: str = name, config: str = config) -> dict[str, dict[str, str]]:
                    return admin.dynamic_configs(kind, [name], [config])

                assert configs() == {}
                admin.alter_configs(kind, {name: {config: "2"}})
                until(lambda: configs() == {name: {config: "2"}})  # noqa: B023 (called at once)
                admin.alter_configs(kind, {name: {config: None}})
                until(lambda: configs() == {})
            admin.alter_configs(TOPIC_RESOURCE, {"gone": {"retention.ms": "1"}})
            assert admin.elect_preferred([("t", 0)]) == {}
            assert set(admin.elect_preferred([("gone", 0)])) == {("gone", 0)}
            assert set(admin.reassign({("t", 0): (7,)})) == {("t", 0)}
            assert set(admin.place(1, {("t", 0): "/nowhere"})) == {("t", 0)}
            with pytest.raises(BrokerError):
                admin.unregister(1)

    run_broker({"log.dirs": str(tmp_path), "node.id": 1}, use)
