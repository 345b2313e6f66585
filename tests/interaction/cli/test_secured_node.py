"""`headwater up` with a broker that asks for TLS and a password: its REST API and the commands reach it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Certificates

pytestmark = pytest.mark.slow

WAIT_S = 120
READY = re.compile(r"Headwater is ready: kafka (localhost:\d+), http (http://127\.0\.0\.1:\d+), metrics \S+\n")
SECRETS = ("admin-secret", "alice-secret", "wrong-secret")

Up = Callable[..., tuple["subprocess.Popen[bytes]", str, str]]


@pytest.fixture
def secured(alone: Any, certificates: Certificates) -> Any:
    """A command line whose settings are a secured broker's and its administrator's."""
    folder: Path = alone.folder
    (folder / "broker.yaml").write_text(
        "listeners: SASL_SSL://localhost:0\n"
        f"ssl.keystore.location: {certificates.server}\n"
        "authorizer.class.name: org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users: User:admin\n"
    )
    for user in ("admin", "alice"):
        alone.run("user", "add", user, "--data", "data", stdin=f"{user}-secret\n".encode())
        write_config(folder, certificates, user)
    alone.environment |= {"HEADWATER_BROKER_CONFIG": "broker.yaml", "HEADWATER_COMMAND_CONFIG": "admin.properties"}
    return alone


def write_config(folder: Path, certificates: Certificates, user: str, password: str | None = None) -> None:
    (folder / f"{user}.properties").write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{user}" password="{password or f"{user}-secret"}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.ca}\n"
    )


@pytest.fixture
def up(secured: Any) -> Iterator[Up]:
    """Starts a node on free ports; it has to stop cleanly and to have told no secret."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> tuple[subprocess.Popen[bytes], str, str]:
        process = secured.start("up", "--data", "data", "--http-port", "0", "--metrics-port", "0")
        started.append(process)
        line = process.stdout.readline().decode()
        found = READY.fullmatch(line)
        assert found is not None, f"{line!r} {process.stderr.read()!r}"
        return process, found[1], found[2]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        assert process.returncode == 0
        assert not any(secret.encode() in err for secret in SECRETS)


def asked(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.load(answer)


def test_rest_and_commands_reach_it(up: Up, secured: Any, certificates: Certificates) -> None:
    _, kafka, http = up()
    [cluster] = asked(f"{http}/v3/clusters")["data"]
    # REST acts with the administrator's rights and does not know who asks.
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(f"{http}/v3/clusters/{cluster['cluster_id']}/topics", {"topic_name": "orders", "partitions_count": 2})
    with refused.value as answer:
        assert answer.code == 403
        assert "http_changes" in json.load(answer)["message"]
    secured.run("topic", "create", "orders", "-p", "2", "-b", kafka)
    assert "orders" in secured.run("topic", "list", "-b", kafka)[0]
    secured.run("produce", "orders", "-b", kafka, stdin=b"1\n2\n")
    assert sorted(secured.run("consume", "orders", "-e", "-b", kafka)[0].split()) == ["1", "2"]
    secured.run("quotas", "set", "--user", "alice", "producer_byte_rate=1000000", "-b", kafka)
    assert "producer_byte_rate" in secured.run("quotas", "list", "-b", kafka)[0]
    assert secured.run("transactions", "list", "-b", kafka, "-o", "jsonl")[0] == ""
    assert secured.run("transactions", "find-hanging", "-b", kafka, "-o", "jsonl")[0] == ""
    assert "alice" in secured.run("user", "list", "-b", kafka)[0]
    secured.run("acls", "add", "--principal", "User:alice", "--consumer", "--topic", "orders", "-b", kafka)

    # The file on the command line is stronger than the setting.
    as_alice = ("-b", kafka, "--command-config", "alice.properties")
    assert "orders" in secured.run("topic", "list", *as_alice)[0]
    line = secured.fails("quotas", "list", *as_alice, exit_code=1)
    assert "authorization" in line.lower()
    write_config(secured.folder, certificates, "alice", "wrong-secret")
    for verb in (("quotas", "list"), ("transactions", "list"), ("acls", "list"), ("user", "list"), ("topic", "list")):
        line = secured.fails(*verb, *as_alice, exit_code=1)
        assert "authentication" in line.lower(), line
        assert "secret" not in line


def test_without_a_file_that_says_how_the_node_says_what_is_missing(up: Up, secured: Any) -> None:
    del secured.environment["HEADWATER_COMMAND_CONFIG"]
    secured.environment["HEADWATER_REQUEST_TIMEOUT_MS"] = "1000"
    process, kafka, http = up()
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    assert "the broker asks for SASL_SSL" in line
    assert "command_config" in line
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(f"{http}/v3/clusters")
    assert refused.value.code >= 500
    refused.value.close()
    for verb in (("quotas", "list"), ("transactions", "list")):
        secured.fails(*verb, "-b", kafka, exit_code=1)


def test_a_file_that_cannot_be_read_is_one_line_and_nothing_is_left_running(secured: Any) -> None:
    secured.environment["HEADWATER_COMMAND_CONFIG"] = "missing.properties"
    line = secured.fails("up", "--data", "data", "--http-port", "0", "--metrics-port", "0", exit_code=1)
    assert "missing.properties: cannot be read" in line
