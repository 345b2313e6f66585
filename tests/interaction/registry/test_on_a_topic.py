"""The registry on a real topic: restarts, several of them at once, a topic that is wrong, gone or written by others."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

pytestmark = pytest.mark.slow

StartApi = Callable[..., str]


class StartBroker(Protocol):
    def __call__(self, data_dir: Path, kafka_port: int = 0) -> Any: ...


def text(name: str, **others: Any) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [], **others}, separators=(",", ":"))


def register(url: str, subject: str, schema: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/subjects/{subject}/versions", json={"schema": schema, **fields}, timeout=60)


def everything(url: str) -> Any:
    return httpx.get(f"{url}/schemas?deleted=true", timeout=60).json()


@pytest.fixture
def topic() -> str:
    return f"_schemas-{uuid.uuid4().hex[:12]}"


def records(bootstrap_servers: str, topic: str) -> list[tuple[dict[str, Any], Any]]:
    """Everything that committed readers see."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        value = message.value()
        found.append((json.loads(message.key() or b""), None if value is None else json.loads(value)))
    consumer.close()
    return found


def test_the_topic_is_made_compacted_and_holds_confluents_records(
    bootstrap_servers: str, admin: AdminClient, start_api: StartApi, topic: str
) -> None:
    url = start_api(bootstrap_servers, topic)
    assert register(url, "s", text("A")).json()["id"] == 1
    assert httpx.put(f"{url}/config/s", json={"compatibility": "FULL"}, timeout=60).status_code == 200
    assert httpx.delete(f"{url}/subjects/s", timeout=60).json() == [1]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "compact"
    written = records(bootstrap_servers, topic)
    assert [key["keytype"] for key, _ in written] == ["NOOP", "SCHEMA", "CONFIG", "DELETE_SUBJECT", "CONFIG"]
    assert written[1][0] == {"keytype": "SCHEMA", "subject": "s", "version": 1, "magic": 1}
    assert written[1][1] | {"md5": ""} == {
        "subject": "s", "version": 1, "id": 1, "md5": "", "schema": text("A"), "deleted": False,
    }  # fmt: skip
    assert written[4][1] is None


def test_a_new_process_has_everything_the_old_one_had(bootstrap_servers: str, start_api: StartApi, topic: str) -> None:
    first = start_api(bootstrap_servers, topic)
    for number in range(20):
        assert register(first, f"s{number % 5}", text(f"A{number % 5}", doc=str(number))).status_code == 200
    httpx.delete(f"{first}/subjects/s1", timeout=60)
    second = start_api(bootstrap_servers, topic)
    assert everything(second) == everything(first)
    assert register(second, "new", text("New")).json()["id"] == 21


def test_registries_on_one_topic_never_give_an_id_twice(
    bootstrap_servers: str, start_api: StartApi, topic: str
) -> None:
    urls = [start_api(bootstrap_servers, topic) for _ in range(2)]
    httpx.get(f"{urls[0]}/subjects", timeout=60)

    def one(number: int) -> tuple[int, int]:
        while True:
            answer = register(urls[number % 2], f"s{number % 3}", text(f"A{number % 3}", doc=str(number)))
            # Too many changes of the writer in a row: a client tries again.
            if answer.status_code != 500:
                assert answer.status_code == 200, answer.text
                return number, answer.json()["id"]

    with ThreadPoolExecutor(4) as pool:
        ids = dict(pool.map(one, range(40)))
    assert sorted(ids.values()) == list(range(1, 41))
    for url in urls:
        register(url, "last", text("Last"))
    assert everything(urls[0]) == everything(urls[1])
    for number, schema_id in ids.items():
        found = httpx.get(f"{urls[0]}/schemas/ids/{schema_id}", timeout=60).json()["schema"]
        assert json.loads(found)["doc"] == str(number)


def test_a_schema_too_large_for_the_topic_is_told_and_nothing_is_lost(
    bootstrap_servers: str, admin: AdminClient, start_api: StartApi, topic: str
) -> None:
    small = {"cleanup.policy": "compact", "max.message.bytes": "2000"}
    admin.create_topics([NewTopic(topic, 1, 1, config=small)])[topic].result(30)
    url = start_api(bootstrap_servers, topic)
    refused = register(url, "s", text("A", doc="x" * 3_000))
    assert (refused.status_code, refused.json()["error_code"]) == (422, 42209)
    taken = register(url, "s", text("A"))
    assert (taken.status_code, taken.json().get("id")) == (200, 1), taken.text


@pytest.mark.parametrize(
    ("partitions", "policy", "says"), [(2, "compact", "2 partitions"), (1, "delete", "cleanup.policy")]
)
def test_a_topic_that_could_lose_schemas_is_refused(
    bootstrap_servers: str,
    admin: AdminClient,
    start_api: StartApi,
    topic: str,
    partitions: int,
    policy: str,
    says: str,
) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1, config={"cleanup.policy": policy})])[topic].result(30)
    answer = httpx.get(f"{start_api(bootstrap_servers, topic)}/subjects", timeout=60)
    assert (answer.status_code, answer.json()["error_code"]) == (500, 50001)
    assert says in answer.json()["message"]


def test_a_topic_of_a_confluent_registry_is_served(
    bootstrap_servers: str, admin: AdminClient, start_api: StartApi, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for key, value in (
        ('{"keytype":"NOOP","magic":0}', None),
        (
            '{"keytype":"SCHEMA","subject":"old-value","version":1,"magic":1}',
            '{"subject":"old-value","version":1,"id":7,"schema":"\\"string\\"","deleted":false}',
        ),
        ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
        ('{"keytype":"MODE","magic":0}', '{"mode":"READWRITE"}'),
        ('{"keytype":"CONTEXT","tenant":"default","context":".lab","magic":0}', "{}"),
    ):
        producer.produce(topic, key=key, value=value)
    producer.flush(30)
    url = start_api(bootstrap_servers, topic)
    assert httpx.get(f"{url}/schemas/ids/7", timeout=60).json()["schema"] == '"string"'
    assert httpx.get(f"{url}/config", timeout=60).json() == {"compatibilityLevel": "FULL"}
    assert register(url, "old-value", '"string"').json()["id"] == 7
    assert register(url, "new-value", '"int"').json()["id"] == 8


def test_reads_go_on_without_the_broker_and_writes_come_back_with_it(
    start_broker: StartBroker, tmp_path: Path, start_api: StartApi, topic: str
) -> None:
    broker = start_broker(tmp_path / "data")
    address, port = broker.address, broker.port
    url = start_api(address, topic, HEADWATER_REQUEST_TIMEOUT_MS="4000")
    deadline = time.monotonic() + 60
    while (answer := register(url, "s", text("A"))).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.1)  # on a busy machine
    assert answer.json()["id"] == 1
    broker.kill()
    assert httpx.get(f"{url}/subjects", timeout=60).json() == ["s"]
    failed = register(url, "s", text("A", doc="while it is down"))
    assert failed.status_code == 500
    assert failed.json()["error_code"] in (50001, 50002)
    start_broker(tmp_path / "data", port)
    deadline = time.monotonic() + 60
    back = text("A", doc="when it is back")
    while (answer := register(url, "s", back)).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert answer.status_code == 200, answer.text
    numbers = httpx.get(f"{url}/subjects/s/versions", timeout=60).json()
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_topic_that_was_deleted_is_begun_anew(
    bootstrap_servers: str, admin: AdminClient, start_api: StartApi, topic: str
) -> None:
    url = start_api(bootstrap_servers, topic)
    register(url, "s", text("A"))
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 60
    while register(url, "s", text("B")).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert httpx.get(f"{url}/subjects/s/versions/latest", timeout=60).json()["schema"] == text("B")
