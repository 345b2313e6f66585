"""A model of an archive's seam: a statement finds each committed record once, whatever comes between its looks.

Rounds are planned, written and committed, files are compacted and vacuumed, records expire, drivers die and wake up.
The decisions are the product's: the plan of a round, the marks, the state that a statement reads. The table is a list
of versions as Delta has them, with its rule for two commits that name one application.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.marks import ArchiveState, marks_of
from headwater.pipelines.archive.round_plan import RoundPlan, plan_round
from headwater.pipelines.archive.trailing_offsets import TrailingOffsets
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import parse_position
from headwater.pipelines.seam.table_offsets import TableOffsets
from headwater.pipelines.unified.unified_frames import present_offsets
from headwater.pipelines.unified.unified_offsets import UnifiedOffsets
from tests.example_counts import examples

TOPIC, ID = "flights", "t"
SPEC = TopicArchiveSpec(TOPIC, "/lake/flights", parse_position("earliest"), on_gap="record")
GRACE_S = 10
Place = tuple[int, int]


@dataclass(slots=True)
class Version:
    """A version of the table: its files by name, and its marks."""

    files: frozenset[int] = frozenset()
    marks: Mapping[str, int] = field(default_factory=dict)

    @property
    def state(self) -> ArchiveState:
        return ArchiveState.of(self.marks, ID)


@dataclass(slots=True)
class Round:
    """A round of one driver, from its plan to its commit."""

    driver: int
    read_version: int
    plan: RoundPlan
    file: int | None = None
    is_written: bool = False
    is_confirmed: bool = False


@dataclass(slots=True)
class Statement:
    """A statement, from its first look to its last row."""

    asked: TableOffsets | None
    decided: UnifiedOffsets | None = None
    expected: frozenset[Place] = frozenset()
    looked_s: float = 0.0


class Seam(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.log: list[list[bool]] = []  # by partition and offset: whether a record was committed there
        self.first: list[int] = []
        self.versions: list[Version] = []
        self.stored: dict[int, tuple[Place, ...]] = {}  # what the files on disk hold
        self.next_file = 0
        self.driver = 0
        self.rounds: list[Round] = []
        self.statements: list[Statement] = []
        self.group: dict[int, int] = {}
        self.trailing = TrailingOffsets(GRACE_S)

    @initialize(partitions=st.integers(1, 2), hold=st.booleans())
    def begin(self, partitions: int, hold: bool) -> None:
        self.holds = hold
        for _ in range(partitions):
            self.add_partition()

    # -- the log ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.log) < 3)
    @rule()
    def add_partition(self) -> None:
        self.log.append([])
        self.first.append(0)

    @rule(data=st.data(), committed=st.lists(st.booleans(), min_size=1, max_size=5))
    def produce(self, data: st.DataObject, committed: list[bool]) -> None:
        """Records; those that are not committed are control records, or of aborted transactions."""
        self.log[data.draw(st.integers(0, len(self.log) - 1))] += committed

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Retention, as far as the archive's group has passed if it holds the log, else as far as it likes."""
        partition = data.draw(st.integers(0, len(self.log) - 1))
        limit = self.group.get(partition, 0) if self.holds else len(self.log[partition])
        if limit > self.first[partition]:
            self.first[partition] = data.draw(st.integers(self.first[partition], limit))

    @rule(seconds=st.sampled_from([1, GRACE_S]))
    def wait(self, seconds: int) -> None:
        """Time passes; the archive's group commits what is due."""
        self.now_s += seconds
        due = self.trailing.due(self.now_s)
        if due is not None:
            self.group = dict(due)
            self.trailing.acknowledged(self.now_s)

    def log_state(self) -> LogState:
        return LogState(TOPIC, ID, dict(enumerate(self.first)), {p: len(each) for p, each in enumerate(self.log)})

    # -- the archive -----------------------------------------------------------------------------------------------

    @rule(offsets_max=st.integers(1, 8))
    def begin_a_round(self, offsets_max: int) -> None:
        """The present driver's next round; one at a time."""
        if not any(each.driver == self.driver for each in self.rounds):
            self.plan(offsets_max)

    def plan(self, offsets_max: int) -> None:
        if not self.versions:
            self.versions.append(Version())
        state = self.versions[-1].state
        plan = plan_round(
            state, self.log_state(), dict(enumerate(self.first)), on_gap="record", offsets_max=offsets_max
        )
        if not plan.is_empty:
            self.rounds.append(Round(self.driver, len(self.versions) - 1, plan))

    @precondition(lambda self: any(not each.is_written for each in self.rounds))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Tasks read the log and write a file; records that expired meanwhile fail the round."""
        self.written(data.draw(st.sampled_from([each for each in self.rounds if not each.is_written])))

    def written(self, found: Round) -> None:
        if any(start < self.first[p] for p, (start, _) in found.plan.ranges.items()):
            self.rounds.remove(found)
            return
        rows = tuple(
            (p, o) for p, (start, end) in found.plan.ranges.items() for o in range(start, end) if self.log[p][o]
        )
        found.is_written = True
        if rows:
            found.file = self.add_file(rows)

    def add_file(self, rows: tuple[Place, ...]) -> int:
        self.next_file += 1
        self.stored[self.next_file] = rows
        return self.next_file

    @precondition(lambda self: any(each.is_written for each in self.rounds))
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        """The brokers' lock, in the last moment before the commit; after it a driver may freeze."""
        self.confirmed(data.draw(st.sampled_from([each for each in self.rounds if each.is_written])))

    def confirmed(self, found: Round) -> None:
        if found.driver == self.driver:
            found.is_confirmed = True
        else:
            self.rounds.remove(found)

    @precondition(lambda self: any(each.is_confirmed for each in self.rounds))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Delta refuses a commit if another has named one of its applications since it read the table."""
        self.committed(data.draw(st.sampled_from([each for each in self.rounds if each.is_confirmed])))

    def committed(self, found: Round) -> None:
        self.rounds.remove(found)
        marks = marks_of(ID, found.plan.ends, found.plan.gaps)
        read, newest = self.versions[found.read_version], self.versions[-1]
        if any(newest.marks.get(name) != read.marks.get(name) for name in marks):
            return
        files = newest.files if found.file is None else newest.files | {found.file}
        self.versions.append(Version(files, {**newest.marks, **marks}))
        self.trailing.committed(self.versions[-1].state.ends, self.now_s)

    @rule(offsets_max=st.integers(1, 8))
    def whole_round(self, offsets_max: int) -> None:
        """A round with nothing in between, of the present driver: the usual one."""
        self.rounds = [each for each in self.rounds if each.driver != self.driver]
        self.plan(offsets_max)
        for step in (self.written, self.confirmed, self.committed):
            for each in [each for each in self.rounds if each.driver == self.driver]:
                step(each)

    @rule()
    def take_over(self) -> None:
        """The driver dies, or freezes: another one begins. What it had planned may wake up and go on."""
        self.driver += 1

    @precondition(lambda self: self.versions and len(self.versions[-1].files) > 1)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """OPTIMIZE: some files become one, in a commit without marks."""
        newest = self.versions[-1]
        old = frozenset(data.draw(st.lists(st.sampled_from(sorted(newest.files)), min_size=2, unique=True)))
        made = self.add_file(tuple(row for name in sorted(old) for row in self.stored[name]))
        self.versions.append(Version(newest.files - old | {made}, newest.marks))

    @precondition(lambda self: self.versions)
    @rule()
    def vacuum(self) -> None:
        """Files that neither the newest version nor a round has are deleted."""
        kept = self.versions[-1].files | {each.file for each in self.rounds if each.file is not None}
        for name in self.stored.keys() - kept:
            del self.stored[name]

    # -- statements ------------------------------------------------------------------------------------------------

    def table_offsets(self) -> TableOffsets | None:
        if not self.versions:
            return None
        return TableOffsets(len(self.versions) - 1, TOPIC, ID, 0, dict(self.versions[-1].state.ends))

    @rule()
    def look_at_the_table(self) -> None:
        self.statements.append(Statement(self.table_offsets(), looked_s=self.now_s))

    @precondition(lambda self: any(each.decided is None for each in self.statements))
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        """The statement looks at the log, some time after it has looked at the table."""
        self.decided(data.draw(st.sampled_from([each for each in self.statements if each.decided is None])))

    def decided(self, found: Statement) -> None:
        looks = iter([found.asked])
        log = self.log_state()
        decided = present_offsets(SPEC, lambda: next(looks, self.table_offsets()), lambda: log, lambda _: None)
        # Whatever version it has chosen: missing may be only what nobody has any more.
        state = self.versions[-1].state if self.versions else ArchiveState()
        missing = {p: max(state.ends.get(p, 0), first) for p, first in log.first.items()}

        def is_expected(p: int, o: int) -> bool:
            if o < state.ends.get(p, 0):
                return not any(start <= o < after for start, after in state.gaps.get(p, ()))
            return o >= missing[p]

        found.decided = decided
        found.expected = frozenset(
            (p, o) for p, end in log.end.items() for o in range(end) if self.log[p][o] and is_expected(p, o)
        )

    @precondition(lambda self: any(each.decided is not None for each in self.statements))
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Each record once; a file or a record that is gone ends the statement, and not while the group holds it."""
        self.finished(data.draw(st.sampled_from([each for each in self.statements if each.decided is not None])))

    def finished(self, found: Statement) -> None:
        self.statements.remove(found)
        decided = found.decided
        assert decided is not None
        files = self.versions[decided.version].files if decided.version >= 0 else frozenset()
        if not files <= self.stored.keys():
            return  # vacuumed: Spark says so
        if any(start < self.first[p] for p, (start, _) in decided.tail.items()):
            assert not self.holds or self.now_s - found.looked_s >= GRACE_S, "retention did not wait"
            return
        rows = Counter(row for name in files for row in self.stored[name])
        rows.update((p, o) for p, (start, end) in decided.tail.items() for o in range(start, end) if self.log[p][o])
        assert rows == Counter(found.expected)

    @rule()
    def whole_statement(self) -> None:
        """A statement with nothing in between."""
        self.look_at_the_table()
        found = self.statements[-1]
        self.decided(found)
        self.finished(found)

    # -- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def the_newest_version_has_what_its_offsets_say(self) -> None:
        if not self.versions:
            return
        newest = self.versions[-1]
        state = newest.state
        rows = Counter(row for name in newest.files for row in self.stored[name])
        assert rows == Counter(
            (p, o)
            for p, end in state.ends.items()
            for o in range(end)
            if self.log[p][o] and not any(start <= o < after for start, after in state.gaps.get(p, ()))
        )
        if self.holds:
            assert not state.gaps, "nothing expires before it is archived"


Seam.TestCase.settings = settings(max_examples=examples(600), stateful_step_count=80, deadline=None)
TestSeam = Seam.TestCase
