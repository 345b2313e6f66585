"""Registering, looking up and deleting over HTTP, with Confluent's codes."""

from __future__ import annotations

from typing import Any

import pytest

AVRO = '{"type":"record","name":"Flight","fields":[{"name":"number","type":"int"}]}'
WIDER = '{"type":"record","name":"Flight","fields":[{"name":"number","type":"long"}]}'
REQUIRED = '{"type":"record","name":"Flight","fields":[{"name":"number","type":"int"},{"name":"tail","type":"string"}]}'
OTHER = '{"type":"enum","name":"Status","symbols":["A"]}'


def test_the_same_schema_has_the_same_id_everywhere(client: Any) -> None:
    first = client.register("a-value", AVRO)
    spaced = AVRO.replace(":", " : ").replace('"name" : "Flight"', '"namespace":"","name":"Flight"')
    assert client.register("a-value", spaced) == first
    assert client.register("b-value", AVRO) == first
    assert client.register("b-value", WIDER) == first + 1
    assert client.call("GET", "/subjects/b-value/versions").json() == [1, 2]


def test_registering_gives_id_version_and_guid(client: Any) -> None:
    answer = client.call("POST", "/subjects/s/versions", {"schema": '"int"'})
    assert answer.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    assert answer.json() == {"id": 1, "version": 1, "guid": "ef524ea1-b91e-7317-3d93-8ade36c1db32"}


def test_a_version_has_everything_that_makes_it(client: Any) -> None:
    metadata = {"properties": {"owner": "air"}}
    rules = {"domainRules": [{"name": "positive", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "1"}]}
    client.register("s", AVRO, metadata=metadata, ruleSet=rules)
    body = client.call("GET", "/subjects/s/versions/latest").json()
    assert (body["subject"], body["version"], body["id"], body["schema"]) == ("s", 1, 1, AVRO)
    assert (body["metadata"], body["ruleSet"]) == (metadata, rules)
    assert "schemaType" not in body
    assert client.call("GET", "/schemas/ids/1").json()["metadata"] == metadata
    assert client.call("GET", "/subjects/s/metadata?key=owner&value=air").json()["version"] == 1
    assert client.failure("GET", "/subjects/s/metadata?key=owner&value=sea") == (404, 40403)


def test_a_schema_inherits_metadata_that_it_does_not_bring(client: Any) -> None:
    client.register("s", AVRO, metadata={"properties": {"owner": "air"}})
    assert client.register("s", AVRO) == 1
    client.register("s", WIDER)
    assert client.call("GET", "/subjects/s/versions/2").json()["metadata"] == {"properties": {"owner": "air"}}


def test_a_subject_may_have_slashes_and_everything_else(client: Any) -> None:
    client.register("a%2Fb%20%C3%BC", AVRO)
    assert client.call("GET", "/subjects").json() == ["a/b ü"]
    assert client.call("GET", "/subjects/a%2Fb%20%C3%BC/versions/1/schema").text == AVRO
    assert client.call("POST", "/subjects/a%2Fb%20%C3%BC", {"schema": AVRO}).json()["version"] == 1
    assert client.call("DELETE", "/subjects/a%2Fb%20%C3%BC/versions/1").json() == 1


def test_the_default_context_may_be_named(client: Any) -> None:
    client.register(":.:s", AVRO)
    assert client.call("GET", "/subjects?subjectPrefix=:*:").json() == ["s"]
    assert client.call("GET", "/contexts").json() == ["."]


@pytest.mark.parametrize("subject", [":.other:s", "%20", "__GLOBAL", "x" * 1_001])
def test_a_name_that_no_subject_can_have_is_42208(client: Any, subject: str) -> None:
    assert client.failure("POST", f"/subjects/{subject}/versions", {"schema": AVRO}) == (422, 42208)


def test_looking_up_finds_the_version_and_nothing_else(client: Any) -> None:
    assert client.failure("POST", "/subjects/s", {"schema": AVRO}) == (404, 40401)
    client.register("s", AVRO)
    assert client.call("POST", "/subjects/s", {"schema": AVRO}).json()["id"] == 1
    assert client.failure("POST", "/subjects/s", {"schema": WIDER}) == (404, 40403)
    assert client.failure("POST", "/subjects/s", {"schema": "{"}) == (422, 42201)


def test_an_incompatible_schema_is_409_with_the_reason(client: Any) -> None:
    client.register("s", AVRO)
    answer = client.call("POST", "/subjects/s/versions", {"schema": REQUIRED})
    assert (answer.status_code, answer.json()["error_code"]) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer.json()["message"]
    assert "tail" in answer.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"schema": "{"},
        {"schema": ""},
        {},
        {"schema": "{}", "schemaType": "XML"},
        {"schema": '{"type":"record","name":"R","fields":[{"name":"x","type":"Other"}]}'},
        {"schema": AVRO, "references": [{"name": "x", "subject": "none", "version": 1}]},
        {"schema": "message {", "schemaType": "PROTOBUF"},
        {"schema": '{"type":"text"}', "schemaType": "JSON"},
        {"schema": "[" * 100_000},
        {"schema": '{"items":' * 50_000, "schemaType": "JSON"},
        {"schema": "message A {" * 50_000, "schemaType": "PROTOBUF"},
    ],
)
def test_what_is_no_schema_is_42201(client: Any, body: dict[str, Any]) -> None:
    assert client.failure("POST", "/subjects/s/versions", body) == (422, 42201)


def test_a_body_of_the_wrong_shape_is_422_and_no_json_is_400(client: Any) -> None:
    assert client.failure("POST", "/subjects/s/versions", {"schema": 5}) == (422, 422)
    assert client.failure("POST", "/subjects/s/versions", {"schema": "\ud800"}) == (400, 400)
    assert client.failure("POST", "/subjects/s/versions?normalize=perhaps", {"schema": AVRO}) == (422, 422)
    answer = client.call("POST", "/subjects/s/versions", {"schema": AVRO}, {"content-type": "text/plain"})
    assert answer.status_code == 415


def test_rules_of_the_wrong_kind_are_42210(client: Any) -> None:
    rule = {"name": "r", "mode": "UPGRADE"}
    for rules in ({"domainRules": [rule]}, {"migrationRules": [rule, rule]}):
        body = {"schema": AVRO, "ruleSet": rules}
        assert client.failure("POST", "/subjects/s/versions", body) == (422, 42210)


@pytest.mark.parametrize("version", ["0", "-2", "x", "2147483648", "99999999999999999999"])
def test_what_is_no_version_is_42202(client: Any, version: str) -> None:
    client.register("s", AVRO)
    assert client.failure("GET", f"/subjects/s/versions/{version}") == (422, 42202)


def test_what_is_not_there_is_404_with_its_own_code(client: Any) -> None:
    client.register("s", AVRO)
    assert client.failure("GET", "/subjects/none/versions") == (404, 40401)
    assert client.failure("GET", "/subjects/none/versions/1") == (404, 40401)
    assert client.failure("GET", "/subjects/s/versions/2") == (404, 40402)
    assert client.failure("GET", "/schemas/ids/2") == (404, 40403)
    assert client.failure("GET", "/schemas/guids/00000000-0000-0000-0000-000000000000") == (404, 40403)
    assert client.failure("DELETE", "/subjects/none") == (404, 40401)
    assert client.failure("DELETE", "/subjects/s/versions/2") == (404, 40402)
    assert client.failure("GET", "/associations/resources/ns/topic") == (404, 404)


def test_a_subject_is_deleted_softly_and_then_for_good(client: Any) -> None:
    client.register("s", AVRO)
    client.register("s", WIDER)
    assert client.failure("DELETE", "/subjects/s?permanent=true") == (404, 40405)
    assert client.call("DELETE", "/subjects/s").json() == [1, 2]
    assert client.failure("DELETE", "/subjects/s") == (404, 40404)
    assert client.call("GET", "/subjects").json() == []
    assert client.call("GET", "/subjects?deleted=true").json() == ["s"]
    assert client.call("GET", "/subjects?deletedOnly=true").json() == ["s"]
    assert client.failure("GET", "/subjects/s/versions/1") == (404, 40401)
    assert client.call("GET", "/subjects/s/versions/1?deleted=true").json()["id"] == 1
    assert client.call("GET", "/schemas/ids/1").json()["schema"] == AVRO
    assert client.call("DELETE", "/subjects/s?permanent=true").json() == [1, 2]
    assert client.failure("GET", "/schemas/ids/1") == (404, 40403)
    assert client.failure("DELETE", "/subjects/s?permanent=true") == (404, 40401)


def test_a_version_is_deleted_softly_and_then_for_good(client: Any) -> None:
    client.register("s", AVRO)
    client.register("s", WIDER)
    assert client.failure("DELETE", "/subjects/s/versions/1?permanent=true") == (404, 40407)
    assert client.call("DELETE", "/subjects/s/versions/latest").json() == 2
    assert client.failure("DELETE", "/subjects/s/versions/2") == (404, 40406)
    assert client.call("GET", "/subjects/s/versions").json() == [1]
    assert client.call("GET", "/subjects/s/versions?deletedAsNegative=true").json() == [1, -2]
    assert client.call("GET", "/subjects/s/versions?deletedOnly=true").json() == [2]
    assert client.call("DELETE", "/subjects/s/versions/2?permanent=true").json() == 2
    assert client.call("GET", "/subjects/s/versions?deleted=true").json() == [1]


def test_a_deleted_schema_comes_back_with_its_id_as_a_new_version(client: Any) -> None:
    client.register("s", AVRO)
    client.register("s", WIDER)
    client.call("DELETE", "/subjects/s")
    assert client.register("s", AVRO) == 1
    assert client.call("GET", "/subjects/s/versions?deleted=true").json() == [2, 3]
    assert client.call("GET", "/schemas/ids/1/versions").json() == [{"subject": "s", "version": 3}]


def test_ids_are_not_given_twice_after_a_delete(client: Any) -> None:
    client.register("s", AVRO)
    client.register("t", OTHER)
    client.call("DELETE", "/subjects/t")
    client.call("DELETE", "/subjects/t?permanent=true")
    assert client.register("u", WIDER) == 3


def test_subjects_and_versions_of_an_id(client: Any) -> None:
    client.register("s", AVRO)
    client.register("t", AVRO)
    client.call("DELETE", "/subjects/t")
    assert client.call("GET", "/schemas/ids/1/subjects").json() == ["s"]
    assert client.call("GET", "/schemas/ids/1/subjects?deleted=true").json() == ["s", "t"]
    assert client.call("GET", "/schemas/ids/1/versions?subject=s").json() == [{"subject": "s", "version": 1}]
    assert client.call("GET", "/schemas/ids/1/schema").text == AVRO
    guid = client.call("GET", "/schemas/ids/1").json()["guid"]
    assert client.call("GET", f"/schemas/guids/{guid}").json()["schema"] == AVRO
    assert client.call("GET", f"/schemas/guids/{guid}/ids").json() == [{"context": ".", "id": 1}]
    assert client.call("GET", "/schemas/ids/1?fetchMaxId=true").json()["maxId"] == 1


def test_all_schemas_with_a_prefix_and_in_parts(client: Any) -> None:
    for subject in ("a1", "a2", "b1"):
        client.register(subject, AVRO)
        client.register(subject, WIDER)
    found = client.call("GET", "/schemas?subjectPrefix=a&latestOnly=true").json()
    assert [(body["subject"], body["version"]) for body in found] == [("a1", 2), ("a2", 2)]
    assert len(client.call("GET", "/schemas?offset=1&limit=3").json()) == 3
    assert client.call("GET", "/subjects?limit=2").json() == ["a1", "a2"]
    assert client.call("GET", "/schemas/types").json() == ["JSON", "PROTOBUF", "AVRO"]


def test_a_schema_may_use_others_which_cannot_be_deleted_then(client: Any) -> None:
    client.register("status", OTHER)
    uses = '{"type":"record","name":"Flight","fields":[{"name":"status","type":"Status"}]}'
    references = [{"name": "Status", "subject": "status", "version": 1}]
    used_by = client.register("flight", uses, references=references)
    assert client.call("GET", f"/schemas/ids/{used_by}").json()["references"] == references
    assert client.call("GET", f"/schemas/ids/{used_by}").json()["schema"] == uses
    assert client.call("GET", "/subjects/status/versions/1/referencedby").json() == [used_by]
    assert OTHER in client.call("GET", f"/schemas/ids/{used_by}/schema?format=resolved").text
    assert client.failure("DELETE", "/subjects/status") == (422, 42206)
    assert client.failure("DELETE", "/subjects/status/versions/1") == (422, 42206)
    client.call("DELETE", "/subjects/flight")
    assert client.call("DELETE", "/subjects/status").json() == [1]
    assert client.failure("DELETE", "/subjects/status?permanent=true") == (422, 42206)


def test_normalising_makes_equal_what_says_the_same(client: Any) -> None:
    one = '{"type":"record","name":"x.R","fields":[{"name":"a","type":{"type":"int","b":1,"a":2}}]}'
    two = '{"type":"record","name":"R","namespace":"x","fields":[{"name":"a","type":{"type":"int","a":2,"b":1}}]}'
    assert client.register("s", one) != client.register("s", two)
    client.call("PUT", "/config/t", {"normalize": True})
    assert client.register("t", one) == client.register("t", two)
    query = "/subjects/u/versions?normalize=true"
    assert client.call("POST", query, {"schema": one}).json() == client.call("POST", query, {"schema": two}).json()


def test_answers_are_plain_json_for_those_who_ask_for_it(client: Any) -> None:
    answer = client.call("GET", "/subjects", headers={"accept": "application/json"})
    assert answer.headers["content-type"] == "application/json"
