"""Scenarios of one consumer group (KIP-848) as readable scripts: events in, and what the group said, wrote and logged.

A script is a sequence of blocks: a comment, one event, `----`, and the recorded outcome. `HEADWATER_RECORD=1` writes
the outcome of the present code into the scripts; the difference is then to be read like code.

Events (NAME is any word; a member behaves like a client: it says its epoch and what it has been given):
    topics t=6 u=3         the topics that exist, with their partitions; those not named are gone
    metadata t=6 u=3       metadata changed in between: the same, when the next step is decided and not yet written
    matched t=6 u=3        the same, after the next heartbeat's patterns are matched and before it is decided
    gone                   caller gone in between: the next step is written, and nobody hears the answer
    limits [max_size=N] [session=MS] [policy=disabled]
    join NAME [topics=t,u] [regex=R] [instance=I] [assignor=A] [id=ID] [rebalance=MS]
    beat NAME [epoch=N] [owned=t:0,1|none|all] [topics=t,u] [instance=I] [full]
    leave NAME [away] [id=ID]
    classic NAME [topics=t] [instance=I] [protocols=p,q] [id=ID]     JoinGroup
    sync NAME [generation=N] | pulse NAME [generation=N] | quit NAME   SyncGroup, Heartbeat, LeaveGroup
    commit NAME [epoch=N] [version=V] [transactional]
    fail                   the next step is not written
    time +MS               let time pass; timers fire when they are due
    restart                forget the group, replay its records
    show
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headwater.logtier.group.assignors.range_assignor import RangeAssignor
from headwater.logtier.group.assignors.uniform_assignor import UniformAssignor
from headwater.logtier.group.consumer import mixed_group
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_member import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
)
from headwater.logtier.group.consumer.consumer_records import (
    Change,
    CurrentValue,
    EpochValue,
    MemberValue,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from headwater.logtier.group.consumer.consumer_state import ConsumerState, existing
from headwater.logtier.group.consumer.consumer_step import ConsumerGroupLimits, Heartbeat, Step
from headwater.logtier.group.consumer_protocol import encode_assignment, parse_assignment
from headwater.logtier.group.events import Join, LeavingMember, Sync
from headwater.logtier.group.partitions import Partitions
from headwater.logtier.metadata.image import MetadataImage, TopicImage
from headwater.logtier.metadata.topic_nodes import first_partition_state
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.name_regex import NameRegex

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
ASSIGNORS = {each.name: each for each in (UniformAssignor(), RangeAssignor())}


def arguments(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Split words into plain ones and key=value."""
    plain, named = [], {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            named[key] = value
        else:
            plain.append(word)
    return plain, named


def topic_id(name: str, life: int) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}-{life}")


@dataclass
class Client:
    """What a member knows of itself."""

    member_id: str
    epoch: int = 0
    assigned: Partitions = field(default_factory=dict)
    instance_id: str | None = None


@dataclass
class Script:
    """A group on virtual time."""

    now_ms: int = 0
    limits: ConsumerGroupLimits = field(default_factory=lambda: ConsumerGroupLimits(ASSIGNORS))
    image: MetadataImage = field(default_factory=MetadataImage)
    group: ConsumerGroup = field(default_factory=lambda: ConsumerGroup("g"))
    clients: dict[str, Client] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    written: list[Change] = field(default_factory=list)
    fails: bool = False
    #: The topics that change while the next step is being written, or decided.
    metadata: dict[str, str] | None = None
    matched: dict[str, str] | None = None
    caller_is_gone: bool = False
    lines: list[str] = field(default_factory=list)

    def run(self, event: str) -> str:
        """Do what one line says; what came of it."""
        command, *words = event.split()
        self.lines = []
        plain, named = arguments(words)
        action: Callable[[list[str], dict[str, str]], None] = getattr(self, f"do_{command}")
        try:
            action(plain, named)
        except KafkaError as error:
            self.lines.append(f"{error.code.name}: {error.message}")
        self.check()
        return "\n".join(self.lines) or "(nothing)"

    # ---- events ----

    def do_topics(self, _: list[str], named: dict[str, str]) -> None:
        topics = {}
        for name, count in named.items():
            if name not in self.image.topics:
                self.lives[name] = self.lives.get(name, 0) + 1
            partitions = tuple(first_partition_state((1,)) for _ in range(int(count)))
            topics[name] = TopicImage(name, topic_id(name, self.lives[name]), partitions)
        names = {topic.topic_id: name for name, topic in topics.items()}
        self.image = replace(self.image, topics=topics, topic_names=names)
        self.group.topics_changed()

    def do_metadata(self, _: list[str], named: dict[str, str]) -> None:
        self.metadata = named

    def do_matched(self, _: list[str], named: dict[str, str]) -> None:
        self.matched = named

    def do_gone(self, *_: object) -> None:
        self.caller_is_gone = True

    def do_limits(self, _: list[str], named: dict[str, str]) -> None:
        allowed = named.get("policy") != "disabled"
        self.limits = replace(
            self.limits,
            max_size=int(named.get("max_size", 100)),
            session_timeout_ms=int(named.get("session", 45_000)),
            allows_upgrade=allowed,
            allows_downgrade=allowed,
        )

    def do_join(self, plain: list[str], named: dict[str, str]) -> None:
        (name,) = plain
        client = self.clients[name] = Client(named.get("id", name), 0, {}, named.get("instance"))
        regex = named.get("regex")
        topics = None if "topics" not in named else frozenset(filter(None, named["topics"].split(",")))
        self.heartbeat(
            name,
            client,
            rebalance_timeout_ms=int(named.get("rebalance", 60_000)),
            topic_names=topics,
            topic_regex=regex,
            server_assignor=named.get("assignor"),
            owned={},
        )

    def do_beat(self, plain: list[str], named: dict[str, str]) -> None:
        name, *flags = plain
        client = self.clients[name]
        client = replace(
            client,
            epoch=int(named.get("epoch", client.epoch)),
            instance_id=named.get("instance", client.instance_id),
        )
        owned = {"none": None, "all": client.assigned}.get(named.get("owned", "all"), {})
        if ":" in named.get("owned", ""):
            pairs = [part.split(":") for part in named["owned"].split(";")]
            owned = {
                self.image.topics[topic].topic_id: frozenset(map(int, indexes.split(","))) for topic, indexes in pairs
            }
        rest: dict[str, Any] = {"topic_names": frozenset(named["topics"].split(","))} if "topics" in named else {}
        if "full" in flags:
            rest |= {"rebalance_timeout_ms": 60_000}
        self.heartbeat(name, client, owned=owned, **rest)

    def do_leave(self, plain: list[str], named: dict[str, str]) -> None:
        name, *flags = plain
        client = self.clients[name]
        epoch = LEAVE_STATIC_EPOCH if "away" in flags else LEAVE_EPOCH
        result, step = self.group.leave(
            named.get("id", client.member_id), epoch, client.instance_id, self.image, self.limits
        )
        if self.write(step):
            self.lines.append(f"left with epoch {result.member_epoch}")

    def do_classic(self, plain: list[str], named: dict[str, str]) -> None:
        (name,) = plain
        known = self.clients.get(name)
        member_id = named.get("id", known.member_id if known else "")
        topics = named.get("topics", "t").split(",")
        owned = {} if known is None else {t: i for t, (_, i) in existing(known.assigned, self.image).items()}
        subscription = b"\0\x01" + encode_assignment(0, dict.fromkeys(topics, ()))[2:6]
        subscription += b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
        subscription += b"\xff\xff\xff\xff" + encode_assignment(0, owned)[2:-4]
        event = Join(
            0,
            "" if member_id == "none" else member_id,
            f"{name}-new",
            named.get("instance"),
            name,
            "/10.0.0.1",
            10_000,
            60_000,
            named.get("type", "consumer"),
            tuple((each, subscription) for each in named.get("protocols", "range").split(",")),
        )
        result, step = mixed_group.join(self.group, event, self.image, self.limits, self.now_ms)
        if self.write(step):
            self.lines.append(f"{result.error.name} id={result.member_id} generation={result.generation_id}")
            self.clients.setdefault(name, Client(result.member_id))
            self.clients[name] = replace(
                self.clients[name],
                member_id=result.member_id,
                epoch=result.generation_id,
                instance_id=named.get("instance"),
            )

    def do_sync(self, plain: list[str], named: dict[str, str]) -> None:
        client = self.clients[plain[0]]
        event = Sync(
            0, client.member_id, client.instance_id, int(named.get("generation", client.epoch)), "consumer", "range"
        )
        result, step = mixed_group.sync(self.group, event, self.image, self.now_ms)
        self.write(step)
        by_name, _ = parse_assignment(result.assignment)
        client.assigned = {self.image.topics[topic].topic_id: indexes for topic, indexes in by_name.items()}
        self.lines.append(f"assigned {self.shown(client.assigned)}")

    def do_pulse(self, plain: list[str], named: dict[str, str]) -> None:
        client = self.clients[plain[0]]
        generation = int(named.get("generation", client.epoch))
        error, step = mixed_group.heartbeat(self.group, client.member_id, client.instance_id, generation, self.now_ms)
        self.write(step)
        self.lines.append(error.name)

    def do_quit(self, plain: list[str], _: dict[str, str]) -> None:
        leaving = [LeavingMember(self.clients[name].member_id) for name in plain]
        errors, step = mixed_group.leave(self.group, leaving, self.image, self.limits)
        if self.write(step):
            self.lines.extend(error.name for error in errors)

    def do_commit(self, plain: list[str], named: dict[str, str]) -> None:
        name, *flags = plain
        client = self.clients.get(name) or Client("")
        self.group.check_offset_commit(
            client.member_id,
            None,
            int(named.get("epoch", client.epoch)),
            self.now_ms,
            api_version=int(named.get("version", 9)),
            is_transactional="transactional" in flags,
        )
        self.lines.append("accepted")

    def do_fail(self, *_: object) -> None:
        self.fails = True

    def do_time(self, plain: list[str], _: dict[str, str]) -> None:
        until_ms = self.now_ms + int(plain[0])
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.now_ms = due_ms
            self.write(self.group.expire(self.image, self.limits, self.now_ms))
        self.now_ms = until_ms

    def do_restart(self, *_: object) -> None:
        state = ConsumerState("g")
        for change in self.written:
            if not state.apply(change.key.kind, change.key.name, change.value):
                state = ConsumerState("g")
        self.group = ConsumerGroup("g", state)
        self.group.restore(self.limits, self.now_ms)
        self.do_show()

    def do_show(self, *_: object) -> None:
        state = self.group.state
        self.lines.append(f"{state.phase.value} epoch={state.epoch} target={state.target_epoch}")
        for member_id, member in sorted(state.members.items()):
            revoking = f" gives up {self.shown(member.revoking)}" if member.revoking else ""
            self.lines.append(
                f"  {member_id} epoch={member.member_epoch} {member.state.name.lower()} has "
                f"{self.shown(member.assigned)}{revoking}; wants {self.shown(state.target_of(member_id))}"
            )

    # ---- the shell ----

    def heartbeat(self, name: str, client: Client, **named: Any) -> None:
        beat = Heartbeat(client.member_id, client.epoch, name, "/10.0.0.1", client.instance_id, **named)
        resolved = {
            regex: RegexValue(NameRegex(regex).matching(self.image.topics), 0, self.now_ms)
            for regex in self.group.regexes_to_resolve(beat.topic_regex)
            if regex not in self.group.state.regexes or self.group.is_stale
        }
        beat = replace(beat, resolved=resolved, resolved_version=self.group.topics_version)
        if self.matched is not None:
            self.do_topics([], self.matched)
            self.matched = None
        result, step = self.group.heartbeat(beat, self.image, self.limits, self.now_ms)
        if not self.write(step):
            return
        known = self.clients[name]
        known.epoch, known.member_id = result.member_epoch, result.member_id
        told = "" if result.assignment is None else f" assigned {self.shown(result.assignment)}"
        if result.assignment is not None:
            known.assigned = result.assignment
        self.lines.append(f"epoch={result.member_epoch}{told}")

    def write(self, step: Step) -> bool:
        if self.fails and step.changes:
            self.fails = False
            self.lines.append("(not written)")
            return False
        if step.changes:
            self.lines.extend(f"write: {self.record(change)}" for change in step.changes)
            self.written.extend(step.changes)
        if self.metadata is not None:
            self.do_topics([], self.metadata)
            self.metadata = None
        if step.successor is not None:
            members = [member.member_id for member in step.successor.metadata.members]
            self.lines.append(f"classic group of {members}: {step.successor.cause}")
            self.group = ConsumerGroup("g")
        else:
            self.lines.extend(f"log: {line}" for line in self.group.commit(step, self.now_ms))
        is_heard, self.caller_is_gone = not self.caller_is_gone, False
        return is_heard

    def record(self, change: Change) -> str:
        """A record in a few words."""
        head = f"{change.key.kind.name.lower()} {change.key.name}".strip()
        match change.value:
            case EpochValue() | TargetEpochValue():
                return f"{head} = {change.value.epoch}"
            case TargetValue():
                return f"{head} = {self.shown(change.value.partitions)}"
            case MemberValue():
                regex = f" /{change.value.topic_regex}/" if change.value.topic_regex else ""
                return f"{head} = [{' '.join(sorted(change.value.topic_names))}]{regex}"
            case CurrentValue():
                value = change.value
                revoking = f" gives up {self.shown(value.revoking)}" if value.revoking else ""
                state = f"{value.member_epoch} {value.state.name.lower()}"
                return f"{head} = {state} {self.shown(value.assigned)}{revoking}"
            case RegexValue():
                return f"{head} = [{' '.join(sorted(change.value.topics))}]"
        return f"{head} removed"

    def shown(self, partitions: Partitions) -> str:
        names = existing(partitions, self.image)
        parts = [f"{name}:{','.join(map(str, sorted(indexes)))}" for name, (_, indexes) in sorted(names.items())]
        gone = len(partitions) - len(names)
        return " ".join(parts + ["gone"] * gone) or "nothing"

    def check(self) -> None:
        """What holds after every event."""
        state = self.group.state
        seen: dict[tuple[uuid.UUID, int], str] = {}
        for member_id, member in state.members.items():
            for partition in member.owned():
                assert partition not in seen, f"{partition} is owned by {seen[partition]} and {member_id}"
                seen[partition] = member_id
                assert state.owner_of(*partition) == member_id


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Comments and event of each block, and its recorded outcome."""
    found = []
    for block in text.strip().split("\n\n"):
        head, _, outcome = block.partition("\n----\n")
        *comments, event = head.split("\n")
        found.append(("".join(f"{line}\n" for line in comments), event, outcome))
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_scenario(path: Path) -> None:
    script = Script()
    recorded = blocks(path.read_text())
    played = [(comments, event, script.run(event)) for comments, event, _ in recorded]
    if os.environ.get("HEADWATER_RECORD"):
        text = "\n\n".join(f"{comments}{event}\n----\n{outcome}" for comments, event, outcome in played)
        path.write_text(f"{text}\n")
    else:
        assert played == recorded


def test_there_are_scripts() -> None:
    assert SCRIPTS
