"""Pipelines, previews and SQL on brokers that ask for TLS and a password; the password stands nowhere afterwards."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headwater.api.topic_admin import TopicAdmin
from headwater.cli.main import main
from headwater.cli.pipeline.topic_creation import topics_creator
from headwater.logtier.config.client_properties import read_client_config
from headwater.pipelines.analysis.analysis import analyse
from headwater.pipelines.datasource.brokers import brokers
from headwater.pipelines.engine.runner import Runner, RunOptions
from headwater.pipelines.preview.stage_preview import Request, StagePreview
from headwater.pipelines.preview.start_offsets import parse_start
from headwater.pipelines.spark.session import close_session, running_session
from headwater.pipelines.sql import topic_rows
from headwater.pipelines.validation.pipeline_file import load
from tests.conftest import BrokerProcess, Certificates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

USER, PASSWORD = "alice", f"alice-{uuid.uuid4().hex}"

PIPELINE = """\
pipeline: secured
topics:
  orders: {partitions: 2, value: json, schema: order.json}
  latest: {value: json, schema: order.json}
tables:
  names: {topic: latest}
stages:
  - name: clean
    from: {topic: orders}
    expect: [{name: paid, that: o_amount > 0}]
    sql: SELECT orders.id, orders.amount AS o_amount, names.amount AS n_amount FROM orders LEFT JOIN names USING (id)
    to:
      - {topic: clean, key: id}
      - {delta: lake/clean}
  - name: again
    from: {topic: clean}
    to: {topic: again, guarantee: at_least_once}
"""
SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}}}'


@dataclass(frozen=True)
class Secured:
    """A broker by the address of its secured listener, and the file that says how to connect."""

    address: str
    config: Path
    admin: AdminClient
    plain: str

    def wrong(self) -> Path:
        """A file with another password."""
        path = self.config.with_name("wrong.properties")
        path.write_text(self.config.read_text().replace(PASSWORD, PASSWORD + "x"))
        return path


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """A command that is called here sets handlers of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def secured(certificates: Certificates, tmp_path: Path) -> Iterator[Secured]:
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    broker = BrokerProcess(tmp_path / "data", 0, properties)
    try:
        broker.await_ready()
        admin = AdminClient({"bootstrap.servers": broker.address})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        admin.alter_user_scram_credentials([change])[USER].result(30)
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{USER}" password="{PASSWORD}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.ca}\n"
        )
        yield Secured(broker.addresses["SASL"], config, admin, broker.address)
    finally:
        broker.close()


def test_the_way_through_a_secured_broker_leaves_no_password_behind(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "order.json").write_text(SCHEMA)
    for future in secured.admin.create_topics([NewTopic("orders", 2, 1), NewTopic("latest", 1, 1)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": secured.plain})
    for number, amount in enumerate([5, 0, 7]):
        producer.produce("orders", json.dumps({"id": number, "amount": amount}))
    producer.produce("orders", "no JSON")
    producer.produce("latest", json.dumps({"id": 0, "amount": 1}), key="0")
    assert producer.flush(30) == 0

    monkeypatch.chdir(tmp_path)
    for name in ("events", "empty"):
        (tmp_path / name).mkdir()
    where = brokers(secured.address, "client.properties")
    admin = TopicAdmin(secured.address, security=read_client_config("client.properties"))
    loaded = load("p.yaml", {}, frozenset(topic.name for topic in admin.list_topics()), environ={})
    close_session()  # one that other tests have left logs no events
    spying = {
        "spark.master": "local[2]",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{tmp_path}/events",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    told: list[str] = []
    try:
        options = RunOptions(
            secured.address, str(tmp_path / "state"), spark_conf=spying, command_config="client.properties"
        )
        runner = Runner(loaded, options, topics_creator(admin), lambda progress, totals: told.append(str(progress)))
        totals = runner.run().totals
        assert (totals["clean"].written, totals["clean"].dead_letters, totals["again"].written) == (2, 2, 2)

        spark = running_session()
        assert spark is not None
        analysis = analyse(spark, loaded, where)
        stage = loaded.pipeline.stage("clean")
        found = StagePreview(spark, loaded, stage, analysis, where, str(tmp_path / "empty")).compute(
            Request(parse_start("earliest"), 100, 10)
        )
        assert (found.written, found.dead_letters, found.inputs[0].undecodable) == (2, 2, 1)

        topic_rows.present(spark, where, "again", analysis.columns).createOrReplaceTempView("again")
        frame = spark.sql("SELECT count(*) AS n, sum(o_amount) AS s FROM again")
        assert [tuple(row) for row in frame.collect()] == [(2, 12.0)]
        told += [frame._jdf.queryExecution().toString(), frame._jdf.queryExecution().logical().toJSON()]

        wrong = secured.wrong()
        capsys.readouterr()
        here = ["-b", secured.address, "--command-config", str(wrong)]
        assert main(["sql", "-e", "SELECT * FROM orders", *here]) == 1  # in the session that runs
        captured = capsys.readouterr()
        assert_refused(captured.out, captured.err)
    finally:
        close_session()

    assert told
    assert PASSWORD not in "".join(told)
    looked_at = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".properties"]
    assert any(path.is_relative_to(tmp_path / "events") for path in looked_at), "Spark has logged no events"
    assert any(path.name == "spark.log" for path in looked_at)
    assert [str(path) for path in looked_at if PASSWORD.encode() in path.read_bytes()] == []


def test_a_wrong_password_is_one_line_without_it(headwater: Any, secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "order.json").write_text(SCHEMA)
    here = ("-b", secured.address, "--command-config", str(secured.wrong()))
    for command in (("pipeline", "run", "p.yaml"), ("pipeline", "preview", "p.yaml", "clean")):
        refused = headwater(*command, *here)
        assert refused.returncode == 1, refused.stderr
        assert_refused(refused.stdout, refused.stderr)


def assert_refused(out: str, err: str) -> None:
    assert "uthentication" in err
    assert len(err.splitlines()) == 1
    assert PASSWORD not in out + err
