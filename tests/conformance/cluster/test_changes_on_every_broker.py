"""What is changed through one broker takes effect on all three: users, ACLs, quotas, configs.

Each check asks one broker over a connection of its own: a client library would ask any of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.errors import AuthenticationError
from headwater.logtier.client.messages import kio_request
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.records.batch import Record, build_batch
from tests.bench.processes import free_port
from tests.conformance.cluster.conftest import MakeCluster, headwater
from tests.waiting import PATIENCE_S, POLL_S, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.cluster.conftest import ClusterProcesses
    from tests.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IDS = (1, 2, 3)
REQUEST_MS = 30_000
BROKERS_JAAS = 'a.PlainLoginModule required username="broker" password="secret" user_broker="secret";'
#: The mechanisms of clients, with their numbers in the protocol and their hashes.
MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
PROPERTIES = {
    "listener_security_protocol_map": "CLIENTS:SASL_PLAINTEXT,BROKERS:SASL_PLAINTEXT",
    "inter_broker_listener_name": "BROKERS",
    "listener_name_clients_sasl_enabled_mechanisms": ",".join(MECHANISMS),
    "listener_name_brokers_sasl_enabled_mechanisms": "PLAIN",
    "listener_name_brokers_plain_sasl_jaas_config": BROKERS_JAAS,
    "sasl_mechanism_inter_broker_protocol": "PLAIN",
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:broker;User:admin",
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "auto_create_topics_enable": "false",
    "log_retention_check_interval_ms": "500",
    "leader_imbalance_check_interval_seconds": "1",
}
#: API keys and versions of the requests here.
INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CONFIGS, ALTER_USER_SCRAM, ALTER_QUOTAS, CREATE_ACLS, DELETE_ACLS = (
    (44, 1),
    (32, 4),
    (51, 0),
    (49, 1),
    (30, 3),
    (31, 3),
)
METADATA, CREATE_TOPICS, PRODUCE, FETCH, LIST_OFFSETS = (3, 12), (19, 7), (0, 9), (1, 12), (2, 7)
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
READ, WRITE = 3, 4
NONE, MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS, TOPIC_AUTHORIZATION_FAILED, THROTTLING_QUOTA_EXCEEDED = 0, 10, 19, 29, 89
EARLIEST = -2
#: An address of this machine from which nobody else connects, and the connections that its quota, one a second, admits
#: in the ten seconds over which it is measured.
GUEST, GUESTS = "127.0.0.7", 10
#: A connection beyond them is closed within a second.
CLOSED_S = 3


class Users:
    """Three brokers that require a login, and requests to each of them."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self._connections: dict[tuple[int, str, str], BlockingConnection] = {}
        inside = {each: free_port() for each in IDS}
        properties = self._given = {each: self._properties(each, inside[each]) for each in IDS}
        config = cluster.file(1, **properties[1])
        headwater("user", "add", "admin", "-m", "SCRAM-SHA-256", "--config", config, stdin="admin\n")
        for each in IDS:
            cluster.begin(each, **properties[each])
        for each in IDS:
            cluster.await_serving(each)

    def _properties(self, broker_id: int, inside: int) -> dict[str, str]:
        port = self.cluster.ports.setdefault(broker_id, free_port())
        return {"listeners": f"CLIENTS://127.0.0.1:{port},BROKERS://127.0.0.1:{inside}", **PROPERTIES}

    def restart(self, broker_id: int) -> None:
        """Start a broker again that was killed."""
        for key in [each for each in self._connections if each[0] == broker_id]:
            self._connections.pop(key).close()
        self.cluster.serve(broker_id, **self._given[broker_id])

    def connect(
        self, broker_id: int, user: str, password: str, client_id: str = "test", mechanism: str = "SCRAM-SHA-256"
    ) -> BlockingConnection:
        """Log in at a broker; AuthenticationError."""
        security = ClientSecurity("SASL_PLAINTEXT", mechanism, user, password)
        return BlockingConnection(
            "127.0.0.1",
            self.cluster.ports[broker_id],
            client_id=client_id,
            connect_timeout_ms=REQUEST_MS,
            request_timeout_ms=REQUEST_MS,
            receive_buffer_bytes=-1,
            security=security,
        )

    def ask(
        self, broker_id: int, api: tuple[int, int], fields: dict[str, Any], user: str = "admin", client_id: str = "test"
    ) -> Any:
        """The answer of one broker to a user, whose password is the name."""
        key = (broker_id, user, client_id)
        if key not in self._connections:
            self._connections[key] = self.connect(broker_id, user, user, client_id)
        return self._connections[key].call(kio_request(*api, fields))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # -- changes

    def set_password(self, broker_id: int, user: str, mechanism: str = "SCRAM-SHA-256") -> None:
        salt = b"salt of the user"
        number, digest = MECHANISMS[mechanism]
        salted = hashlib.pbkdf2_hmac(digest, user.encode(), salt, 4096)
        change = {"name": user, "mechanism": number, "iterations": 4096, "salt": salt, "salted_password": salted}
        answer = self.ask(broker_id, ALTER_USER_SCRAM, {"deletions": (), "upsertions": (change,)})
        assert [each.error_code for each in answer.results] == [NONE]

    def delete_password(self, broker_id: int, user: str) -> None:
        deletion = {"name": user, "mechanism": 1}
        answer = self.ask(broker_id, ALTER_USER_SCRAM, {"deletions": (deletion,), "upsertions": ()})
        assert [each.error_code for each in answer.results] == [NONE]

    def allow(self, broker_id: int, topic: str, user: str, operation: int) -> None:
        rule = {
            "resource_type": TOPIC_RESOURCE,
            "resource_name": topic,
            "resource_pattern_type": 3,
            "principal": f"User:{user}",
            "host": "*",
            "operation": operation,
            "permission_type": 3,
        }
        answer = self.ask(broker_id, CREATE_ACLS, {"creations": (rule,)})
        assert [each.error_code for each in answer.results] == [NONE]

    def set_quota(self, broker_id: int, name: str, quota: str, value: float, of: str = "client-id") -> None:
        entry = {
            "entity": ({"entity_type": of, "entity_name": name},),
            "ops": ({"key": quota, "value": value, "remove": False},),
        }
        answer = self.ask(broker_id, ALTER_QUOTAS, {"entries": (entry,), "validate_only": False})
        assert [each.error_code for each in answer.entries] == [NONE]

    def set_config(self, broker_id: int, kind: int, resource: str, config: str, value: str) -> None:
        operation = {"name": config, "config_operation": 0, "value": value}
        change = {"resource_type": kind, "resource_name": resource, "configs": (operation,)}
        answer = self.ask(broker_id, INCREMENTAL_ALTER_CONFIGS, {"resources": (change,), "validate_only": False})
        assert [each.error_code for each in answer.responses] == [NONE], answer.responses[0].error_message

    def create_topic(self, broker_id: int, name: str, **request: Any) -> Any:
        """A topic with a partition led by each broker, in their order."""
        assignments = tuple(
            {"partition_index": each - 1, "broker_ids": (each, *(other for other in IDS if other != each))}
            for each in IDS
        )
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assignments,
            "configs": (),
        }
        fields = {"topics": (topic,), "timeout": timedelta(seconds=30), "validate_only": False}
        return self.ask(broker_id, CREATE_TOPICS, fields, **request)

    # -- what a broker does

    def accepts(self, broker_id: int, user: str, mechanism: str = "SCRAM-SHA-256") -> bool:
        try:
            self.connect(broker_id, user, user, mechanism=mechanism).close()
        except AuthenticationError:
            return False
        return True

    def refuses(self, broker_id: int, user: str) -> bool:
        return not self.accepts(broker_id, user)

    def metadata(self, broker_id: int, topic: str, user: str = "admin") -> Any:
        fields = {
            "topics": ({"topic_id": None, "name": topic},),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        return self.ask(broker_id, METADATA, fields, user)

    def access(self, broker_id: int, topic: str, user: str) -> set[int]:
        """What a broker answers a user who asks for a topic and writes to the partition that the broker leads."""
        [seen] = self.metadata(broker_id, topic, user).topics
        return {int(seen.error_code), self.produce(broker_id, topic, user=user)[0]}

    def is_allowed(self, broker_id: int, topic: str, user: str) -> bool:
        return self.access(broker_id, topic, user) == {NONE}

    def is_denied(self, broker_id: int, topic: str, user: str) -> bool:
        return self.access(broker_id, topic, user) == {TOPIC_AUTHORIZATION_FAILED}

    def produce(self, broker_id: int, topic: str, size: int = 10, **request: Any) -> tuple[int, int]:
        """Write a record to the partition that a broker leads; the error code and the throttle time in ms."""
        batch = build_batch([Record(None, bytes(size), int(time.time() * 1000))])
        data = {"name": topic, "partition_data": ({"index": broker_id - 1, "records": batch},)}
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": timedelta(seconds=30),
            "topic_data": (data,),
        }
        answer = self.ask(broker_id, PRODUCE, fields, **request)
        [partition] = answer.responses[0].partition_responses
        return int(partition.error_code), int(answer.throttle_time.total_seconds() * 1000)

    def fetch(self, broker_id: int, topic: str, user: str) -> tuple[int, int]:
        """Read a record of 20,000 bytes of the partition that a broker leads, as `produce`."""
        assert self.produce(broker_id, topic, 20_000)[0] == NONE
        partition = {
            "partition": broker_id - 1,
            "current_leader_epoch": -1,
            "fetch_offset": self.start_offset(broker_id, topic),
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 100_000,
        }
        fields = {
            "replica_id": -1,
            "max_wait": timedelta(),
            "min_bytes": 1,
            "max_bytes": 100_000,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": ({"topic": topic, "partitions": (partition,)},),
            "forgotten_topics_data": (),
            "rack_id": "",
        }
        answer = self.ask(broker_id, FETCH, fields, user)
        # A response that the quota holds back has no partitions.
        codes = {int(each.error_code) for found in answer.responses for each in found.partitions}
        return max(codes, default=NONE), int(answer.throttle_time.total_seconds() * 1000)

    def closes_a_guest(self, broker_id: int) -> bool:
        """Whether a broker closes one of more connections from an address than its quota allows."""
        address = ("127.0.0.1", self.cluster.ports[broker_id])
        with contextlib.ExitStack() as stack:
            opened = [
                stack.enter_context(socket.create_connection(address, REQUEST_MS / 1000, (GUEST, 0)))
                for _ in range(GUESTS + 5)
            ]
            # Nothing is sent, so that nothing is read before the end.
            return bool(select.select(opened, [], [], CLOSED_S)[0])

    def start_offset(self, broker_id: int, topic: str) -> int:
        wanted = {"partition_index": broker_id - 1, "current_leader_epoch": -1, "timestamp": EARLIEST}
        topics = ({"name": topic, "partitions": (wanted,)},)
        answer = self.ask(broker_id, LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": topics})
        return int(answer.topics[0].partitions[0].offset)

    def described(self, broker_id: int, kind: int, resource: str, config: str) -> str:
        wanted = {"resource_type": kind, "resource_name": resource, "configuration_keys": (config,)}
        fields = {"resources": (wanted,), "include_synonyms": False, "include_documentation": False}
        [result] = self.ask(broker_id, DESCRIBE_CONFIGS, fields).results
        assert result.error_code == NONE, result.error_message
        return str(result.configs[0].value)


def on_all(what: str, holds: Callable[[int], bool]) -> None:
    """Wait until it holds on each broker: a change is answered when the controller has it, and others follow."""
    deadline_s = time.monotonic() + PATIENCE_S
    while missing := [each for each in IDS if not holds(each)]:
        assert time.monotonic() < deadline_s, f"{what} on brokers {missing}"
        time.sleep(POLL_S)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Iterator[Users]:
    """One cluster for all tests here, which must come through all of them."""
    folder: Path = tmp_path_factory.mktemp("users")
    cluster = MakeCluster(folder, zookeeper)(session_ms=4_000)
    try:
        made = Users(cluster)
        with contextlib.closing(made):
            yield made
        for each in IDS:
            cluster.stop(each)
            log = (cluster.folder / f"{each}.log").read_text()
            assert "Traceback" not in log
            assert "secret" not in log
    finally:
        cluster.close()


@pytest.fixture
def topic(users: Users, request: pytest.FixtureRequest) -> str:
    """A topic of this test with a partition led by each broker."""
    name = str(request.node.name).removeprefix("test_")
    [created] = users.create_topic(1, name).topics
    assert created.error_code == NONE, created.error_message

    def is_led(broker_id: int) -> bool:
        [seen] = users.metadata(broker_id, name).topics
        leaders = {each.partition_index + 1: each.leader_id for each in seen.partitions}
        return leaders == {each: each for each in IDS}

    on_all("the topic is not there", is_led)
    return name


def test_a_user_created_through_any_broker_logs_in_everywhere_until_it_is_deleted(users: Users) -> None:
    for broker_id in IDS:
        name = f"user-{broker_id}"
        users.set_password(broker_id, name)
        on_all("the user is refused", partial(users.accepts, user=name))
        users.delete_password(broker_id % len(IDS) + 1, name)
        on_all("the user is accepted", partial(users.refuses, user=name))


def test_an_acl_created_through_any_broker_holds_everywhere(users: Users, topic: str) -> None:
    users.set_password(1, "alice")
    on_all("the user is refused", lambda each: users.accepts(each, "alice"))
    assert all(users.is_denied(each, topic, "alice") for each in IDS)
    for broker_id in IDS:
        users.allow(broker_id, topic, "alice", WRITE)
        on_all("the rule does not allow", lambda each: users.is_allowed(each, topic, "alice"))
        removed = {
            "resource_type_filter": TOPIC_RESOURCE,
            "resource_name_filter": topic,
            "pattern_type_filter": 3,
            "principal_filter": "User:alice",
            "host_filter": None,
            "operation": WRITE,
            "permission_type": 3,
        }
        answer = users.ask(broker_id % len(IDS) + 1, DELETE_ACLS, {"filters": (removed,)})
        assert [each.error_code for each in answer.filter_results] == [NONE]
        on_all("the rule still allows", lambda each: users.is_denied(each, topic, "alice"))


def test_a_producer_quota_throttles_on_each_broker(users: Users, topic: str) -> None:
    """As in Kafka, each broker counts by itself."""
    client_id = "fast"
    users.set_quota(2, client_id, "producer_byte_rate", 1_000)

    def throttles(broker_id: int) -> bool:
        code, throttle_ms = users.produce(broker_id, topic, 20_000, client_id=client_id)
        assert code == NONE
        return throttle_ms > 0

    on_all("nobody is throttled", throttles)
    assert [users.produce(each, topic, 20_000, client_id="other") for each in IDS] == [(NONE, 0)] * len(IDS)


def test_a_quota_of_mutations_holds_through_each_broker(users: Users) -> None:
    """KIP-599: the controller counts, whichever broker forwards, and its error and delay reach the client."""
    client_id = "creator"
    users.set_quota(3, client_id, "controller_mutation_rate", 0.01)
    answers = [users.create_topic(each, f"created-{each}", client_id=client_id) for each in (2, 3, 1)]
    # Each has three partitions: the first uses up more than there is, and is served without a delay, as in Kafka.
    codes = [answer.topics[0].error_code for answer in answers]
    assert codes == [NONE, THROTTLING_QUOTA_EXCEEDED, THROTTLING_QUOTA_EXCEEDED]
    assert [answer.throttle_time > timedelta() for answer in answers] == [False, True, True]
    [created] = users.create_topic(1, "created-by-another", client_id="patient").topics
    assert created.error_code == NONE


def test_configs_of_all_brokers_take_effect_on_each(users: Users, topic: str) -> None:
    users.set_config(2, BROKER_RESOURCE, "", "message.max.bytes", "5000")
    on_all("a large batch is taken", lambda each: users.produce(each, topic, 10_000)[0] == MESSAGE_TOO_LARGE)
    for each in IDS:
        assert users.described(each, BROKER_RESOURCE, str(each), "message.max.bytes") == "5000"
        assert users.described(each, TOPIC_RESOURCE, topic, "max.message.bytes") == "5000"
    users.set_config(3, BROKER_RESOURCE, "", "message.max.bytes", "1000000")
    on_all("a large batch is refused", lambda each: users.produce(each, topic, 10_000)[0] == NONE)


def test_configs_of_one_broker_take_effect_on_it_alone(users: Users, topic: str) -> None:
    users.set_config(2, BROKER_RESOURCE, "2", "message.max.bytes", "5000")
    on_all(
        "the config of broker 2",
        lambda each: users.produce(each, topic, 10_000)[0] == (MESSAGE_TOO_LARGE if each == 2 else NONE),
    )
    assert users.described(2, BROKER_RESOURCE, "2", "message.max.bytes") == "5000"
    # Else broker 2 would refuse large batches in the tests that follow, whatever they set.
    users.set_config(2, BROKER_RESOURCE, "2", "message.max.bytes", "1000000")
    on_all("a large batch is refused", lambda each: users.produce(each, topic, 10_000)[0] == NONE)


def test_configs_of_a_topic_take_effect_on_each_leader(users: Users, topic: str) -> None:
    users.set_config(1, TOPIC_RESOURCE, topic, "max.message.bytes", "5000")
    on_all("a large batch is taken", lambda each: users.produce(each, topic, 10_000)[0] == MESSAGE_TOO_LARGE)
    on_all("a small batch is refused", lambda each: users.produce(each, topic)[0] == NONE)
    users.set_config(2, TOPIC_RESOURCE, topic, "retention.ms", "1000")
    on_all("retention deletes nothing", lambda each: users.start_offset(each, topic) > 0)


def test_min_insync_replicas_hold_and_a_broker_that_was_down_learns_what_it_missed(users: Users, topic: str) -> None:
    """The last test of the cluster: one broker is stopped and comes back."""
    users.set_password(1, "former")
    on_all("the user is refused", lambda each: users.accepts(each, "former"))
    users.set_config(3, TOPIC_RESOURCE, topic, "min.insync.replicas", "3")
    on_all("acks=all fails", lambda each: users.produce(each, topic)[0] == NONE)
    assert not any(users.closes_a_guest(each) for each in IDS)
    users.cluster.kill(3)
    until(lambda: {users.produce(each, topic)[0] for each in (1, 2)} == {NOT_ENOUGH_REPLICAS}, "two are enough")
    users.set_config(1, TOPIC_RESOURCE, topic, "min.insync.replicas", "2")
    until(lambda: {users.produce(each, topic)[0] for each in (1, 2)} == {NONE}, "two are not enough")

    # What changes now, broker 3 learns at its start.
    users.set_password(1, "carol", "SCRAM-SHA-512")
    users.set_password(1, "dave")
    users.delete_password(2, "former")
    users.allow(2, topic, "dave", WRITE)
    users.allow(2, topic, "dave", READ)
    users.set_quota(1, "dave", "consumer_byte_rate", 1_000, of="user")
    users.set_quota(2, "busy", "request_percentage", 0.001)
    users.set_quota(1, GUEST, "connection_creation_rate", 1, of="ip")
    users.restart(3)
    on_all("the broker did not come back", lambda each: users.accepts(each, "admin"))
    on_all("the user is refused", lambda each: users.accepts(each, "carol", "SCRAM-SHA-512"))
    assert not any(users.accepts(each, "carol") for each in IDS), "its password is for the other mechanism"
    on_all("the deleted user is accepted", lambda each: users.refuses(each, "former"))
    on_all("the rule does not allow", lambda each: users.is_allowed(each, topic, "dave"))
    on_all("reading is not throttled", lambda each: is_throttled(users.fetch(each, topic, "dave")))
    on_all("requests are not throttled", lambda each: is_throttled(users.produce(each, topic, client_id="busy")))
    on_all("connections are not limited", users.closes_a_guest)
    assert [users.produce(each, topic, client_id="other") for each in IDS] == [(NONE, 0)] * len(IDS)


def is_throttled(answer: tuple[int, int]) -> bool:
    """Whether a request was carried out and throttled."""
    code, throttle_ms = answer
    assert code == NONE
    return throttle_ms > 0
