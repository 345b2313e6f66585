"""Scenarios of transactions as readable scripts: events in, and what the coordinator did at each, recorded.

A script is a sequence of blocks: a comment, one event, `----`, and the recorded outcome. `HEADWATER_RECORD=1` writes
the outcome of the present code into the scripts; the difference is then to be read like code.

Events (PRODUCER is any word; it keeps the id and epoch that it was told last; partitions are t-0 and so on):
    init PRODUCER [id=TRANSACTIONAL_ID] [timeout=MS] [again]   `again`: it says who it is (KIP-360)
    add PRODUCER PARTITION... [version=V]     AddPartitionsToTxn, of a client that speaks transaction.version V
    write PRODUCER PARTITION...               the first records of a transaction there (transaction.version 2)
    verify PRODUCER PARTITION...              the same of an older client: is it allowed?
    end PRODUCER commit|abort [version=V]     EndTxn
    retry PRODUCER commit|abort               the same EndTxn once more, with the epoch from before
    time +MS             time passes, and whoever is open for too long is aborted
    expire               ids that were not used for long are removed
    refuse PARTITION... | take PARTITION...   whether markers can be written there
    full | empty         whether `__transaction_state` can be written
    delete TOPIC
    gone                 caller gone in between: the next event's client goes while its write is under way
    metadata EPOCH       metadata changed in between: the coordinator's partitions are led in this epoch meanwhile
    restart              the broker is killed and started again
    show
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import NO_PRODUCER, ProducerIdAndEpoch, TransactionMetadata
from headwater.logtier.transaction.verifier import VerifiedPartition
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import World

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
TRANSACTIONAL_ID = "payments"


def partition(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


class Script:
    """A coordinator on virtual time, and the producers of a script."""

    def __init__(self) -> None:
        self.world = World()
        self.producers: dict[str, ProducerIdAndEpoch] = {}
        self.before: dict[str, ProducerIdAndEpoch] = {}
        self.ids: dict[str, str] = {}
        self.markers_seen: dict[TopicPartition, int] = {}
        #: What comes in between, while the next event's write is under way.
        self.between: list[str] = []

    async def run(self, event: str) -> str:
        """What an event brings about."""
        verb, *words = event.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        try:
            work = getattr(self, f"do_{verb}")(plain, named)
            told = await (self.interrupted(work) if self.between and verb not in ("gone", "metadata") else work)
        except KafkaError as error:
            told = error.code.name
        await settle()
        lines = [told] if told else []
        for key, markers in sorted(self.world.replicas.markers.items()):
            seen = self.markers_seen.get(key, 0)
            self.markers_seen[key] = len(markers)
            lines += [
                f"{key}: {'commit' if marker.commit else 'abort'} of {marker.producer_id} with epoch "
                f"{marker.producer_epoch}"
                for marker in markers[seen:]
            ]
        assert self.world.live() == self.world.replayed()
        return "\n".join(lines) or "ok"

    async def interrupted(self, work: Coroutine[Any, Any, str]) -> str:
        """An event during whose write something else happens."""
        between, self.between = self.between, []
        gate = self.world.replicas.gate = asyncio.Event()
        task = asyncio.ensure_future(work)
        await settle()
        for each in between:
            if each == "gone":
                task.cancel()
            else:
                self.world.metadata.elect(int(each))
            await settle()
        gate.set()
        self.world.replicas.gate = None
        try:
            return await task
        except asyncio.CancelledError:
            return "nobody hears the answer"

    # ---- events ----

    async def do_gone(self, plain: list[str], named: dict[str, str]) -> str:
        self.between.append("gone")
        return ""

    async def do_metadata(self, plain: list[str], named: dict[str, str]) -> str:
        self.between += plain
        return ""

    async def do_init(self, plain: list[str], named: dict[str, str]) -> str:
        name, *flags = plain
        self.ids[name] = named.get("id", self.ids.get(name, TRANSACTIONAL_ID))
        present = self.producers.get(name, NO_PRODUCER) if flags else None
        told = await self.world.coordinator.init_producer(self.ids[name], int(named.get("timeout", 60_000)), present)
        return self.told(name, told)

    async def do_add(self, plain: list[str], named: dict[str, str]) -> str:
        name, *partitions = plain
        await self.world.coordinator.add_partitions(
            self.ids[name],
            self.producers[name],
            set(map(partition, partitions)),
            client_version=int(named.get("version", 0)),
        )
        return ""

    async def do_write(self, plain: list[str], named: dict[str, str]) -> str:
        return await self.ask(plain, add=True)

    async def do_verify(self, plain: list[str], named: dict[str, str]) -> str:
        return await self.ask(plain, add=False)

    async def ask(self, plain: list[str], *, add: bool) -> str:
        name, *partitions = plain
        answers = [
            self.world.coordinator.verify_partition(
                VerifiedPartition(self.ids[name], *self.producers[name], partition(each), adds=add)
            )
            for each in partitions
        ]
        before = self.world.replicas.writes
        await asyncio.gather(*(answer for answer in answers if answer is not None))
        return f"{self.world.replicas.writes - before} write" if add else ""

    async def do_end(self, plain: list[str], named: dict[str, str]) -> str:
        name, how = plain
        version = int(named.get("version", 2))
        self.before[name] = self.producers[name]
        told = await self.world.coordinator.end(
            self.ids[name], self.producers[name], commit=how == "commit", client_version=version
        )
        return self.told(name, told) if version == 2 else ""

    async def do_retry(self, plain: list[str], named: dict[str, str]) -> str:
        name, how = plain
        told = await self.world.coordinator.end(
            self.ids[name], self.before[name], commit=how == "commit", client_version=2
        )
        return self.told(name, told)

    async def do_time(self, plain: list[str], named: dict[str, str]) -> str:
        self.world.clock.ms += int(plain[0])
        await self.world.coordinator.abort_timed_out()
        return ""

    async def do_expire(self, plain: list[str], named: dict[str, str]) -> str:
        self.world.clock.ms += self.world.config.transactional_id_expiration_ms
        await self.world.coordinator.remove_expired()
        return ""

    async def do_refuse(self, plain: list[str], named: dict[str, str]) -> str:
        for each in plain:
            self.world.replicas.refused[partition(each)] = KafkaError(ErrorCode.kafka_storage_error)
        return ""

    async def do_take(self, plain: list[str], named: dict[str, str]) -> str:
        for each in plain:
            del self.world.replicas.refused[partition(each)]
        return ""

    async def do_full(self, plain: list[str], named: dict[str, str]) -> str:
        self.world.replicas.error = OSError(28, "No space left on device")
        return ""

    async def do_empty(self, plain: list[str], named: dict[str, str]) -> str:
        self.world.replicas.error = None
        return ""

    async def do_delete(self, plain: list[str], named: dict[str, str]) -> str:
        self.world.metadata.remove(plain[0])
        return ""

    async def do_restart(self, plain: list[str], named: dict[str, str]) -> str:
        await self.world.restart()
        return await self.do_show(plain, named)

    async def do_show(self, plain: list[str], named: dict[str, str]) -> str:
        await settle()
        return "\n".join(show(*each) for each in sorted(self.world.coordinator.transactions())) or "nothing"

    def told(self, name: str, producer: ProducerIdAndEpoch) -> str:
        self.producers[name] = producer
        return f"{name} is {producer.producer_id} with epoch {producer.epoch}"


def show(name: str, metadata: TransactionMetadata) -> str:
    partitions = " ".join(map(str, sorted(metadata.partitions)))
    text = f"{name}: {metadata.state.title}, {metadata.producer_id} with epoch {metadata.producer_epoch}"
    return f"{text}, [{partitions}]" if partitions else text


def blocks(text: str) -> list[tuple[list[str], str, str]]:
    """(comment lines, event, recorded outcome) of each block."""
    found = []
    for block in text.strip().split("\n\n"):
        before, _, outcome = block.partition("\n----")
        *comment, event = before.splitlines()
        found.append((comment, event, outcome.strip()))
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_the_coordinator_does_what_the_script_recorded(path: Path) -> None:
    written: list[str] = []
    script_blocks = blocks(path.read_text())

    async def play() -> None:
        script = Script()
        await script.world.start()
        for comment, event, outcome in script_blocks:
            result = await script.run(event)
            written.append("\n".join([*comment, event, "----", result]))
            if not os.environ.get("HEADWATER_RECORD"):
                assert result == outcome, f"{path.name}: {event}"
        await script.world.coordinator.stop()

    run(play())
    if os.environ.get("HEADWATER_RECORD"):
        path.write_text("\n\n".join(written) + "\n")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_there_are_scripts() -> None:
    assert SCRIPTS
