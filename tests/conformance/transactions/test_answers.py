"""Requests of transactions in every situation, answered as Apache Kafka 4.1.1 answers them.

`answers.txt` was recorded from Apache Kafka 4.1.1: HEADWATER_TEST_BOOTSTRAP names one, HEADWATER_RECORD=1 writes what
it says. Producer ids are numbered as they come up, topics and ids have fixed names in there.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.messages import kio_request
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).with_name("answers.txt")
PRODUCE, OFFSET_FETCH, FIND_COORDINATOR, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT, LIST = (
    0,
    9,
    10,
    22,
    24,
    25,
    26,
    28,
    66,
)
WAIT_S = 0.05
WAITS = 200
#: Codes at which every client comes again: coordinators that load, a transaction whose markers are being written.
PASSING = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS")


class Asker:
    """Sends requests and notes the answers."""

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self.connection = BlockingConnection(
            host,
            int(port),
            client_id="asker",
            connect_timeout_ms=5_000,
            request_timeout_ms=30_000,
            receive_buffer_bytes=0,
        )
        self.topic = topic
        self.numbers: dict[int, str] = {}
        self.lines: list[str] = []

    def say(self, what: str, *answer: object) -> None:
        text = f"{what}: {' '.join(map(str, answer))}"
        self.lines.append(text.replace(self.topic, "topic"))

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        return self.connection.call(kio_request(api_key, version, values))

    def until_passed(self, ask: Callable[[], tuple[str, Any]], *, waits: bool = True) -> tuple[str, Any]:
        for _ in range(WAITS if waits else 1):
            code, answer = ask()
            if not waits or code not in PASSING:
                break
            time.sleep(WAIT_S)
        return code, answer

    def number(self, producer_id: int) -> str:
        return "none" if producer_id < 0 else self.numbers.setdefault(producer_id, f"p{len(self.numbers)}")

    def find(self, key: str, key_type: int) -> None:
        def ask() -> tuple[str, Any]:
            response = self.ask(FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=(key,))
            return name(response.coordinators[0].error_code), response

        code, _ = self.until_passed(ask)
        assert code == "NONE"

    def init(self, what: str, name_: str, version: int = 5, *, waits: bool = True, **values: Any) -> tuple[int, int]:
        timeout = timedelta(milliseconds=values.pop("timeout_ms", 60_000))
        values = {"producer_id": -1, "producer_epoch": -1} | values

        def ask() -> tuple[str, Any]:
            response = self.ask(INIT, version, transactional_id=name_, transaction_timeout=timeout, **values)
            return name(response.error_code), response

        code, response = self.until_passed(ask, waits=waits)
        self.say(f"{what} v{version}", code, self.number(response.producer_id), response.producer_epoch)
        return response.producer_id, response.producer_epoch

    def add(
        self, what: str, name_: str, producer: tuple[int, int], *partitions: int, version: int = 3, topic: str = ""
    ) -> None:
        response = self.ask(
            ADD_PARTITIONS,
            version,
            v3_and_below_transactional_id=name_,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=({"name": topic or self.topic, "partitions": partitions},),
        )
        self.say(f"{what} v{version}", partition_codes(response.results_by_topic_v3_and_below))

    def add_as_broker(
        self,
        what: str,
        name_: str,
        producer: tuple[int, int],
        *partitions: int,
        verify_only: bool = False,
        version: int = 5,
    ) -> None:
        response = self.ask(
            ADD_PARTITIONS,
            version,
            transactions=(
                {
                    "transactional_id": name_,
                    "producer_id": producer[0],
                    "producer_epoch": producer[1],
                    "verify_only": verify_only,
                    "topics": ({"name": self.topic, "partitions": partitions},),
                },
            ),
        )
        [result] = response.results_by_transaction
        self.say(f"{what} v{version}", name(response.error_code), partition_codes(result.topic_results))

    def end(
        self, what: str, name_: str, producer: tuple[int, int], *, commit: bool, version: int = 5
    ) -> tuple[int, int]:
        response = self.ask(
            END,
            version,
            transactional_id=name_,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        told = (getattr(response, "producer_id", -1), getattr(response, "producer_epoch", -1))
        how = "commit" if commit else "abort"
        self.say(f"{what} {how} v{version}", name(response.error_code), self.number(told[0]), told[1])
        self.settle(name_)
        return told

    def settle(self, name_: str) -> None:
        """Wait for the markers."""
        for _ in range(WAITS):
            states = self.ask(LIST, 2, state_filters=("PrepareCommit", "PrepareAbort"), producer_id_filters=())
            if all(state.transactional_id != name_ for state in states.transaction_states):
                return
            time.sleep(WAIT_S)

    def write(
        self, what: str, name_: str, producer: tuple[int, int], sequence: int, partition: int = 0, version: int = 12
    ) -> None:
        batch = build_batch(
            [Record(b"key", b"value", int(time.time() * 1000))],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )

        def ask() -> tuple[str, Any]:
            response = self.ask(
                PRODUCE,
                version,
                transactional_id=name_,
                acks=-1,
                timeout=timedelta(seconds=30),
                topic_data=({"name": self.topic, "partition_data": ({"index": partition, "records": batch},)},),
            )
            [answer] = response.responses[0].partition_responses
            return name(answer.error_code), answer

        code, answer = self.until_passed(ask)
        self.say(f"{what} v{version}", code, answer.base_offset)

    def commit(
        self, what: str, name_: str, group: str, producer: tuple[int, int], version: int = 5, **values: Any
    ) -> None:
        partition = {
            "partition_index": values.pop("partition", 0),
            "committed_offset": values.pop("offset", 3),
            "committed_leader_epoch": -1,
            "committed_metadata": "metadata",
        }
        topic = values.pop("topic", self.topic)
        values = {"generation_id": -1, "member_id": "", "group_instance_id": None} | values

        def ask() -> tuple[str, Any]:
            response = self.ask(
                COMMIT,
                version,
                transactional_id=name_,
                group_id=group,
                producer_id=producer[0],
                producer_epoch=producer[1],
                topics=({"name": topic, "partitions": (partition,)},),
                **values,
            )
            return name(response.topics[0].partitions[0].error_code), None

        self.say(f"{what} v{version}", self.until_passed(ask)[0])

    def committed(self, what: str, group: str, *, stable: bool = True) -> None:
        response = self.ask(
            OFFSET_FETCH,
            8,
            groups=({"group_id": group, "topics": ({"name": self.topic, "partition_indexes": (0,)},)},),
            require_stable=stable,
        )
        [partition] = response.groups[0].topics[0].partitions
        self.say(what, partition.committed_offset, name(partition.error_code))

    def add_offsets(self, what: str, name_: str, group: str, producer: tuple[int, int], version: int = 4) -> None:
        response = self.ask(
            ADD_OFFSETS,
            version,
            transactional_id=name_,
            producer_id=producer[0],
            producer_epoch=producer[1],
            group_id=group,
        )
        self.say(f"{what} v{version}", name(response.error_code))

    def listed(self, what: str, version: int = 2, **filters: Any) -> None:
        response = self.ask(LIST, version, **{"state_filters": (), "producer_id_filters": ()} | filters)
        states = sorted(
            (state.transactional_id, self.number(state.producer_id), state.transaction_state)
            for state in response.transaction_states
            if self.topic in state.transactional_id
        )
        self.say(f"{what} v{version}", name(response.error_code), list(response.unknown_state_filters), states)


def name(code: Any) -> str:
    return str(code.name).upper()


def partition_codes(topics: Any) -> list[tuple[int, str]]:
    return sorted(
        (part.partition_index, name(part.partition_error_code))
        for topic in topics
        for part in topic.results_by_partition
    )


def beginning(asker: Asker) -> None:
    first = f"{asker.topic}-first"
    asker.find(first, 1)
    asker.init("an empty id", "", waits=False)
    asker.init("no timeout", first, timeout_ms=0, waits=False)
    asker.init("too long a timeout", first, timeout_ms=900_001, waits=False)
    asker.init("an id without an epoch", first, producer_id=5, waits=False)
    asker.init("first", first)
    producer_id, epoch = asker.init("second", first)
    asker.init("goes on", first, producer_id=producer_id, producer_epoch=epoch)
    asker.init("goes on, once more", first, producer_id=producer_id, producer_epoch=epoch)
    for version in (5, 3):
        asker.init("goes on from long ago", first, version, producer_id=producer_id, producer_epoch=epoch - 1)
    asker.init("goes on with another id", first, producer_id=producer_id + 999, producer_epoch=0)


def classic(asker: Asker) -> None:
    first, unknown = f"{asker.topic}-first", f"{asker.topic}-unknown"
    producer_id, epoch = producer = asker.init("classic", first)
    asker.add("add", first, producer, 0, 1)
    asker.add("add a missing partition", first, producer, 0, 99)
    asker.add("add an internal topic", first, producer, 0, topic="__consumer_offsets")
    asker.add("add a missing topic", first, producer, 0, topic="missing")
    asker.add("add with a later epoch", first, (producer_id, epoch + 1), 2)
    asker.add("add with an earlier epoch", first, (producer_id, epoch - 1), 2, version=1)
    asker.add("add with another id", first, (producer_id + 999, epoch), 2)
    asker.add("add to an unknown id", unknown, producer, 2)
    asker.add("add to an empty id", "", producer, 2)
    for version in (4, 5):
        asker.add_as_broker("verify", first, producer, 0, 2, verify_only=True, version=version)
    asker.add_as_broker("verify with a later epoch", first, (producer_id, epoch + 1), 0, verify_only=True)
    asker.add_as_broker("verify an unknown id", unknown, producer, 0, verify_only=True)
    asker.end("end", first, producer, commit=True, version=4)
    asker.end("again", first, producer, commit=True, version=4)
    asker.end("the other way", first, producer, commit=False, version=4)
    asker.end("with a later epoch", first, (producer_id, epoch + 1), commit=False, version=4)
    asker.end("with an earlier epoch", first, (producer_id, epoch - 1), commit=False, version=1)
    asker.end("with another id", first, (producer_id + 999, epoch), commit=False, version=1)
    asker.end("of an unknown id", unknown, producer, commit=False, version=1)
    asker.end("of an empty id", "", producer, commit=False, version=1)
    producer = asker.init("next", first)
    asker.end("nothing", first, producer, commit=True, version=4)
    asker.end("nothing", first, producer, commit=False, version=4)
    asker.add("add", first, producer, 0)
    asker.init("while a transaction is open", first)
    asker.end("fenced", first, producer, commit=True, version=4)
    asker.add("fenced", first, producer, 0)


def with_own_epochs(asker: Asker) -> tuple[int, int]:
    second = f"{asker.topic}-second"
    asker.find(second, 1)
    producer = asker.init("epochs", second)
    asker.end("nothing", second, producer, commit=True)
    after = asker.end("nothing", second, producer, commit=False)
    asker.end("nothing, once more", second, producer, commit=False)
    asker.end("nothing, once more", second, producer, commit=True)
    producer = after
    asker.write("write", second, producer, 0)
    asker.write("write the same", second, producer, 0)
    asker.add_as_broker("verify", second, producer, 0, 1, verify_only=True)
    asker.add_as_broker("add", second, producer, 1)
    after = asker.end("end", second, producer, commit=True)
    asker.end("once more", second, producer, commit=True)
    asker.end("once more", second, producer, commit=False)
    asker.end("with the next epoch", second, after, commit=True)
    asker.write("write late", second, producer, 1)
    producer = after
    asker.write("write", second, producer, 0)
    asker.write("write from the middle", second, producer, 1, partition=1)
    producer = asker.end("end", second, producer, commit=False)
    for version in (11, 10):
        asker.write("write what was not added", second, producer, 0, version=version)
    asker.write("write under an unknown id", f"{asker.topic}-unknown", producer, 0)
    asker.write("write with another id", second, (producer[0] + 999, producer[1]), 0)
    return producer


def offsets(asker: Asker, producer: tuple[int, int]) -> None:
    second, group = f"{asker.topic}-second", f"{asker.topic}-group"
    asker.find(group, 0)
    asker.commit("commit", second, group, producer)
    asker.committed("while the transaction is open", group)
    asker.committed("while the transaction is open, whatever there is", group, stable=False)
    after = asker.end("end", second, producer, commit=True)
    asker.committed("when it is committed", group)
    asker.commit("commit with the epoch before", second, group, producer)
    producer = after
    for version in (3, 4):
        asker.commit("commit what was not added", second, group, producer, version)
    asker.commit("commit as a member", second, group, producer, generation_id=5)
    asker.commit("commit a missing topic", second, group, producer, topic="missing")
    asker.commit("commit a missing partition", second, group, producer, partition=99)
    asker.commit("commit for an empty group", second, "", producer)
    asker.add_offsets("add offsets", second, group, producer)
    asker.commit("commit", second, group, producer, 3, offset=9)
    asker.committed("while the transaction is open", group)
    asker.end("end", second, producer, commit=False, version=4)
    asker.committed("when it is aborted", group)
    producer_id, epoch = producer
    asker.add_offsets("add offsets with a later epoch", second, group, (producer_id, epoch + 1))
    asker.add_offsets("add offsets with an earlier epoch", second, group, (producer_id, epoch - 1), version=1)
    asker.add_offsets("add offsets with another id", second, group, (producer_id + 999, epoch))
    asker.add_offsets("add offsets to an unknown id", f"{asker.topic}-unknown", group, producer)


def listing(asker: Asker) -> None:
    second = f"{asker.topic}-second"
    producer = asker.init("listed", second)
    asker.write("write", second, producer, 0)
    asker.listed("list", 0)
    asker.listed("list states", state_filters=("Ongoing", "Nonsense"))
    asker.listed("list producers", producer_id_filters=(producer[0],))
    asker.listed("list what is open for long", duration_filter=100_000)
    asker.listed("list by pattern", transactional_id_pattern=".*-second")
    asker.listed("list by a part", transactional_id_pattern="second")
    asker.listed("list by no pattern", transactional_id_pattern="(")
    asker.end("end", second, producer, commit=False)


def test_every_situation_is_answered_as_kafka_does(bootstrap_servers: str, admin: AdminClient) -> None:
    topic = f"answers-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    asker = Asker(bootstrap_servers, topic)
    try:
        beginning(asker)
        classic(asker)
        producer = with_own_epochs(asker)
        offsets(asker, producer)
        listing(asker)
    finally:
        asker.connection.close()
        admin.delete_topics([topic])[topic].result(30)
    if os.environ.get("HEADWATER_RECORD"):
        RECORDED.write_text("\n".join(asker.lines) + "\n")
    assert asker.lines == RECORDED.read_text().splitlines()
