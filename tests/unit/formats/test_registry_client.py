"""The registry's client: what it asks and remembers, what it tries again, and what it never says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headwater.pipelines.formats import registry_client
from headwater.pipelines.formats.registry_client import (
    AVRO,
    PROTOBUF,
    Connection,
    NotFoundError,
    RegistryClient,
    RegistryError,
)


class Server:
    """Answers as a list of (status, body) says, the last one again and again; remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                server.asked.append((self.command, self.path, dict(self.headers), body))
                status, content = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = answer

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(registry_client, "PAUSE_S", 0.001)
    found = Server()
    thread = threading.Thread(target=found.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.http.shutdown()
    thread.join()
    found.http.server_close()


@pytest.fixture
def client(server: Server) -> Callable[..., RegistryClient]:
    def made(**more: Any) -> RegistryClient:
        return RegistryClient(Connection.of(more.pop("url", server.url), **more))

    return made


SCHEMA = {"schema": '"string"'}


def test_a_schema_is_fetched_once_with_what_it_refers_to(server: Server, client: Any) -> None:
    server.answers = [
        (200, {"schema": '"a.B"', "references": [{"name": "a.B", "subject": "b/s", "version": 2}]}),
        (200, {"schema": '{"b": 1}', "references": [{"name": "c", "subject": "c", "version": 1}]}),
        (200, {"schema": '"c"'}),
    ]
    own = client()
    found = own.schema(7)
    assert own.schema(7) is found
    assert (found.schema_type, found.text, found.id) == (AVRO, '"a.B"', 7)
    assert found.references == (("c", '"c"'), ("a.B", '{"b": 1}'))
    assert [path for _, path, _, _ in server.asked] == [
        "/schemas/ids/7", "/subjects/b%2Fs/versions/2", "/subjects/c/versions/1"
    ]  # fmt: skip


def test_an_unknown_id_is_not_asked_for_again_and_again(server: Server, client: Any) -> None:
    server.answers = [(404, {"error_code": 40403, "message": "Schema 9 not found"})]
    own = client()
    for _ in range(3):
        with pytest.raises(NotFoundError, match="no schema with the id 9"):
            own.schema(9)
    assert len(server.asked) == 1


def test_registering_and_looking_up(server: Server, client: Any) -> None:
    server.answers = [(200, {"id": 3}), (404, {"error_code": 40403, "message": "no"})]
    own = client()
    assert own.register("t-value", PROTOBUF, "message M {}") == 3
    with pytest.raises(NotFoundError, match="the registry's subject 't-value' does not have this schema"):
        own.look_up("t-value", AVRO, '"int"')
    assert [(path, body) for _, path, _, body in server.asked] == [
        ("/subjects/t-value/versions", {"schema": "message M {}", "schemaType": "PROTOBUF"}),
        ("/subjects/t-value", {"schema": '"int"'}),
    ]


def test_answers_of_5xx_are_tried_again(server: Server, client: Any) -> None:
    server.answers = [(503, {"message": "starting"}), (500, b"no json"), (429, {}), (200, SCHEMA)]
    assert client().schema(1).text == '"string"'
    assert len(server.asked) == 4


def test_a_registry_that_stays_away_is_told_in_one_line(
    server: Server, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ATTEMPTS", 3)
    server.answers = [(503, {"message": "starting\nup"})]
    with pytest.raises(RegistryError) as caught:
        client().schema(1)
    assert str(caught.value) == f"the schema registry does not answer: {server.url}: starting (status 503)"
    with pytest.raises(RegistryError, match=r"does not answer: http://127\.0\.0\.1:1: Connection refused"):
        client(url="http://127.0.0.1:1").schema(1)


def test_another_address_is_asked_if_one_is_away(server: Server, client: Any) -> None:
    server.answers = [(200, SCHEMA)]
    own = client(url=f"http://127.0.0.1:1,{server.url}/")
    assert [own.schema(number).id for number in (1, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"username": "ann", "password": "pä"}, "Basic YW5uOnDDpA=="),
        ({"token": "abc"}, "Bearer abc"),
        ({}, None),
    ],
)
def test_authentication(server: Server, client: Any, given: dict[str, str], sent: str | None) -> None:
    server.answers = [(200, SCHEMA)]
    client(**given).schema(1)
    assert server.asked[0][2].get("Authorization") == sent


def test_a_user_in_the_address_is_sent_and_never_shown(server: Server, client: Any) -> None:
    server.answers = [(401, {"message": "who are you"})]
    url = server.url.replace("http://", "http://ann:hunter2@")
    own = Connection.of(url)
    assert "hunter2" not in repr(own)
    with pytest.raises(RegistryError) as caught:
        RegistryClient(own).schema(1)
    assert str(caught.value) == "the schema registry refuses the user: who are you (status 401)"
    assert server.asked[0][2]["Authorization"].startswith("Basic ")


def test_a_redirect_is_not_followed_with_the_password(server: Server, client: Any) -> None:
    server.answers = [(302, b"")]
    with pytest.raises(RegistryError, match="status 302"):
        client(username="ann", password="x").schema(1)


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{}"])
def test_something_else_that_answers_is_told(server: Server, client: Any, body: bytes) -> None:
    server.answers = [(200, body)]
    with pytest.raises(RegistryError, match="registry"):
        client().schema(1)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "localhost:8081", "http://a?b=c"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Connection.of(url)


def test_a_ca_without_a_certificate_is_refused() -> None:
    with pytest.raises(RegistryError, match="no certificate"):
        RegistryClient(Connection.of("https://x", ca="nonsense"))
