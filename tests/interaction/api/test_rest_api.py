"""The REST API in front of a real broker, over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

pytestmark = pytest.mark.slow

#: Of an answer, on a busy machine; httpx waits for 5 s by itself.
ANSWER_S = 60
get, post = partial(httpx.get, timeout=ANSWER_S), partial(httpx.post, timeout=ANSWER_S)
put, delete = partial(httpx.put, timeout=ANSWER_S), partial(httpx.delete, timeout=ANSWER_S)


@pytest.fixture(scope="module")
def server(bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`headwater api` on a free port; gives its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "api", "-b", bootstrap_servers, "--http-port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
        cwd=tmp_path_factory.mktemp("api"),
    )
    assert process.stdout is not None
    yield process.stdout.readline().decode().split()[-1]
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def topics(server: str) -> str:
    """URL of the topics of the one cluster."""
    (cluster,) = get(f"{server}/v3/clusters").json()["data"]
    url: str = cluster["topics"]["related"]
    assert url.startswith(server)
    return url


@pytest.fixture
def topic(topics: str) -> Iterator[str]:
    """URL of a topic of two partitions for one test."""
    name = f"rest.{uuid.uuid4().hex[:12]}"
    configs = [{"name": "retention.ms", "value": "3600000"}]
    created = post(topics, json={"topic_name": name, "partitions_count": 2, "configs": configs})
    assert created.status_code == 201
    yield created.headers["location"]
    assert delete(created.headers["location"]).status_code in (204, 404)


def test_a_hostile_body_or_name_is_refused_and_the_server_lives_on(server: str, topics: str) -> None:
    headers = {"content-type": "application/json"}
    for _ in range(2):
        body = rb'{"topic_name": "hostile", "configs": [{"name": "\ud800", "value": "1"}]}'
        assert post(topics, content=body, headers=headers).status_code == 400
        assert get(f"{server}/v3/clusters", headers={"host": "rebound.example"}).status_code == 421
    assert get(f"{server}/healthz").status_code == 200


def test_the_links_of_a_topic_lead_to_its_parts(topic: str) -> None:
    body = get(topic).json()
    assert (body["partitions_count"], body["replication_factor"], body["is_internal"]) == (2, 1, False)
    partitions = get(body["partitions"]["related"]).json()["data"]
    assert [partition["partition_id"] for partition in partitions] == [0, 1]
    replica = get(partitions[0]["leader"]["related"]).json()
    assert (replica["is_leader"], replica["is_in_sync"]) == (True, True)
    broker = get(replica["broker"]["related"]).json()
    assert broker["kind"] == "KafkaBroker"


def test_configs_are_read_set_altered_and_reset(topic: str) -> None:
    config = f"{topic}/configs/retention.ms"
    assert get(config).json()["value"] == "3600000"
    assert put(config, json={"value": "7200000"}).status_code == 204
    assert get(config).json()["value"] == "7200000"
    changes = {"data": [{"name": "retention.ms", "operation": "DELETE"}, {"name": "segment.ms", "value": "60000"}]}
    assert post(f"{topic}/configs:alter", json=changes).status_code == 204
    assert get(config).json()["is_default"] is True
    assert delete(f"{topic}/configs/segment.ms").status_code == 204
    names = {entry["name"] for entry in get(f"{topic}/configs").json()["data"]}
    assert {"retention.ms", "segment.ms", "cleanup.policy"} <= names


def test_the_configs_of_all_topics_hold_this_one(topic: str, topics: str) -> None:
    entries = get(f"{topics}/-/configs").json()["data"]
    assert topic.rpartition("/")[2] in {entry["topic_name"] for entry in entries}


def test_partitions_grow_and_never_shrink(topic: str) -> None:
    assert httpx.patch(topic, json={"partitions_count": 4}).json()["partitions_count"] == 4
    refused = httpx.patch(topic, json={"partitions_count": 3})
    assert (refused.status_code, refused.json()["error_code"]) == (400, 40002)


def test_a_deleted_topic_is_404(topic: str) -> None:
    assert delete(topic).status_code == 204
    gone = get(topic)
    assert (gone.status_code, gone.json()["error_code"]) == (404, 40403)


@pytest.mark.parametrize(
    "body",
    [
        {"partitions_count": 0},
        {"replication_factor": 99},
        {"configs": [{"name": "retention.ms", "value": "long"}]},
        {"configs": [{"name": "no.such.config", "value": "1"}]},
    ],
)
def test_what_the_broker_refuses_is_40002(topics: str, body: dict[str, object]) -> None:
    refused = post(topics, json={"topic_name": f"rest.{uuid.uuid4().hex[:8]}", **body})
    assert (refused.status_code, refused.json()["error_code"]) == (400, 40002)


def test_a_topic_that_exists_and_one_that_is_only_validated(topic: str, topics: str) -> None:
    again = post(topics, json={"topic_name": topic.rpartition("/")[2]})
    assert (again.status_code, again.json()["error_code"]) == (400, 40002)
    name = f"rest.{uuid.uuid4().hex[:8]}"
    assert post(topics, json={"topic_name": name, "validate_only": True}).status_code == 200
    assert get(f"{topics}/{name}").status_code == 404
