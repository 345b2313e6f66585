"""Feature levels of three brokers: Kafka 4.1's FeatureCommand, `headwater cluster features`, a refused broker."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.conformance.cluster.conftest import PASSWORD, USER, headwater
from tests.conformance.cluster.test_members import begun, refusal, zookeeper_client
from tests.conformance.java.conftest import kafka_jars, kafka_tool
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster
    from tests.conformance.java.conftest import KafkaTool

pytestmark = pytest.mark.slow

__all__ = ["kafka_jars", "kafka_tool"]

MAIN = "org.apache.kafka.tools.FeatureCommand"


def features(cluster: ClusterProcesses, *arguments: str, ends: int = 0) -> str:
    """What `headwater cluster features` says."""
    done = headwater("cluster", "features", *arguments, "-b", cluster.address(2), ends=ends)
    return done.stdout + done.stderr


def levels(cluster: ClusterProcesses) -> dict[str, int]:
    return {
        each["feature"]: each["finalized_level"] for each in json.loads(features(cluster, "describe", "-o", "json"))
    }


def test_feature_command_describes_raises_and_lowers_levels(make_cluster: MakeCluster, kafka_tool: KafkaTool) -> None:
    cluster = make_cluster()
    begun(cluster)
    server = ("--bootstrap-server", cluster.address(1))
    described = kafka_tool(MAIN, *server, "describe")
    for line in (
        "group.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 1\tEpoch: 0",
        "metadata.version\tSupportedMinVersion: 4.1-IV1\tSupportedMaxVersion: 4.1-IV1\tFinalizedVersionLevel: 4.1-IV1",
        "transaction.version\tSupportedMinVersion: 1\tSupportedMaxVersion: 2\tFinalizedVersionLevel: 2\tEpoch: 0",
    ):
        assert line in described, described
    before = levels(cluster)
    refused = kafka_tool(MAIN, *server, "downgrade", "--feature", "eligible.leader.replicas.version=0", ends=1)
    assert "only supports versions 1" in refused
    refused = kafka_tool(MAIN, *server, "upgrade", "--feature", "transaction.version=1", ends=1)
    assert "Can't downgrade the version of this feature" in refused
    assert levels(cluster) == before
    kafka_tool(MAIN, *server, "downgrade", "--feature", "transaction.version=1")
    until(lambda: levels(cluster)["transaction.version"] == 1)
    # Kafka's release has kraft.version 1, and an update takes effect as a whole. Kafka raises it: its quorum can change
    # its voters from then on, and there is none here.
    refused = kafka_tool(MAIN, *server, "upgrade", "--release-version", "4.1", ends=1)
    assert "Invalid update version 1 for feature kraft.version" in refused
    assert levels(cluster)["transaction.version"] == 1
    kafka_tool(MAIN, *server, "upgrade", "--feature", "transaction.version=2")
    until(lambda: levels(cluster) == before)
    assert "Epoch: 2" in kafka_tool(MAIN, *server, "describe")
    assert "metadata.version was upgraded to 27" in kafka_tool(MAIN, *server, "upgrade", "--metadata", "4.1")
    refused = kafka_tool(MAIN, *server, "downgrade", "--metadata", "4.0", ends=1)
    assert "Invalid update version 25 for feature metadata.version" in refused
    refused = kafka_tool(MAIN, *server, "disable", "--feature", "transaction.version", ends=1)
    assert "Could not disable transaction.version" in refused
    assert "only supports versions 1-2" in refused
    assert levels(cluster) == before
    assert "group.version was disabled" in kafka_tool(MAIN, *server, "disable", "--feature", "group.version")
    until(lambda: levels(cluster)["group.version"] == 0)
    kafka_tool(MAIN, *server, "upgrade", "--feature", "group.version=1")
    # What the tool says of Kafka's release is so here, without a quorum; and nothing that a level needs is missing.
    mapped = kafka_tool(MAIN, *server, "version-mapping", "--release-version", "4.1")
    stated = {name: int(level) for name, level in re.findall(r"^(\S+)=(\d+)", mapped, re.MULTILINE)}
    until(lambda: levels(cluster) == {name: stated[name] for name in before} | {"kraft.version": 0})
    needs = [part for name, level in before.items() if level for part in ("--feature", f"{name}={level}")]
    needed = re.findall(r"^ +(\S+)=(\d+)", kafka_tool(MAIN, *server, "feature-dependencies", *needs), re.MULTILINE)
    assert needed
    assert all(int(level) <= before[name] for name, level in needed)


def test_our_command_raises_what_all_brokers_support_and_says_why_not(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    begun(cluster)
    assert "highest level" in features(cluster, "upgrade")
    features(cluster, "downgrade", "--feature", "transaction.version=1", "--feature", "group.version=0")
    assert "group.version can be finalized at level 1" in features(
        cluster, "upgrade", "--feature", "group.version=1", "--dry-run"
    )
    until(lambda: (found := levels(cluster))["group.version"] == 0 and found["transaction.version"] == 1)
    assert features(cluster, "upgrade") == (
        "group.version is finalized at level 1\ntransaction.version is finalized at level 2\n"
    )
    until(lambda: levels(cluster)["transaction.version"] == 2)
    line = features(cluster, "upgrade", "--feature", "metadata.version=28", ends=1)
    assert "Broker 1 only supports versions 27" in line
    assert line.count("\n") == 1
    assert "is no level" in features(cluster, "upgrade", "--feature", "metadata.version=new", ends=2)


def test_a_broker_that_is_too_old_for_the_levels_is_refused_with_one_line(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.serve(1)
    cluster.stop(1)
    # As a later release leaves it.
    with zookeeper_client(cluster) as client:
        client.add_auth("digest", f"{USER}:{PASSWORD}")
        stored = json.loads(client.get("/features")[0])
        stored["levels"]["metadata.version"] = 28
        client.set("/features", json.dumps(stored).encode())
    line = refusal(cluster.begin(1))
    assert "metadata.version is finalized at level 28 and supported at 27; start the release" in line
