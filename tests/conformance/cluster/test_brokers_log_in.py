"""Brokers connect to each other by mTLS, SCRAM over TLS and PLAIN; one has a refused credential, which is mended."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.bench.processes import free_port
from tests.conformance.cluster.conftest import headwater
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster
    from tests.conftest import Certificates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IDS = (1, 2, 3)
TOPIC = "flights"
PARTITIONS = 3
RECORDS = 300
PATIENCE_S = 120
#: Attempts of a refused broker before it is mended: its log may not grow with them.
ATTEMPTS = 4
COMMON = {
    "inter_broker_listener_name": "BROKERS",
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "offsets_topic_replication_factor": "3",
    "replica_lag_time_max_ms": "3000",
    "leader_imbalance_check_interval_seconds": "1",
}


class SecuredCluster:
    """Three brokers with a plain listener for the test, and a secured one for each other."""

    def __init__(self, cluster: ClusterProcesses, protocol: str, properties: Callable[[int], dict[str, str]]) -> None:
        self.cluster = cluster
        self._protocol = protocol
        self._properties = properties
        self._inside = {each: free_port() for each in IDS}

    def properties(self, broker_id: int, **changed: str) -> dict[str, str]:
        port = self.cluster.ports.setdefault(broker_id, free_port())
        return {
            "listeners": f"CLIENTS://127.0.0.1:{port},BROKERS://127.0.0.1:{self._inside[broker_id]}",
            "listener_security_protocol_map": f"CLIENTS:PLAINTEXT,BROKERS:{self._protocol}",
            **COMMON,
            **self._properties(broker_id),
            **changed,
        }

    def begin(self, *broker_ids: int, **changed: str) -> None:
        for broker_id in broker_ids:
            self.cluster.begin(broker_id, **self.properties(broker_id, **changed))
        for broker_id in broker_ids:
            self.cluster.await_serving(broker_id)

    @property
    def addresses(self) -> str:
        return self.cluster.servers(*IDS)

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    def create_topic(self) -> None:
        topic = NewTopic(TOPIC, PARTITIONS, 3)
        self.admin.create_topics([topic])[TOPIC].result(PATIENCE_S)
        until(lambda: self.is_in_sync(*IDS), "the ISRs did not fill")

    def is_in_sync(self, *broker_ids: int) -> bool:
        """Whether all partitions have these brokers in their ISRs, and no others."""
        partitions = self.admin.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions.values()
        return all(set(each.isrs) == set(broker_ids) for each in partitions)

    def leader(self) -> int:
        return self.admin.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions[0].leader

    def produce(self) -> None:
        """Each record is acknowledged by all in-sync replicas."""
        failures: list[str] = []
        producer = Producer({"bootstrap.servers": self.addresses, "acks": "all", "log_level": 0})
        for number in range(RECORDS):
            producer.produce(
                TOPIC,
                str(number),
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
            )
        assert producer.flush(PATIENCE_S) == 0
        assert failures == []

    def lose_a_leader(self) -> int:
        """Kill the leader of a partition; the others go on."""
        self.create_topic()
        self.produce()
        victim = self.leader()
        self.cluster.kill(victim)
        self.produce()
        return victim

    def log(self, broker_id: int) -> str:
        return (self.cluster.folder / f"{broker_id}.log").read_text()

    def errors(self, broker_id: int, since: int) -> list[str]:
        """The lines of refused connections to other brokers."""
        return [line for line in self.log(broker_id)[since:].splitlines() if "the broker tries again" in line]

    def await_refusals(self, victim: int, refused: str, since: dict[int, int]) -> None:
        """Wait until another broker has refused the victim some times. The victim reports the reason once a broker."""
        others = [each for each in IDS if each != victim]

        def attempts() -> int:
            return max(len(re.findall(refused, self.log(each)[since[each] :])) for each in others)

        until(lambda: attempts() >= ATTEMPTS, "the broker does not try again")
        assert not self.is_in_sync(*IDS)
        self.produce()

    def await_return(self, victim: int) -> None:
        """The victim has caught up and leads again, so that the others fetch from it."""
        until(lambda: self.is_in_sync(*IDS), "the broker did not join the ISRs")
        until(lambda: self.leader() == victim, "the broker does not lead")
        self.produce()

    def lengths(self) -> dict[int, int]:
        return {each: len(self.log(each)) for each in IDS}

    def stop(self) -> None:
        """Each broker ends cleanly, and none has logged a stack trace or a secret."""
        for broker_id in IDS:
            self.cluster.stop(broker_id)
            log = self.log(broker_id)
            assert "Traceback" not in log
            assert "secret" not in log


def one_line_a_broker(lines: list[str], victim: int, reason: str) -> None:
    """The lines name each other broker at most once, with the reason and what to do."""
    assert lines, "the refused broker reports nothing"
    for line in lines:
        assert re.search(reason, line), line
    named = [int(re.findall(r"broker (\d) at 127\.0\.0\.1:\d+", line)[0]) for line in lines]
    assert len(named) == len(set(named)), lines
    assert victim not in named


def test_mutual_tls_and_an_expired_certificate(make_cluster: MakeCluster, certificates: Certificates) -> None:
    cluster = make_cluster(session_ms=6_000)
    names = {each: f"broker-{each}-{cluster.folder.name}" for each in IDS}
    keys = {each: cluster.folder / f"key-{each}.pem" for each in IDS}

    def renew(broker_id: int, days: float = 7) -> None:
        replacement = keys[broker_id].with_suffix(".new")
        shutil.copy(certificates.issue(names[broker_id], {"CN": f"broker-{broker_id}"}, days), replacement)
        os.replace(replacement, keys[broker_id])

    for each in IDS:
        renew(each)
    secured = SecuredCluster(
        cluster,
        "SSL",
        lambda broker_id: {
            "listener_name_brokers_ssl_keystore_location": str(keys[broker_id]),
            "listener_name_brokers_ssl_truststore_location": str(certificates.ca),
            "listener_name_brokers_ssl_client_auth": "required",
        },
    )
    secured.begin(*IDS)
    victim = secured.lose_a_leader()
    renew(victim, days=-1)
    since = secured.lengths()
    secured.begin(victim)
    secured.await_refusals(victim, "certificate has expired", since)
    lines = secured.errors(victim, since[victim])
    one_line_a_broker(lines, victim, f"certificate expired; renew the certificate in {keys[victim]}; the broker tries")
    renew(victim)
    secured.await_return(victim)
    secured.stop()


def test_scram_over_tls_and_a_password_that_the_cluster_does_not_have(
    make_cluster: MakeCluster, certificates: Certificates
) -> None:
    cluster = make_cluster(session_ms=6_000)

    def login(broker_id: int, password: str = "secret") -> dict[str, str]:
        jaas = f'a.ScramLoginModule required username="broker-{broker_id}" password="{password}";'
        return {"listener_name_brokers_scram-sha-512_sasl_jaas_config": jaas}

    secured = SecuredCluster(
        cluster,
        "SASL_SSL",
        lambda broker_id: {
            "listener_name_brokers_ssl_keystore_location": str(certificates.server),
            "listener_name_brokers_ssl_truststore_location": str(certificates.ca),
            "listener_name_brokers_sasl_enabled_mechanisms": "SCRAM-SHA-512",
            "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
            **login(broker_id),
        },
    )
    for each in IDS:
        config = cluster.file(1, **secured.properties(1))
        headwater("user", "add", f"broker-{each}", "--config", config, stdin="secret\n")
    secured.begin(*IDS)
    victim = secured.lose_a_leader()
    since = secured.lengths()
    secured.begin(victim, **login(victim, "another secret"))
    secured.await_refusals(victim, "authentication of a client .* failed", since)
    lines = secured.errors(victim, since[victim])
    one_line_a_broker(lines, victim, f"refuses user 'broker-{victim}': .*headwater user add broker-{victim}")
    change = UserScramCredentialUpsertion(
        f"broker-{victim}", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"another secret"
    )
    [altered] = secured.admin.alter_user_scram_credentials([change]).values()
    altered.result(PATIENCE_S)
    secured.await_return(victim)
    secured.stop()


def test_plain_and_a_wrong_password(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=6_000)

    def login(password: str = "secret") -> dict[str, str]:
        jaas = f'a.PlainLoginModule required username="broker" password="{password}" user_broker="secret";'
        return {"listener_name_brokers_plain_sasl_jaas_config": jaas}

    secured = SecuredCluster(
        cluster,
        "SASL_PLAINTEXT",
        lambda _: {
            "listener_name_brokers_sasl_enabled_mechanisms": "PLAIN",
            "sasl_mechanism_inter_broker_protocol": "PLAIN",
            **login(),
        },
    )
    secured.begin(*IDS)
    victim = secured.lose_a_leader()
    since = secured.lengths()
    secured.begin(victim, **login("wrong"))
    secured.await_refusals(victim, "authentication of a client .* failed", since)
    lines = secured.errors(victim, since[victim])
    one_line_a_broker(lines, victim, "refuses user 'broker': .*Invalid username or password; correct the password in")
    secured.cluster.stop(victim)
    secured.begin(victim)
    secured.await_return(victim)
    secured.stop()
