"""Scenarios of a partition's replication as readable scripts: events in, and the instructions at each, recorded.

A script is a sequence of blocks: a comment, one event, `----`, and the recorded outcome. `HEADWATER_RECORD=1` writes
the outcome of the present code into the scripts; the difference is then to be read like code.

This broker is 1. The last line of each outcome is the state after it. Events:
    metadata leader=L epoch=E partition_epoch=P [replicas=1,2,3] [isr=1,2,3]     the stored state of the partition
    brokers ID:EPOCH...                              who is neither fenced nor shutting down
    append N                                         N records at the leader
    fetch ID from=OFFSET [epoch=E] [start=OFFSET]    a follower's fetch, in the epoch of its broker (the known one)
    time +MS                                         time passes, then a tick
    decide CODE | decide isr=1,2 partition_epoch=P   the controller's answer to the newest proposal
    decide ... of=N                                  to the Nth proposal of the script
    min N                                            min.insync.replicas changes
    write OFFSET                                     acks=all: the outcome of an append that ends there, in this epoch
    accept                                           may a write with acks=all be appended?
    offsets                                          may the end be told (ListOffsets)?
    answer hw=H [start=S] [diverging=EPOCH:END]      the leader's answer to this follower
    log end=E [start=S] [epochs=EPOCH:START,...]     the log of this broker, as it is on the disk
    truncated                                        the fetcher has truncated the log to `log end`
    state
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import IsrDecision, ProposeIsr
from tests.unit.replication.fake_partition_log import FakeEpochs, FakePartitionLog

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
LAG_MS = 1_000


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def pairs(text: str) -> list[tuple[int, int]]:
    return [(int(first), int(second)) for first, second in (each.split(":") for each in text.split(","))]


class Script:
    """One partition on broker 1, its log, and the proposals that it made."""

    def __init__(self) -> None:
        self.log = FakePartitionLog(log_end_offset=0)
        self.partition = Partition(TopicPartition("t", 0), 1, self.log, lag_ms_max=LAG_MS)
        self.stored = PartitionImage(1, 0, 0, (1, 2, 3), (1, 2, 3))
        self.brokers = {1: 11, 2: 12, 3: 13}
        self.now_ms = 0
        self.proposals: list[ProposeIsr] = []

    def run(self, event: str) -> str:
        verb, *words = event.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        before = self.partition.high_watermark
        try:
            out = getattr(self, f"do_{verb}")(plain, named)
        except KafkaError as error:
            out = [error.code.name]
        lines = [each if isinstance(each, str) else shown(each) for each in out]
        self.proposals += [each for each in out if isinstance(each, ProposeIsr)]
        if verb != "truncated":
            assert self.partition.high_watermark >= before, "the high watermark goes back by a truncation alone"
        return "\n".join([*lines, self.state()])

    def state(self) -> str:
        partition = self.partition
        maximal = sorted(partition.maximal_isr)
        pending = "" if maximal == sorted(partition.isr) else f" maximal={listed(maximal)}"
        role = "leads" if partition.is_leader else "follows"
        return (
            f"{role}: hw={partition.high_watermark} end={self.log.log_end_offset} isr={listed(partition.isr)}{pending} "
            f"epochs={partition.leader_epoch}/{partition.partition_epoch}"
        )

    # ---- events ----

    def do_metadata(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        old = self.stored
        self.stored = PartitionImage(
            int(named.get("leader", old.leader)),
            int(named.get("epoch", old.leader_epoch)),
            int(named.get("partition_epoch", old.partition_epoch)),
            numbers(named["replicas"]) if "replicas" in named else old.replicas,
            numbers(named["isr"]) if "isr" in named else old.isr,
        )
        return self.partition.leadership(self.stored, self.brokers, self.now_ms)

    def do_brokers(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.brokers = dict(pairs(",".join(plain)))
        return self.partition.live_brokers_changed(self.brokers, self.now_ms)

    def do_append(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.log.log_end_offset += int(plain[0])
        return ["watermark rises"] if self.partition.appended() else []

    def do_fetch(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        broker_id = int(plain[0])
        return self.partition.fetched(
            broker_id,
            fetch_offset=int(named["from"]),
            log_start_offset=int(named.get("start", 0)),
            broker_epoch=int(named.get("epoch", self.brokers.get(broker_id, -1))),
            now_ms=self.now_ms,
        )

    def do_time(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.now_ms += int(plain[0])
        return self.partition.tick(self.now_ms)

    def do_decide(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        proposal = self.proposals[int(named.get("of", len(self.proposals))) - 1]
        if plain:
            decision = IsrDecision(ErrorCode[plain[0]])
        else:
            decision = IsrDecision(
                ErrorCode.none,
                int(named.get("epoch", proposal.leader_epoch)),
                int(named["partition_epoch"]),
                numbers(named["isr"]),
            )
        return self.partition.isr_decided(proposal, decision)

    def do_min(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.log.config = TopicConfig(min_insync_replicas=int(plain[0]))
        if self.partition.leader_epoch < 0:
            return []
        return self.partition.leadership(self.stored, self.brokers, self.now_ms)

    def do_write(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        epoch = int(named.get("epoch", self.partition.leader_epoch))
        code = self.partition.acknowledgement(int(plain[0]), epoch)
        return ["waits" if code is None else code.name]

    def do_accept(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.partition.check_enough_in_sync()
        return ["accepted"]

    def do_offsets(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.partition.check_offsets_known()
        return ["known"]

    def do_answer(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        diverging = pairs(named["diverging"])[0] if "diverging" in named else None
        return self.partition.answered(
            high_watermark=int(named["hw"]), log_start_offset=int(named.get("start", 0)), diverging=diverging
        )

    def do_log(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.log.log_end_offset = int(named["end"])
        self.log.log_start_offset = int(named.get("start", self.log.log_start_offset))
        if "epochs" in named:
            self.log.leader_epochs = FakeEpochs(*pairs(named["epochs"]))
        return []

    def do_truncated(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        self.partition.truncated()
        return []

    def do_state(self, plain: list[str], named: dict[str, str]) -> Sequence[object]:
        return []


def listed(ids: Iterable[int]) -> str:
    return ",".join(str(each) for each in ids) or "none"


def shown(instruction: object) -> str:
    """An instruction as a line."""
    if isinstance(instruction, ProposeIsr):
        members = " ".join(f"{broker}@{epoch}" for broker, epoch in instruction.members)
        again = " again" if instruction.is_repeated else ""
        return f"propose{again}: {members} against {instruction.leader_epoch}/{instruction.partition_epoch}"
    return repr(instruction)


def blocks(text: str) -> list[tuple[list[str], str, str]]:
    """The comment lines, the event and the outcome of each block."""
    found = []
    for block in text.strip().split("\n\n"):
        head, _, outcome = block.partition("\n----")
        *comments, event = head.split("\n")
        found.append((comments, event, outcome.strip()))
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_partition_does_what_the_script_says(path: Path) -> None:
    script = Script()
    recorded, played = [], []
    for comments, event, outcome in blocks(path.read_text()):
        result = script.run(event)
        recorded.append("\n".join([*comments, event, "----", result]))
        played.append((event, outcome, result))
    if os.environ.get("HEADWATER_RECORD"):
        path.write_text("\n\n".join(recorded) + "\n")
        return
    for event, outcome, result in played:
        assert result == outcome, event


def test_a_proposal_keeps_the_epochs_in_which_its_members_qualified() -> None:
    """KIP-903: a follower that bounced since then has an empty log perhaps; the controller must refuse it."""
    script = Script()
    script.run("metadata leader=1 epoch=5 partition_epoch=7 isr=1")
    script.run("append 4")
    script.run("fetch 2 from=4")
    [proposal] = script.proposals
    script.run("brokers 1:21 2:99")
    script.run("decide not_controller")
    [_, again] = script.proposals
    assert again == replace(
        proposal, members=(proposal.members[0]._replace(broker_epoch=21), proposal.members[1]), is_repeated=True
    )
