"""kafka-metadata-quorum.sh, which asks by AdminClient.describeMetadataQuorum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

MAIN = "org.apache.kafka.tools.MetadataQuorumCommand"


def status(kafka_tool: KafkaTool, bootstrap_servers: str) -> Mapping[str, str]:
    output = kafka_tool(MAIN, "--bootstrap-server", bootstrap_servers, "describe", "--status")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in output.splitlines())}


def test_the_status_names_the_leader_and_moves_with_metadata(
    kafka_tool: KafkaTool, bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    before = status(kafka_tool, bootstrap_servers)
    assert before["LeaderId"] == "1"
    assert int(before["LeaderEpoch"]) >= 1
    assert (before["MaxFollowerLag"], before["MaxFollowerLagTimeMs"]) == ("0", "0")
    [voter] = json.loads(before["CurrentVoters"])
    assert voter["id"] == 1
    assert any(endpoint.endswith(f"//{bootstrap_servers}") for endpoint in voter["endpoints"])
    assert before["CurrentObservers"] == "[]"
    new_topic()
    after = status(kafka_tool, bootstrap_servers)
    assert int(after["HighWatermark"]) > int(before["HighWatermark"])


def test_the_replication_shows_one_voter_without_lag(kafka_tool: KafkaTool, bootstrap_servers: str) -> None:
    output = kafka_tool(MAIN, "--bootstrap-server", bootstrap_servers, "describe", "--replication")
    header, row, *_ = (line.split() for line in output.splitlines())
    voter = dict(zip(header, row, strict=True))
    assert (voter["NodeId"], voter["Lag"], voter["Status"]) == ("1", "0", "Leader")
    assert int(voter["LogEndOffset"]) > 0
    assert int(voter["LastFetchTimestamp"]) > 0


def test_a_voter_is_not_removed(kafka_tool: KafkaTool, bootstrap_servers: str) -> None:
    voter = ("--controller-id", "1", "--controller-directory-id", "ih9qDiwbTX6fEKq7zN3u_w")
    output = kafka_tool(MAIN, "--bootstrap-server", bootstrap_servers, "remove-controller", *voter, ends=1)
    assert "the kraft.version feature is 0" in output
