"""Every failure has Confluent's shape, whoever caused it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from headwater.api.access import ChangePolicy
from headwater.api.errors import STATUS
from headwater.api.topic_admin import ErrorCode, TopicAdminError
from headwater.api.topic_model import ConfigChange, validate_changes


def failure(answer: httpx.Response) -> tuple[int, int]:
    """The status and error code, after a look at the shape."""
    body = answer.json()
    assert set(body) == {"error_code", "message"}
    assert isinstance(body["message"], str) and body["message"] and "\n" not in body["message"]
    return answer.status_code, body["error_code"]


def test_every_administration_error_has_an_answer_whose_code_begins_with_its_status() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert all(str(code).startswith(str(status)) for status, code in STATUS.values())


@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_administration_error_becomes_its_answer(client: Any, code: ErrorCode) -> None:
    client.admin.failure = TopicAdminError(code, "because")
    assert failure(client.call("GET", "/v3/clusters")) == STATUS[code]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nowhere", (404, 404)),
        ("PUT", "/v3/clusters", (405, 405)),
        ("GET", "/v3/clusters/other", (404, 40404)),
        ("GET", "/v3/clusters/cluster-1/brokers/8", (404, 40404)),
        ("GET", "/v3/clusters/cluster-1/brokers/one", (404, 40404)),
        ("GET", "/v3/clusters/cluster-1/topics/none", (404, 40403)),
        ("DELETE", "/v3/clusters/cluster-1/topics/none", (404, 40403)),
        ("GET", "/v3/clusters/cluster-1/topics/none/partitions/0", (404, 40403)),
        ("GET", "/v3/clusters/cluster-1/topics/none/configs", (404, 40403)),
        ("GET", "/v3/clusters/cluster-1/topics/" + "x" * 250, (404, 40404)),
    ],
)
def test_what_is_not_there_is_said_in_the_same_shape(
    client: Any, method: str, path: str, expected: tuple[int, int]
) -> None:
    assert failure(client.call(method, path)) == expected


@pytest.mark.parametrize("path", ["/partitions/9", "/partitions/-1", "/partitions/0/replicas/8", "/configs/nope"])
def test_a_part_that_a_topic_lacks_is_404(client: Any, path: str) -> None:
    client.topics("POST", json={"topic_name": "flights"})
    assert failure(client.topics("GET", f"/flights{path}")) == (404, 40404)


@pytest.mark.parametrize(
    "body",
    [
        {"topic_name": "a/b"},
        {"topic_name": ""},
        {"topic_name": "x" * 250},
        {"topic_name": "t", "partitions_count": 0},
        {"topic_name": "t", "replication_factor": 0},
        {"topic_name": "t", "partitions_count": 1, "replicas_assignments": [{"partition_id": 0, "broker_ids": [1]}]},
        {"topic_name": "t", "replicas_assignments": [{"partition_id": 1, "broker_ids": [1]}]},
        {"topic_name": "t", "configs": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]},
    ],
)
def test_a_topic_that_cannot_be_is_refused(client: Any, body: dict[str, Any]) -> None:
    assert failure(client.topics("POST", json=body)) == (400, 40002)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        {"topic_name": 5},
        {"topic_name": "t", "partitions_count": "3"},
        {"topic_name": "t", "partitions": 3},
        {"topic_name": "t", "configs": {"retention.ms": "5"}},
    ],
)
def test_a_body_of_the_wrong_shape_is_422(client: Any, body: Any) -> None:
    assert failure(client.topics("POST", json=body)) == (422, 42206)


def test_an_unknown_field_is_named(client: Any) -> None:
    message = client.topics("POST", json={"topic_name": "t", "partitons_count": 3}).json()["message"]
    assert "partitons_count" in message


def test_a_thousand_problems_are_one_line(client: Any) -> None:
    configs = [{"nam": "x"} for _ in range(100)]
    answer = client.topics("POST", json={"topic_name": "t", "configs": configs})
    assert failure(answer) == (422, 42206)
    assert len(answer.json()["message"]) < 600


@pytest.mark.parametrize(
    "body",
    [
        rb'{"topic_name": "t", "configs": [{"name": "\ud800", "value": "1"}]}',
        rb'{"topic_name": "t", "configs": [{"name": "a", "value": "\uDFFF"}]}',
        b'{"topic_name": "t", "configs": [{"name": "\xed\xa0\x80"}]}',
        b'{"topic_name": "t", "configs": [{"name": "\xff"}]}',
        rb'{"\ud800": 1}',
        b'{"topic_name": "t", "partitions_count": ' + b"9" * 5_000 + b"}",
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_text_or_holds_an_endless_number_is_400_and_says_why(client: Any, body: bytes) -> None:
    answer = client.topics("POST", content=body, headers={"content-type": "application/json"})
    assert failure(answer) == (400, 400)
    message = answer.json()["message"]
    assert any(reason in message for reason in ("surrogate", "UTF-8", "digits", "deeply")), message
    assert client.admin.topics == {}


def test_a_pair_of_surrogates_is_text(client: Any) -> None:
    body = rb'{"topic_name": "t", "configs": [{"name": "a", "value": "\ud83d\ude00"}]}'
    assert client.topics("POST", content=body, headers={"content-type": "application/json"}).status_code == 201
    assert client.admin.overrides["t"] == {"a": "\U0001f600"}


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
def test_what_librdkafka_cannot_take_is_refused_before_it_is_asked(text: str) -> None:
    for changes in ([ConfigChange(text, "1")], [ConfigChange("a", text)]):
        with pytest.raises(TopicAdminError) as refused:
            validate_changes(changes)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        refused.value.message.encode()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v3/clusters/cluster-1/topics/t", "DELETE, GET, PATCH"),
        ("POST", "/v3/clusters/cluster-1/topics/t/configs/a", "DELETE, GET, PUT"),
        ("DELETE", "/healthz", "GET"),
        ("PATCH", "/subjects/s", "DELETE, POST"),
    ],
)
def test_a_method_that_a_path_lacks_is_405_with_those_it_has(client: Any, method: str, path: str, allowed: str) -> None:
    answer = client.call(method, path)
    assert failure(answer) == (405, 405)
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8082", "headwater.evil.example", "[::2]:80", "10.0.0.1"]
)
def test_a_name_that_is_not_the_servers_is_421(client: Any, host: str) -> None:
    for method, path in (("GET", "/v3/clusters"), ("GET", "/subjects"), ("DELETE", "/v3/clusters/cluster-1/topics/t")):
        answer = client.call(method, path, headers={"host": host})
        assert failure(answer) == (421, 421)
        assert "http_hosts" in answer.json()["message"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8082", "127.0.0.1:1", "[::1]:8082", "headwater"])
def test_a_name_of_the_server_is_served(client: Any, host: str) -> None:
    assert client.call("GET", "/v3/clusters", headers={"host": host}).status_code == 200


def changes(app: Any) -> list[tuple[str, str]]:
    """Every method and path of the application that may change something."""
    reads = {
        ("POST", "/subjects/{subject}"),
        ("POST", "/compatibility/subjects/{subject}/versions"),
        ("POST", "/compatibility/subjects/{subject}/versions/{version}"),
        ("POST", "/headwater/v1/sql"),
        ("DELETE", "/headwater/v1/sql/{query_id}"),
    }
    found = [
        (method.upper(), path)
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if method != "get" and (method.upper(), path) not in reads
    ]
    return [(method, re.sub(r"\{\w+\}", "1", path.replace("{cluster_id}", "cluster-1"))) for method, path in found]


@pytest.mark.parametrize("policy", [{"broker_is_secured": True}, {"host_is_loopback": False}])
def test_a_server_that_others_reach_or_whose_broker_is_secured_changes_nothing(
    client: Any, policy: dict[str, bool]
) -> None:
    given = {"broker_is_secured": False, "host_is_loopback": True} | policy
    client.app.state.changes = ChangePolicy.of("auto", **given)
    asked = changes(client.app)
    assert len(asked) >= 15
    for method, path in asked:
        answer = client.call(method, path, json={})
        assert failure(answer) == (403, 40301), (method, path)
        assert "http_changes" in answer.json()["message"]
    assert client.call("GET", "/v3/clusters").status_code == 200
    for setting, refused in (("allow", False), ("refuse", True)):
        client.app.state.changes = ChangePolicy.of(setting, **given)
        answer = client.topics("POST", json={"topic_name": setting})
        assert (answer.status_code == 403) is refused


def test_broken_json_is_400(client: Any) -> None:
    headers = {"content-type": "application/json"}
    assert failure(client.topics("POST", content=b"{", headers=headers)) == (400, 400)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_is_not_json_is_415(client: Any, content_type: str) -> None:
    headers = {"content-type": content_type}
    assert failure(client.topics("POST", content=b'{"topic_name": "t"}', headers=headers)) == (415, 415)
    assert client.admin.topics == {}


def test_a_body_over_the_limit_is_413_whether_announced_or_not(client: Any) -> None:
    async def unannounced() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    headers = {"content-type": "application/json"}
    assert failure(client.topics("POST", content=b" " * 2_000_000, headers=headers)) == (413, 413)
    assert failure(client.topics("POST", content=unannounced(), headers=headers)) == (413, 413)


def test_a_fault_of_the_server_hides_its_reason(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    client.admin.failure = RuntimeError("secret")
    answer = client.call("GET", "/v3/clusters")
    assert failure(answer) == (500, 500)
    assert "secret" not in answer.text
    assert "secret" in caplog.text


def test_a_setting_without_value_needs_the_operation_delete(client: Any) -> None:
    client.topics("POST", json={"topic_name": "flights"})
    answer = client.topics("POST", "/flights/configs:alter", json={"data": [{"name": "retention.ms"}]})
    assert failure(answer) == (400, 40002)


def test_a_cluster_made_anew_is_recognised_by_its_new_id(client: Any) -> None:
    client.app.state.clusters.cluster_id = "the-old-one"
    assert failure(client.call("GET", "/v3/clusters/unknown")) == (404, 40404)
    assert client.call("GET", "/v3/clusters/cluster-1").status_code == 200
