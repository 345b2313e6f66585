"""Scenarios of one group as readable scripts: events in, and what the group said to each, recorded.

A script is a sequence of blocks: a comment, one event, `----`, and the recorded outcome. `HEADWATER_RECORD=1` writes
the outcome of the present code into the scripts; the difference is then to be read like code.

Events (NAME is any word; a member keeps the id it was given last):
    limits max_size=N delay=MS
    join NAME [version=V] [instance=I] [protocols=p,q] [type=T] [session=MS] [rebalance=MS] [id=ID] [reason=TEXT]
    sync NAME [generation=N] [assign=NAME:TEXT,...] [protocol=P]
    heartbeat NAME [generation=N] [instance=I]
    leave NAME... | leave instance=I
    commit [NAME] [generation=N] [instance=I] [id=ID]
    time +MS             let time pass; timers fire when they are due
    hold | written [error=CODE]   writes wait until told; the oldest write ends
    restart              forget the group, restore what was written last
    delete
    show
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.group.classic.core import GroupLimits
from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.events import (
    ArmTimer,
    Explain,
    GroupMetadata,
    GroupState,
    Instruction,
    Join,
    LeavingMember,
    Persist,
    RespondJoin,
    RespondSync,
    Sync,
)
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
ANSWERED_LATER = "(waits)"


def arguments(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Split words into plain ones and key=value."""
    plain, named = [], {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            named[key] = value.replace("_", " ") if key == "reason" else value
        else:
            plain.append(word)
    return plain, named


def subscription(topic: str) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    return b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"


@dataclass
class Script:
    """A group on virtual time."""

    now_ms: int = 0
    limits: GroupLimits = field(default_factory=lambda: GroupLimits(initial_rebalance_delay_ms=0))
    group: Group = field(default_factory=lambda: Group("g", GroupLimits(initial_rebalance_delay_ms=0)))
    ids: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    tokens: dict[int, str] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    next_token: int = 0
    timer_ms: int | None = None
    holds: bool = False
    writes: list[Persist] = field(default_factory=list)
    written: GroupMetadata | None = None
    lines: list[str] = field(default_factory=list)

    def run(self, event: str) -> str:
        """Do what one line says; what came of it."""
        command, *words = event.split()
        self.lines = []
        plain, named = arguments(words)
        action: Callable[[list[str], dict[str, str]], None] = getattr(self, f"do_{command}")
        action(plain, named)
        self.check()
        return "\n".join(self.lines) or "(nothing)"

    # ---- events ----

    def do_limits(self, _: list[str], named: dict[str, str]) -> None:
        self.limits = GroupLimits(int(named.get("max_size", 2**31 - 1)), int(named.get("delay", 0)))
        self.group, self.timer_ms = Group("g", self.limits), None

    def do_join(self, plain: list[str], named: dict[str, str]) -> None:
        (name,) = plain
        self.numbers[name] = self.numbers.get(name, 0) + 1
        version = int(named.get("version", 9))
        protocols = named.get("protocols", "range").split(",")
        event = Join(
            self.token(name),
            "" if named.get("id") == "none" else named.get("id", self.ids.get(name, "")),
            f"{name}-{self.numbers[name]}",
            named.get("instance"),
            name,
            "/10.0.0.1",
            int(named.get("session", 10_000)),
            int(named.get("rebalance", 60_000)),
            named.get("type", "consumer"),
            tuple((each, subscription(named.get("topic", "t"))) for each in protocols if each),
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
            reason=named.get("reason", ""),
        )
        self.execute(self.group.join(event, self.now_ms), waiting=event.token)

    def do_sync(self, plain: list[str], named: dict[str, str]) -> None:
        (name,) = plain
        pairs = [pair.split(":") for pair in named.get("assign", "").split(",") if pair]
        event = Sync(
            self.token(name),
            self.ids.get(name, ""),
            named.get("instance"),
            int(named.get("generation", self.group.generation_id)),
            "consumer",
            named.get("protocol"),
            {self.ids[who]: what.encode() for who, what in pairs},
        )
        self.execute(self.group.sync(event), waiting=event.token)

    def do_heartbeat(self, plain: list[str], named: dict[str, str]) -> None:
        (name,) = plain
        generation = int(named.get("generation", self.group.generation_id))
        member_id = named.get("id", self.ids.get(name, ""))
        error = self.group.heartbeat(member_id, named.get("instance"), generation, self.now_ms)
        self.lines.append(error.name)

    def do_leave(self, plain: list[str], named: dict[str, str]) -> None:
        leaving = [LeavingMember(self.ids.get(name, name)) for name in plain]
        if "instance" in named:
            leaving.append(LeavingMember(named.get("id", ""), named["instance"]))
        errors, instructions = self.group.leave(leaving, self.now_ms)
        self.lines.extend(error.name for error in errors)
        self.execute(instructions)

    def do_commit(self, plain: list[str], named: dict[str, str]) -> None:
        member_id = named.get("id", self.ids[plain[0]]) if plain else ""
        generation = int(named.get("generation", self.group.generation_id if plain else -1))
        try:
            self.group.check_offset_commit(member_id, named.get("instance"), generation, self.now_ms)
            self.lines.append("accepted")
        except KafkaError as error:
            self.lines.append(error.code.name)

    def do_time(self, plain: list[str], _: dict[str, str]) -> None:
        until_ms = self.now_ms + int(plain[0])
        while self.timer_ms is not None and self.timer_ms <= until_ms:
            self.now_ms, self.timer_ms = self.timer_ms, None
            self.execute(self.group.timer_expired(self.now_ms))
        self.now_ms = until_ms

    def do_hold(self, *_: object) -> None:
        self.holds = True

    def do_written(self, _: list[str], named: dict[str, str]) -> None:
        self.finish(self.writes.pop(0), ErrorCode[named.get("error", "none")])

    def do_restart(self, *_: object) -> None:
        self.group, self.timer_ms, self.writes = Group("g", self.limits), None, []
        self.tokens.clear()
        if self.written is not None:
            self.execute(self.group.restore(self.written, self.now_ms))
        self.do_show()

    def do_delete(self, *_: object) -> None:
        self.execute(self.group.delete())

    def do_show(self, *_: object) -> None:
        group = self.group
        members = " ".join(f"{each.member_id}={each.assignment.decode()}" for each in group.members)
        leader = group.members.leader_id or "none"
        self.lines.append(f"{group.state.value} generation={group.generation_id} leader={leader} [{members}]")

    # ---- the shell ----

    def token(self, name: str) -> int:
        self.next_token += 1
        self.tokens[self.next_token] = name
        return self.next_token

    def execute(self, instructions: Iterable[Instruction], waiting: int | None = None) -> None:
        for each in instructions:
            if isinstance(each, RespondJoin):
                name = self.answer(each.token)
                self.ids[name] = each.result.member_id
                self.lines.append(f"{name} <- join {show_join(each)}")
            elif isinstance(each, RespondSync):
                error, assignment = each.result.error, each.result.assignment.decode()
                text = error.name if error is not ErrorCode.none else f"assigned '{assignment}'"
                self.lines.append(f"{self.answer(each.token)} <- sync {text}")
            elif isinstance(each, ArmTimer):
                assert self.timer_ms is None or each.deadline_ms < self.timer_ms
                self.timer_ms = each.deadline_ms
            elif isinstance(each, Explain):
                self.lines.append(f"log: {each.text}")
            elif self.holds:
                self.lines.append(f"write begins: {show_write(each)}")
                self.writes.append(each)
            else:
                self.lines.append(f"write: {show_write(each)}")
                self.finish(each, ErrorCode.none)
        if waiting is not None and waiting not in self.answered:
            self.lines.append(ANSWERED_LATER)

    def finish(self, write: Persist, error: ErrorCode) -> None:
        if error is ErrorCode.none:
            self.written = write.metadata
        self.execute(self.group.persisted(write.persist_id, error, self.now_ms))

    def answer(self, token: int) -> str:
        assert token not in self.answered, "a request was answered twice"
        self.answered.add(token)
        return self.tokens[token]

    def check(self) -> None:
        """The group's invariants."""
        group = self.group
        assert (group.members.leader_id in group.members) == bool(len(group.members))
        waiting = {member.join_token for member in group.members} | {member.sync_token for member in group.members}
        assert waiting.isdisjoint(self.answered)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert all(group.protocol_name in member.protocols for member in group.members)
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not group.members
        else:
            assert self.timer_ms is not None, "nothing would ever end this state"


def show_join(response: RespondJoin) -> str:
    result = response.result
    if result.error is not ErrorCode.none:
        return f"{result.error.name} id={result.member_id or 'none'}"
    members = f" members=[{' '.join(each.member_id for each in result.members)}]" if result.members else ""
    skip = " skip_assignment" if result.skip_assignment else ""
    return (
        f"generation={result.generation_id} id={result.member_id} leader={result.leader} "
        f"protocol={result.protocol_name}{members}{skip}"
    )


def show_write(write: Persist) -> str:
    metadata = write.metadata
    members = " ".join(f"{each.member_id}={each.assignment.decode()}" for each in metadata.members)
    return f"generation={metadata.generation_id} [{members}]"


def blocks(text: str) -> list[tuple[list[str], str, str]]:
    """(comment lines, event, recorded outcome) of each block."""
    found = []
    for block in text.strip().split("\n\n"):
        before, _, outcome = block.partition("\n----")
        *comment, event = before.splitlines()
        found.append((comment, event, outcome.strip()))
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_group_does_what_the_script_recorded(path: Path) -> None:
    script, written = Script(), []
    for comment, event, outcome in blocks(path.read_text()):
        result = script.run(event)
        written.append("\n".join([*comment, event, "----", result]))
        if not os.environ.get("HEADWATER_RECORD"):
            assert result == outcome, f"{path.name}: {event}"
    if os.environ.get("HEADWATER_RECORD"):
        path.write_text("\n\n".join(written) + "\n")


def test_there_are_scripts() -> None:
    assert SCRIPTS
