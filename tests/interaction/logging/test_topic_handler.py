"""`logging.Handler` to a topic of a live broker."""

from __future__ import annotations

import json
import logging
import logging.config
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from headwater.log_handler import OWN_LOGGER, TopicHandler

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

WAIT_S = 30


@pytest.fixture
def logger(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    logger = logging.getLogger(f"tests.{request.node.name}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def read(bootstrap_servers: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": f"{topic}-reader"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in consumer.consume(1000, 0.2) if not message.error()]
    consumer.close()
    return found


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.slow
def test_records_arrive_as_json_with_their_key(
    bootstrap_servers: str, new_topic: TopicFactory, logger: logging.Logger
) -> None:
    topic = new_topic(1)
    handler = TopicHandler(bootstrap_servers, topic, key="%(levelname)s")
    logger.addHandler(handler)
    logger.info("flight %s", "UA1")
    try:
        raise ValueError("no such gate")
    except ValueError:
        logger.exception("cannot board")
    handler.flush()
    first, second = read(bootstrap_servers, topic, 2)
    assert first.key() == b"INFO"
    record = json.loads(first.value())
    assert (record["level"], record["message"], record["logger"]) == ("INFO", "flight UA1", logger.name)
    assert record["process"] == os.getpid()
    assert "no such gate" in json.loads(second.value())["exception"]
    assert (handler.written, handler.dropped) == (2, 0)


@pytest.mark.slow
def test_dict_config_makes_one(bootstrap_servers: str, new_topic: TopicFactory, logger: logging.Logger) -> None:
    topic = new_topic(1)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"plain": {"format": "%(levelname)s:%(message)s"}},
            "handlers": {
                "topic": {
                    "class": "headwater.log_handler.TopicHandler",
                    "bootstrap_servers": bootstrap_servers,
                    "topic": topic,
                    "formatter": "plain",
                    "level": "WARNING",
                }
            },
            "loggers": {logger.name: {"handlers": ["topic"], "level": "DEBUG"}},
        }
    )
    logger.info("not this one")
    logger.warning("this one")
    logger.handlers[0].flush()
    assert [message.value() for message in read(bootstrap_servers, topic, 1)] == [b"WARNING:this one"]


def test_a_full_queue_drops_and_counts_and_never_blocks(logger: logging.Logger) -> None:
    handler = TopicHandler(f"127.0.0.1:{closed_port()}", "t", queue_records_max=100, flush_ms=100)
    logger.addHandler(handler)
    for number in range(5000):
        logger.info("%d", number)
    # What librdkafka has taken counts as well.
    assert handler.dropped >= 5000 - 100
    handler.close()
    assert handler.written == 0
    assert handler.dropped == 5000


def test_shutdown_waits_once_for_brokers_that_are_away(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = TopicHandler(f"127.0.0.1:{closed_port()}", "t", flush_ms=100)
    logger.addHandler(handler)
    logger.info("nobody takes it")
    waited: list[bool] = []
    flush = handler.flush

    def flush_and_note() -> None:
        flush()
        waited.append(True)

    monkeypatch.setattr(handler, "flush", flush_and_note)
    logging.shutdown([weakref.ref(handler)])
    assert waited == [True]
    assert handler.dropped == 1


def test_a_process_that_may_have_no_more_threads_logs_when_it_may(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = TopicHandler(f"127.0.0.1:{closed_port()}", "t", flush_ms=100)
    logger.addHandler(handler)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        logger.info("first")
    assert list(handler._queue) != []
    logger.info("second")
    assert isinstance(handler._thread, threading.Thread)
    handler.close()
    assert handler.dropped == 2


def test_records_of_its_own_machinery_are_left_out(logger: logging.Logger) -> None:
    handler = TopicHandler(f"127.0.0.1:{closed_port()}", "t", flush_ms=100)
    own = logging.getLogger(OWN_LOGGER)
    own.addHandler(handler)
    try:
        own.error("cannot reach the brokers")
    finally:
        own.removeHandler(handler)
    assert not handler._queue
    handler.close()


def test_a_record_that_cannot_be_formatted_breaks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    handler = TopicHandler(f"127.0.0.1:{closed_port()}", "t", flush_ms=100)
    handler.handle(logging.LogRecord("tests", logging.INFO, "file.py", 1, "%d", ("not a number",), None))
    assert "Logging error" in capsys.readouterr().err
    assert not handler._queue
    handler.close()


def test_a_client_property_that_is_wrong_is_no_reason_to_fail(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    handler = TopicHandler("127.0.0.1:1", "t", client={"no.such.property": 1}, flush_ms=2000)
    logger.addHandler(handler)
    logger.info("lost")
    handler.close()
    assert handler.dropped == 1
    assert "cannot start" in caplog.text


@pytest.mark.slow
def test_a_forked_child_logs_its_own_records_and_none_of_its_parents(
    bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    topic = new_topic(1)
    program = f"""
import logging, os, sys
from headwater.log_handler import TopicHandler
handler = TopicHandler({bootstrap_servers!r}, {topic!r})
handler.setFormatter(logging.Formatter("%(message)s"))
logging.getLogger().addHandler(handler)
logging.error("parent before")
if os.fork() == 0:
    logging.error("child")
    logging.shutdown()
    os._exit(0)
os.wait()
logging.error("parent after")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_S)
    values = [message.value() for message in read(bootstrap_servers, topic, 3)]
    assert sorted(values) == [b"child", b"parent after", b"parent before"]


def test_what_waits_is_bounded_by_bytes(logger: logging.Logger) -> None:
    handler = TopicHandler(f"127.0.0.1:{closed_port()}", "t", queue_bytes_max=1_000_000, flush_ms=100)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    for _ in range(50):
        logger.info("x" * 300_000)
    assert handler.dropped == 47
    handler.close()
    assert handler.dropped == 50


def test_what_is_lost_at_the_end_is_told(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    handler = TopicHandler(f"127.0.0.1:{closed_port()}", "app_log", queue_records_max=100, flush_ms=100)
    logger.addHandler(handler)
    for number in range(5000):
        logger.info("%d", number)
    handler.close()
    told = [record.getMessage() for record in caplog.records if "were not written" in record.getMessage()]
    assert sum(int(text.split()[0]) for text in told) == 5000
    assert "to topic app_log" in told[-1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_lose_no_record(
    bootstrap_servers: str, new_topic: TopicFactory, tmp_path: Path, method: str
) -> None:
    topic = new_topic(1)
    program = tmp_path / "program.py"
    program.write_text(f"""
import logging, multiprocessing
from headwater.log_handler import TopicHandler

def work(name):
    if {method!r} == "spawn":
        begin()
    for number in range(10):
        logging.error("%d %d", name, number)

def begin():
    handler = TopicHandler({bootstrap_servers!r}, {topic!r})
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger().addHandler(handler)

if __name__ == "__main__":
    begin()
    logging.error("parent")
    context = multiprocessing.get_context({method!r})
    processes = [context.Process(target=work, args=(name,)) for name in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
""")
    subprocess.run([sys.executable, str(program)], check=True, timeout=WAIT_S)
    values = [message.value().decode() for message in read(bootstrap_servers, topic, 21)]
    assert sorted(values) == sorted(["parent", *(f"{name} {number}" for name in range(2) for number in range(10))])


@pytest.mark.slow
def test_a_program_without_another_handler_is_told_on_standard_error(tmp_path: Path) -> None:
    program = f"""
import logging
from headwater.log_handler import TopicHandler
logging.getLogger().addHandler(TopicHandler("127.0.0.1:{closed_port()}", "t", flush_ms=100))
logging.error("nobody takes it")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WAIT_S, cwd=tmp_path
    )
    assert "1 log records were not written to topic t" in done.stderr


@pytest.mark.slow
def test_threads_that_log_at_the_same_time_lose_nothing(
    bootstrap_servers: str, new_topic: TopicFactory, logger: logging.Logger
) -> None:
    topic = new_topic(1)
    handler = TopicHandler(bootstrap_servers, topic, queue_records_max=20_000)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)

    def work(name: int) -> None:
        for number in range(500):
            logger.info("%d %d", name, number)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.flush()
    values = [message.value().decode().split() for message in read(bootstrap_servers, topic, 2000)]
    assert len(values) == 2000
    for name in range(4):
        assert [int(number) for thread, number in values if thread == str(name)] == list(range(500))
