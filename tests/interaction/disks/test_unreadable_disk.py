"""A disk that cannot be read any more: its folder goes offline, as one that cannot be written does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interaction.own_broker import run_broker

pytestmark = pytest.mark.slow

WAIT_S = 60


def fail_reads_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a file of this folder, or sending it, fails as it does on a broken device."""
    sendfile, pread = os.sendfile, os.pread

    def check(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{folder}/"):
            raise OSError(5, "Input/output error")

    def broken_sendfile(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        check(in_fd)
        return sendfile(out_fd, in_fd, offset, count)

    def broken_pread(descriptor: int, size: int, offset: int) -> bytes:
        check(descriptor)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "sendfile", broken_sendfile)
    monkeypatch.setattr(os, "pread", broken_pread)


def outcome_of_reading(address: str, partition: int, wait_s: float = WAIT_S) -> bytes | int:
    """The first value of a partition, or the code that a produce to it then gets."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "log_level": 0, "enable.auto.commit": False})
    consumer.assign([TopicPartition("flights", partition, 0)])
    message = consumer.poll(wait_s)
    consumer.close()
    value = None if message is None or message.error() is not None else message.value()
    return produced(address, partition) if value is None else bytes(value)


def produced(address: str, partition: int, value: bytes = b"late") -> int:
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": address, "retries": 0, "message.timeout.ms": 10_000, "log_level": 0})
    producer.produce(
        "flights",
        value,
        partition=partition,
        on_delivery=lambda error, _: codes.append(KafkaError.NO_ERROR if error is None else error.code()),
    )
    producer.flush(WAIT_S)
    return codes[0]


@pytest.mark.parametrize("size", [100, 100_000])  # copied into the response, and sent from the file
def test_a_folder_that_cannot_be_read_goes_offline_and_the_others_serve_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]

    def use(address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("flights", 2, 1)])["flights"].result(WAIT_S)
        assert [produced(address, partition, b"v" * size) for partition in (0, 1)] == [KafkaError.NO_ERROR] * 2
        [lost] = [int(path.name[-1]) for path in folders[1].glob("flights-*")]
        fail_reads_below(folders[1], monkeypatch)
        # Who begins now waits for a leader.
        assert outcome_of_reading(address, lost, 3) == KafkaError._MSG_TIMED_OUT
        assert outcome_of_reading(address, 1 - lost) == b"v" * size
        assert produced(address, 1 - lost) == KafkaError.NO_ERROR

    run_broker({"log.dirs": [str(folder) for folder in folders]}, use)
    told = [record.getMessage() for record in caplog.records if "is offline until" in record.getMessage()]
    assert len(told) == 1
    assert str(folders[1]) in told[0]
    assert "Input/output error" in told[0]
    assert not [record for record in caplog.records if record.exc_info]
