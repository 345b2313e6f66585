"""Runs of a plan on a model of a cluster: batches, throttles, stops, other clients, refusals and outages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from headwater.cli.reassignment.balance import balance_plan
from headwater.cli.reassignment.band import BalanceBand
from headwater.cli.reassignment.drain import drain_plan
from headwater.cli.reassignment.execution import SETTLE_OBSERVATIONS
from headwater.cli.reassignment.plan import ReassignmentPlan
from headwater.cli.reassignment.reading import read_cluster
from headwater.cli.reassignment.runner import OUTAGE_MAX_S, PlanResult, PlanRunner
from headwater.cli.reassignment.snapshot import LogDirSnapshot
from headwater.cli.reassignment.throttle import ReassignmentThrottle
from headwater.logtier.client.errors import BrokerConnectionError, BrokerError
from headwater.logtier.client.replicas import ReplicaRefusal
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.cluster_snapshots import brokers_of, cluster_of, partition_of
from tests.reassigning_cluster import BROKER, TOPIC, ReassigningCluster

SIZE = 100


def a_cluster(partitions: int = 12, **options: int) -> ReassigningCluster:
    """Partitions on three brokers with two replicas each, and an empty fourth broker."""
    orders = ((1, 2), (2, 3), (3, 1))
    parts = [partition_of(f"t-{number}", orders[number % 3], SIZE) for number in range(partitions)]
    return ReassigningCluster(cluster_of(brokers_of(1, 2, 3, 4), *parts), **options)


def run(
    cluster: ReassigningCluster,
    plan: ReassignmentPlan | None = None,
    *,
    concurrent_moves: int = 2,
    throttle_bytes: int | None = None,
    lines: list[str] | None = None,
) -> PlanResult:
    """Run a drain of broker 1, or another plan, from what the cluster is now."""
    snapshot, running = read_cluster(cluster)
    runner = PlanRunner(cluster, cluster, (lines if lines is not None else []).append, cluster.uninterrupted)
    return runner.run(
        plan or drain_plan(snapshot, [1]),
        snapshot,
        running,
        concurrent_moves=concurrent_moves,
        throttle_bytes=throttle_bytes,
    )


def on_broker(cluster: ReassigningCluster, broker: int) -> int:
    return sum(broker in replicas for replicas in cluster.replicas.values())


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_drain_is_carried_out_within_the_limit_of_each_broker(limit: int) -> None:
    cluster = a_cluster()
    result = run(cluster, concurrent_moves=limit)
    assert result.failures == {}
    assert on_broker(cluster, 1) == 0
    assert cluster.busiest == limit
    assert result.progress is not None
    assert result.progress.moved_replicas == result.progress.replicas == 8
    assert result.progress.moved_bytes == result.progress.total_bytes == 8 * SIZE


def test_a_balance_moves_leaders_too() -> None:
    cluster = a_cluster()
    snapshot, _ = read_cluster(cluster)
    plan = balance_plan(snapshot, BalanceBand(10, 0))
    assert run(cluster, plan).failures == {}
    assert {each: sum(leader == each for leader in cluster.leaders.values()) for each in (1, 2, 3, 4)} == dict.fromkeys(
        (1, 2, 3, 4), 3
    )
    again, _ = read_cluster(cluster)
    assert balance_plan(again, BalanceBand(10, 0)).is_empty


def test_progress_is_reported_with_an_estimate() -> None:
    lines: list[str] = []
    run(a_cluster(rate=2), lines=lines)
    assert lines[0] == "moved 0 of 8 replicas, 0 B of 800 B, 2 running"
    assert lines[-1] == "moved 8 of 8 replicas, 800 B of 800 B"
    assert any("B/s, about" in line for line in lines[1:-1])


def test_throttles_are_set_for_the_moves_and_removed_at_the_end() -> None:
    cluster = a_cluster(partitions=3)
    cluster.interrupt_at_s = 1.0
    set_while_running: dict[tuple[int, str], dict[str, str]] = {}
    original = cluster.reassign

    def reassign(targets: object, **options: bool) -> object:
        set_while_running.update({resource: dict(values) for resource, values in cluster.configs_set.items()})
        return original(targets, **options)  # type: ignore[arg-type]

    cluster.reassign = reassign  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        run(cluster, throttle_bytes=5_000)
    assert set_while_running[BROKER, "4"] == {
        "leader.replication.throttled.rate": "5000",
        "follower.replication.throttled.rate": "5000",
    }
    assert set_while_running[TOPIC, "t"] == {
        "leader.replication.throttled.replicas": "0:1,0:2,2:3,2:1",
        "follower.replication.throttled.replicas": "0:4,2:4",
    }
    assert cluster.configs_set == {}, "also after a stop"


def test_a_throttle_that_a_killed_run_has_left_is_found_and_an_administrators_is_not() -> None:
    cluster = a_cluster(partitions=3)
    cluster.alter_configs(TOPIC, {"t": {"follower.replication.throttled.replicas": "0:4"}})
    cluster.alter_configs(TOPIC, {"u": {"follower.replication.throttled.replicas": "*"}})
    cluster.alter_configs(BROKER, {"3": {"leader.replication.throttled.rate": "7"}})
    throttle = ReassignmentThrottle(cluster, cluster.snapshot.brokers, ["t", "u"])
    assert throttle.throttled_topics() == ["t"]
    throttle.remove()
    assert list(cluster.configs_set) == [(TOPIC, "u")]


def test_a_stop_leaves_what_runs_and_the_next_run_continues() -> None:
    cluster = a_cluster()
    cluster.interrupt_at_s = 2.0
    with pytest.raises(KeyboardInterrupt):
        run(cluster)
    running = dict(cluster.targets)
    assert running
    assert on_broker(cluster, 1) > 0
    cluster.interrupt_at_s = None
    assert run(cluster).failures == {}
    assert on_broker(cluster, 1) == 0
    assert all(cluster.started.count(key) == 1 for key in running), "what ran was waited for, not started again"


def test_reassignments_of_another_client_stop_the_run() -> None:
    cluster = a_cluster()
    original = cluster.advance

    def advance() -> None:
        original()
        if cluster.now_s == 1.0:
            cluster.targets[TopicPartition("t", 1)] = (4, 3)
            cluster.stuck.add(TopicPartition("t", 1))

    cluster.advance = advance  # type: ignore[method-assign]
    started_before = len(cluster.started)
    result = run(cluster)
    assert [str(each) for each in result.foreign] == ["t-1"]
    assert len(cluster.started) < 8 + started_before


def test_a_partition_that_another_client_has_moved_is_left_to_it() -> None:
    cluster = a_cluster()
    original = cluster.advance
    last = TopicPartition("t", 11)

    def advance() -> None:
        original()
        if cluster.now_s == 0.5:
            assert last not in cluster.targets
            cluster.replicas[last] = (2, 3)

    cluster.advance = advance  # type: ignore[method-assign]
    result = run(cluster, concurrent_moves=1)
    assert result.failures == {"t-11": "its replicas changed after the plan was made: 2, 3"}


def test_a_refusal_is_named_and_a_transient_one_is_tried_again() -> None:
    cluster = a_cluster()
    cluster.refusals = {
        TopicPartition("t", 0): [ReplicaRefusal("the disk is on fire", False)],
        TopicPartition("t", 2): [ReplicaRefusal("NOT_CONTROLLER", True), ReplicaRefusal("NOT_CONTROLLER", True)],
        TopicPartition("t", 3): [ReplicaRefusal("NOT_CONTROLLER", True)] * 5,
    }
    assert run(cluster).failures == {"t-0": "the disk is on fire", "t-3": "NOT_CONTROLLER"}
    assert cluster.replicas[TopicPartition("t", 2)] != cluster.snapshot.partitions[TopicPartition("t", 2)].replicas


def test_a_cancelled_move_is_started_again_and_then_given_up() -> None:
    cluster = a_cluster(partitions=1)
    original = cluster.advance

    def advance() -> None:
        cluster.targets.clear()
        original()

    cluster.advance = advance  # type: ignore[method-assign]
    [reason] = run(cluster).failures.values()
    assert "cancelled" in reason
    assert len(cluster.started) == 3


def test_an_outage_is_waited_out() -> None:
    cluster, lines = a_cluster(), list[str]()
    snapshot, running = read_cluster(cluster)
    cluster.outage_s = 60.0
    runner = PlanRunner(cluster, cluster, lines.append, cluster.uninterrupted)
    plan = drain_plan(snapshot, [1])
    assert runner.run(plan, snapshot, running, concurrent_moves=2, throttle_bytes=None).failures == {}
    assert sum("Trying again" in line for line in lines) == 1


def test_an_outage_without_an_end_is_an_error() -> None:
    cluster = a_cluster()
    snapshot, running = read_cluster(cluster)
    cluster.outage_s = 10 * OUTAGE_MAX_S
    runner = PlanRunner(cluster, cluster, list[str]().append, cluster.uninterrupted)
    with pytest.raises(BrokerConnectionError):
        runner.run(drain_plan(snapshot, [1]), snapshot, running, concurrent_moves=2, throttle_bytes=5_000)


def test_a_move_to_a_broker_that_went_away_is_given_up_if_nothing_runs() -> None:
    cluster = a_cluster(partitions=3)
    snapshot, running = read_cluster(cluster)
    plan = drain_plan(snapshot, [1])
    cluster.away.add(4)
    runner = PlanRunner(cluster, cluster, list[str]().append, cluster.uninterrupted)
    result = runner.run(plan, snapshot, running, concurrent_moves=2, throttle_bytes=None)
    to_4 = {str(move.key) for move in plan.moves if 4 in move.added}
    assert result.failures == dict.fromkeys(to_4, "broker 4 is away")


def test_a_run_that_does_not_advance_says_which_broker_is_missed() -> None:
    cluster, lines = a_cluster(), list[str]()
    original = cluster.advance

    def advance() -> None:
        original()
        if cluster.now_s == 1.0:
            cluster.away.add(4)
        if cluster.now_s >= 150.0:
            cluster.away.clear()

    cluster.advance = advance  # type: ignore[method-assign]
    assert run(cluster, lines=lines).failures == {}
    stalls = [line for line in lines if line.startswith("nothing was copied for 60 s: t-0 waits for broker 4")]
    assert len(stalls) == 2


def test_a_reassignment_of_an_earlier_run_is_throttled_with_the_others() -> None:
    cluster = a_cluster(rate=1)
    cluster.interrupt_at_s = 1.0
    with pytest.raises(KeyboardInterrupt):
        run(cluster)
    with pytest.raises(KeyboardInterrupt):
        cluster.interrupt_at_s = cluster.now_s + 1.0
        seen: list[str] = []
        original = cluster.alter_configs

        def alter_configs(kind: int, changes: Mapping[str, Mapping[str, str | None]]) -> None:
            seen.extend(value for values in changes.values() for value in values.values() if value and ":" in value)
            original(kind, changes)

        cluster.alter_configs = alter_configs  # type: ignore[method-assign, assignment]
        run(cluster, throttle_bytes=5_000)
    running = [key.partition for key in cluster.targets]
    assert running
    assert all(f"{number}:4" in seen[1].split(",") for number in running), seen


def test_moves_wait_for_room_that_running_copies_will_need() -> None:
    """Both fit at the time of the plan; then the disk has room for one, and none is started that would fill it."""
    brokers = brokers_of(1, 2)
    brokers[4] = type(brokers[1])(4, None, (LogDirSnapshot("a", None, 2 * SIZE),))
    parts = [partition_of(f"t-{number}", (1, 2), SIZE) for number in range(2)]
    cluster = ReassigningCluster(cluster_of(brokers, *parts))
    snapshot, running = read_cluster(cluster)
    plan = drain_plan(snapshot, [1])
    assert len(plan.moves) == 2
    full = LogDirSnapshot("a", None, SIZE + 10)
    cluster.snapshot.brokers[4] = type(brokers[1])(4, None, (full,))  # type: ignore[index]
    runner = PlanRunner(cluster, cluster, list[str]().append, cluster.uninterrupted)
    result = runner.run(plan, snapshot, running, concurrent_moves=5, throttle_bytes=None)
    assert result.failures == {"t-1": "broker 4 has no room for its 100 bytes"}


def test_a_deleted_topic_needs_no_move() -> None:
    cluster = a_cluster(partitions=3)
    snapshot, running = read_cluster(cluster)
    plan = drain_plan(snapshot, [1])
    cluster.replicas.clear()
    runner = PlanRunner(cluster, cluster, list[str]().append, cluster.uninterrupted)
    assert runner.run(plan, snapshot, running, concurrent_moves=2, throttle_bytes=None).failures == {}
    assert cluster.now_s >= SETTLE_OBSERVATIONS * 0.5 - 0.5


def test_replicas_move_between_folders_and_are_created_in_the_planned_ones() -> None:
    brokers = brokers_of(1, dirs=("a", "b")) | brokers_of(2, dirs=("a", "b"))
    cluster = ReassigningCluster(cluster_of(brokers, *(partition_of(f"t-{number}", (1,), SIZE) for number in range(8))))
    snapshot, _ = read_cluster(cluster)
    assert run(cluster, balance_plan(snapshot, BalanceBand(10, 0))).failures == {}
    places = sorted((broker, path) for (_, broker), path in cluster.dirs.items())
    assert places == sorted([(1, "a"), (1, "b"), (2, "a"), (2, "b")] * 2)


def test_a_drain_of_many_replicas_asks_brokers_about_the_running_copies_only() -> None:
    """A broker refuses a request about more than 20,000 partitions, and would look as if it were away."""
    cluster = a_cluster(partitions=60)
    asked: list[int] = []
    original = cluster.log_dirs

    def log_dirs(broker_id: int, topics: Mapping[str, Sequence[int]] | None = None) -> object:
        if topics is not None:
            asked.append(sum(map(len, topics.values())))
        return original(broker_id, topics)

    cluster.log_dirs = log_dirs  # type: ignore[method-assign, assignment]
    result = run(cluster, concurrent_moves=3)
    assert result.failures == {}
    assert result.progress.moved_replicas == 40
    assert 0 < max(asked) <= 6


def test_a_running_move_that_is_planned_anew_does_not_occupy_the_place_that_it_needs() -> None:
    """A balance onto a broker that then dies for good leaves as many reassignments as one leader may send."""
    cluster = a_cluster(partitions=12)
    of_1 = [key for key, leader in sorted(cluster.leaders.items()) if leader == 1]
    for key in of_1[:2]:
        cluster.targets[key] = (1, 4)
    cluster.away.add(4)
    snapshot, running = read_cluster(cluster)
    plan = drain_plan(snapshot, [4])
    assert {each.key for each in plan.moves} == {*of_1[:2]}
    lines: list[str] = []
    cluster.interrupt_at_s = 300.0
    runner = PlanRunner(cluster, cluster, lines.append, cluster.uninterrupted)
    result = runner.run(plan, snapshot, running, concurrent_moves=2, throttle_bytes=None)
    assert result.failures == {}, lines
    assert on_broker(cluster, 4) == 0


def test_a_user_from_whom_topics_are_hidden_gets_no_plan() -> None:
    cluster = a_cluster()
    cluster.hidden_topics = {next(iter(cluster.replicas)).topic}
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        read_cluster(cluster)
