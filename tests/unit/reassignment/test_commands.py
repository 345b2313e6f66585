"""`headwater cluster drain`, `balance` and `unregister` on a model of a cluster: output, confirmation, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from headwater.cli.reassignment import operations
from headwater.cli.shell.errors import CliError
from headwater.cli.verbs.cluster import app
from headwater.logtier.client.replicas import ReplicaRefusal
from tests.cluster_snapshots import Brokers, brokers_of, cluster_of, partition_of
from tests.reassigning_cluster import TOPIC, ReassigningCluster

Invoke = Callable[..., Result]


def a_cluster(brokers: Brokers) -> ReassigningCluster:
    parts = [partition_of(f"t-{number}", replicas, 100) for number, replicas in enumerate([(1, 2), (2, 3), (3, 1)] * 4)]
    return ReassigningCluster(cluster_of(brokers, *parts), rate=50)


@pytest.fixture
def cluster() -> ReassigningCluster:
    return a_cluster(brokers_of(1, 2, 3, 4))


@pytest.fixture
def invoke(cluster: ReassigningCluster, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command; its clock is the model's."""

    @contextmanager
    def client(_verb: str, _servers: str | None) -> Iterator[None]:
        yield

    monkeypatch.setattr(operations, "cluster_client", client)
    monkeypatch.setattr(operations, "ReplicaAdmin", lambda _: cluster)
    monkeypatch.setattr(operations, "time", cluster)
    monkeypatch.setattr(operations, "raise_on_sigterm", lambda: None)
    return lambda *arguments, **options: CliRunner().invoke(app, arguments, **options)


def failure(result: Result) -> CliError:
    assert isinstance(result.exception, CliError), result.output
    return result.exception


def test_a_dry_run_shows_the_plan_and_changes_nothing(invoke: Invoke, cluster: ReassigningCluster) -> None:
    result = invoke("drain", "1", "--dry-run")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["PARTITION", "BEFORE", "AFTER", "SIZE", "COPIED"]
    assert lines[1].split() == ["t-0", "1,2", "4,2", "100", "B", "100", "B"]
    assert lines[-1] == "Plan: move 8 replicas of 8 partitions to other brokers (800 B)."
    assert cluster.started == []


def test_a_drain_is_confirmed_carried_out_and_says_what_comes_next(invoke: Invoke, cluster: ReassigningCluster) -> None:
    refused = failure(invoke("drain", "1"))
    assert refused.exit_code == 2
    assert "give --yes to confirm" in str(refused)
    assert cluster.started == []
    result = invoke("drain", "1", "--yes")
    assert result.exit_code == 0, result.output
    assert "moved 8 of 8 replicas, 800 B of 800 B" in result.stderr
    assert "headwater cluster unregister" in result.stderr
    assert result.stdout.endswith("Done.\n")
    assert not any(1 in replicas for replicas in cluster.replicas.values())


def test_a_drain_of_an_empty_broker_is_done(invoke: Invoke) -> None:
    result = invoke("drain", "4", "--yes")
    assert result.exit_code == 0
    assert "Nothing is to be moved." in result.stdout
    assert "Broker 4 has no replica left" in result.stderr


def test_an_unknown_broker_is_named_with_those_that_are_known(invoke: Invoke) -> None:
    error = failure(invoke("drain", "9", "--yes"))
    assert error.exit_code == 2
    assert str(error) == "cluster drain: there is no broker 9, nor a replica on it; the brokers are 1, 2, 3, 4"


@pytest.mark.parametrize("cluster", [a_cluster(brokers_of(1, 2, 3))])
def test_what_stays_is_named_with_its_reason(invoke: Invoke, cluster: ReassigningCluster) -> None:
    for key in list(cluster.replicas)[:1]:
        cluster.replicas[key] = (1, 2, 3)
    error = failure(invoke("drain", "1", "--yes"))
    assert error.exit_code == 1
    assert "1 replica could not leave broker 1: t-0 (each of the 2 other brokers has a replica already" in str(error)
    assert sum(1 in replicas for replicas in cluster.replicas.values()) == 1, "the others have moved"


def test_a_balance_prints_one_document_for_programs(invoke: Invoke) -> None:
    result = invoke("balance", "--yes", "-o", "json")
    assert result.exit_code == 0, result.output
    [document] = json.loads(result.stdout)
    assert {"topic": "t", "partition": 0}.items() <= document["partitions"][0].items()
    assert document["failures"] == {}
    assert document["is_dry_run"] is False
    assert document["progress"]["moved_bytes"] == document["copied_bytes"] > 0
    assert [each["replicas_after"] for each in document["brokers"]] == [6, 6, 6, 6]
    again = invoke("balance", "--yes", "-o", "json")
    assert json.loads(again.stdout)[0]["partitions"] == []


def test_a_refused_move_is_an_error(invoke: Invoke, cluster: ReassigningCluster) -> None:
    for key in cluster.replicas:
        cluster.refusals[key] = [ReplicaRefusal("the controller says no", False)]
    error = failure(invoke("balance", "--yes"))
    assert error.exit_code == 1
    assert "was not moved: the controller says no (and " in str(error)


def test_another_client_is_named_and_the_run_ends_with_not_yet(invoke: Invoke, cluster: ReassigningCluster) -> None:
    original = cluster.advance
    key = next(each for each in cluster.replicas if each.partition == 1)

    def advance() -> None:
        original()
        cluster.stuck.add(key)
        cluster.targets[key] = (4, 3)

    cluster.advance = advance  # type: ignore[method-assign]
    error = failure(invoke("drain", "1", "--yes"))
    assert error.exit_code == 75
    assert "another client reassigns partitions meanwhile: t-1;" in str(error)


def test_a_stop_says_how_to_continue_and_the_next_call_does(invoke: Invoke, cluster: ReassigningCluster) -> None:
    cluster.interrupt_at_s = 0.5
    error = failure(invoke("drain", "1", "--yes", "--throttle", "10000"))
    assert error.exit_code == 130
    assert "the same command continues from there" in str(error)
    assert cluster.configs_set == {}
    cluster.interrupt_at_s = None
    running = len(cluster.targets)
    assert running
    result = invoke("drain", "1", "--yes")
    assert result.exit_code == 0, result.output
    assert f"{running} reassignments running already, of an earlier run or another client: t-" in result.stderr


def test_a_throttle_that_a_killed_run_has_left_is_removed_also_if_nothing_moves(
    invoke: Invoke, cluster: ReassigningCluster
) -> None:
    cluster.alter_configs(TOPIC, {"t": {"follower.replication.throttled.replicas": "0:4"}})
    result = invoke("drain", "4", "--yes")
    assert result.exit_code == 0, result.output
    assert "Removing the throttle that an earlier run has left on t." in result.stderr
    assert cluster.configs_set == {}


def test_a_broker_with_replicas_is_not_unregistered(invoke: Invoke) -> None:
    error = failure(invoke("unregister", "1"))
    assert error.exit_code == 2
    assert "broker 1 has 8 replicas: t-0, t-2, t-3, t-5, t-6 and 3 others;" in str(error)
