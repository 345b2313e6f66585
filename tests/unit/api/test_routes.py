"""Paths and shapes of the REST API (Confluent REST v3), over a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest

BASE = "/v3/clusters/cluster-1"


@pytest.fixture
def flights(client: Any) -> Any:
    created = client.topics("POST", json={"topic_name": "flights", "partitions_count": 2})
    assert created.status_code == 201
    return client


def test_there_is_one_cluster_with_links_to_its_parts(client: Any) -> None:
    body = client.call("GET", "/v3/clusters").json()
    assert body["kind"] == "KafkaClusterList"
    assert body["metadata"] == {"self": "http://headwater:8082/v3/clusters", "next": None}
    (cluster,) = body["data"]
    assert cluster["cluster_id"] == "cluster-1"
    assert cluster["metadata"] == {
        "self": f"http://headwater:8082{BASE}",
        "resource_name": "crn:///kafka=cluster-1",
    }
    assert cluster["controller"] == {"related": f"http://headwater:8082{BASE}/brokers/7"}
    assert cluster["topics"] == {"related": f"http://headwater:8082{BASE}/topics"}
    assert client.call("GET", BASE).json() == cluster


def test_the_same_routes_answer_below_kafka_v3_with_links_of_their_own(flights: Any) -> None:
    body = flights.call("GET", "/kafka/v3/clusters/cluster-1/topics/flights").json()
    assert body["metadata"]["self"] == "http://headwater:8082/kafka/v3/clusters/cluster-1/topics/flights"


def test_brokers_are_listed_and_described(client: Any) -> None:
    listed = client.call("GET", f"{BASE}/brokers").json()
    assert [(broker["broker_id"], broker["host"], broker["port"]) for broker in listed["data"]] == [
        (7, "localhost", 9092)
    ]
    assert client.call("GET", f"{BASE}/brokers/7").json() == listed["data"][0]


def test_a_created_topic_is_answered_with_201_its_location_and_its_body(client: Any) -> None:
    answer = client.topics("POST", json={"topic_name": "flights", "partitions_count": 2, "replication_factor": 1})
    assert answer.status_code == 201
    assert answer.headers["location"] == f"http://headwater:8082{BASE}/topics/flights"
    body = answer.json()
    assert body["kind"] == "KafkaTopic"
    assert body["metadata"]["resource_name"] == "crn:///kafka=cluster-1/topic=flights"
    assert (body["topic_name"], body["partitions_count"], body["replication_factor"]) == ("flights", 2, 1)
    assert body["is_internal"] is False
    assert body["partitions"] == {"related": f"http://headwater:8082{BASE}/topics/flights/partitions"}
    assert client.topics("GET", "/flights").json() == body
    assert client.topics("GET").json()["data"] == [body]


def test_validate_only_answers_200_and_creates_nothing(client: Any) -> None:
    answer = client.topics("POST", json={"topic_name": "flights", "partitions_count": 3, "validate_only": True})
    assert (answer.status_code, answer.json()["partitions_count"]) == (200, 3)
    assert client.topics("GET").json()["data"] == []


def test_partitions_grow_by_patch(flights: Any) -> None:
    assert flights.topics("PATCH", "/flights", json={"partitions_count": 5}).json()["partitions_count"] == 5
    assert flights.topics("PATCH", "/flights", json={"partitions_count": 5}).json()["error_code"] == 40002


def test_a_deleted_topic_is_gone(flights: Any) -> None:
    assert flights.topics("DELETE", "/flights").status_code == 204
    assert flights.topics("GET", "/flights").json()["error_code"] == 40403


def test_a_config_is_set_read_and_reset(flights: Any) -> None:
    assert flights.topics("PUT", "/flights/configs/retention.ms", json={"value": "5"}).status_code == 204
    body = flights.topics("GET", "/flights/configs/retention.ms").json()
    assert body["kind"] == "KafkaTopicConfig"
    assert (body["value"], body["is_default"], body["source"]) == ("5", False, "DYNAMIC_TOPIC_CONFIG")
    assert body["metadata"]["resource_name"] == "crn:///kafka=cluster-1/topic=flights/config=retention.ms"
    assert flights.topics("DELETE", "/flights/configs/retention.ms").status_code == 204
    assert flights.topics("GET", "/flights/configs/retention.ms").json()["is_default"] is True


def test_configs_are_altered_together(flights: Any) -> None:
    flights.topics("PUT", "/flights/configs/retention.ms", json={"value": "5"})
    changes = [{"name": "retention.ms", "operation": "DELETE"}, {"name": "cleanup.policy", "value": "compact"}]
    assert flights.topics("POST", "/flights/configs:alter", json={"data": changes}).status_code == 204
    values = {entry["name"]: entry["value"] for entry in flights.topics("GET", "/flights/configs").json()["data"]}
    assert values == {"retention.ms": "604800000", "cleanup.policy": "compact"}


def test_the_configs_of_all_topics_are_one_list(flights: Any) -> None:
    flights.topics("POST", json={"topic_name": "delays"})
    body = flights.topics("GET", "/-/configs").json()
    assert body["kind"] == "KafkaTopicConfigList"
    assert {entry["topic_name"] for entry in body["data"]} == {"flights", "delays"}


def test_partitions_and_replicas_link_to_each_other(flights: Any) -> None:
    partitions = flights.topics("GET", "/flights/partitions").json()
    assert [entry["partition_id"] for entry in partitions["data"]] == [0, 1]
    partition = flights.topics("GET", "/flights/partitions/1").json()
    assert partition == partitions["data"][1]
    replicas = flights.topics("GET", "/flights/partitions/1/replicas").json()
    assert replicas["kind"] == "KafkaReplicaList"
    (replica,) = replicas["data"]
    assert (replica["broker_id"], replica["is_leader"], replica["is_in_sync"]) == (7, True, True)
    assert partition["leader"]["related"] == replica["metadata"]["self"]
    assert flights.topics("GET", "/flights/partitions/1/replicas/7").json() == replica


def test_the_replicas_of_a_broker_are_listed(flights: Any) -> None:
    body = flights.call("GET", f"{BASE}/brokers/7/partition-replicas").json()
    assert body["kind"] == "KafkaReplicaList"
    partitions = flights.topics("GET", "/flights").json()["partitions_count"]
    assert [(each["topic_name"], each["partition_id"], each["is_leader"]) for each in body["data"]] == [
        ("flights", partition, True) for partition in range(partitions)
    ]
    assert flights.call("GET", f"{BASE}/brokers/8/partition-replicas").json()["error_code"] == 40404


def test_the_server_says_that_it_runs_without_asking_the_broker(client: Any) -> None:
    client.admin.failure = RuntimeError("no broker")
    assert client.call("GET", "/healthz").json() == {"status": "ok"}


def test_the_openapi_document_lists_each_path_once(client: Any) -> None:
    paths = client.call("GET", "/openapi.json").json()["paths"]
    assert "/v3/clusters/{cluster_id}/topics" in paths
    assert not [path for path in paths if path.startswith("/kafka")]
