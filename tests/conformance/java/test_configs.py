"""Our tables of configs beside Apache Kafka's own, as its classes print them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.config import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS, render
from headwater.logtier.config.topic import HEADWATER_TOPIC_CONFIGS
from headwater.logtier.config.unused import UNUSED

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool

pytestmark = pytest.mark.slow

TABLES = {
    "kafka.server.KafkaConfig": BROKER_CONFIGS,
    "org.apache.kafka.storage.internals.log.LogConfig": TOPIC_CONFIGS,
    "org.apache.kafka.coordinator.group.GroupConfig": GROUP_CONFIGS,
}
#: Ours that Kafka has not, and why.
ADDED = {
    **{
        name: "of Kafka 3.9, the last release with ZooKeeper"
        for name in BROKER_CONFIGS
        if name.startswith("zookeeper.") and name != "zookeeper.sasl.jaas.config"
    },
    "zookeeper.sasl.jaas.config": "Kafka 3.9 reads it from the JAAS file of the JVM",
    "allow.everyone.if.no.acl.found": "Kafka reads it in its authorizer",
    "super.users": "Kafka reads it in its authorizer",
    "connection.handshake.timeout.ms": "Kafka has no limit",
    "cold.read.max.bytes.per.second.per.core": "Kafka has no limit",
    "group.consumer.regex.refresh.interval.ms": "internal in Kafka",
    **dict.fromkeys(HEADWATER_TOPIC_CONFIGS, "archives of topics and holds of retention"),
    "prometheus.host": "our metrics",
    "prometheus.port": "our metrics",
    "replica.alter.log.dirs.io.max.bytes.per.second": "Kafka takes it as a dynamic config only, from another table",
    "leader.replication.throttled.rate": "the same",
    "follower.replication.throttled.rate": "the same",
}
#: Other defaults than Kafka's, and why.
OTHER_DEFAULTS = {
    "listener.security.protocol.map": "the same pairs in another order",
    "log.dirs": "Kafka falls back to log.dir, a folder of its own choice",
    "max.connections": "a safe limit",
    "max.connections.per.ip": "a safe limit",
    "node.id": "a node alone needs no number",
    "offsets.topic.replication.factor": "there is one broker",
    "transaction.state.log.replication.factor": "there is one broker",
    "transaction.state.log.min.isr": "there is one broker",
    "queued.max.request.bytes": "a safe limit",
    "sasl.enabled.mechanisms": "there is no GSSAPI",
    "sasl.mechanism.inter.broker.protocol": "there is no GSSAPI",
    "socket.listen.backlog.size": "2,000 clients that come back at once are not turned away",
    "socket.send.buffer.bytes": "measured: consumers of large fetches are 12 % faster",
    "ssl.keystore.type": "there are no Java key stores",
    "ssl.truststore.type": "there are no Java key stores",
}
#: Dynamic in Kafka, for each listener; here they are read at the start, files of keys and certificates also when they
#: change (docs/not_implemented.md).
READ_AT_START = {
    "listener.security.protocol.map",
    "listeners",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.mechanism.inter.broker.protocol",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
}
LISTS = {"advertised.listeners", "listeners", "log.dirs"}


def documented(page: str) -> dict[str, dict[str, str]]:
    """Rows of Kafka's own documentation by config."""
    found = {}
    for block in re.split(r"<li>\n<h4>", page)[1:]:
        name = re.match(r'<a id="([^"]+)"', block)
        assert name
        found[name[1]] = dict(re.findall(r"<tr><th>([^<]+):</th><td>(.*?)</td></tr>", block, re.DOTALL))
    return found


@pytest.mark.parametrize("main", TABLES)
def test_names_types_and_defaults_are_kafkas(kafka_tool: KafkaTool, main: str) -> None:
    ours = TABLES[main]
    theirs = documented(kafka_tool(main))
    assert len(theirs) >= 10
    if main != "org.apache.kafka.coordinator.group.GroupConfig":  # those of share and streams groups are missing
        assert theirs.keys() - ours.keys() - UNUSED.keys() == set()
    assert ours.keys() - theirs.keys() - ADDED.keys() == set()
    for name in ours.keys() & theirs.keys():
        config, row = ours[name], theirs[name]
        if name not in LISTS:
            assert config.type.name.lower() == row["Type"], name
        if name not in OTHER_DEFAULTS:
            default = row.get("Default", "").split(" (")[0].strip().replace('""', "")
            assert ("null" if config.default is None else render(config.default)) == default, name
        if "Update Mode" in row and name not in READ_AT_START:
            assert config.dynamic == (row["Update Mode"] != "read-only"), name


def test_what_means_nothing_here_is_a_config_of_kafka(kafka_tool: KafkaTool) -> None:
    assert UNUSED.keys() - documented(kafka_tool("kafka.server.KafkaConfig")).keys() == set()
    assert not UNUSED.keys() & BROKER_CONFIGS.keys()
