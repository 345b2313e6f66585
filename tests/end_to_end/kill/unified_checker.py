"""A child process of the kill tests: reads a unified table again and again, and proves what each look finds.

    python unified_checker.py BOOTSTRAP ARCHIVE TOPIC CLAIMS ROWS

CLAIMS is a file to which the test appends lines: `due PARTITION OFFSET VALUE`, a record that each statement which
begins from then on must have, and `aborted VALUE`, a value that none may have. Prints a JSON object when a look begins
and one when it ends, with its rows, or the error, or what is wrong. Goes on without a broker; ends with exit code 1 at
the first fault. At the end of standard input, a last look's rows are written to ROWS, as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import headwater
from headwater.pipelines.spark.session import close_session, open_session

Place = tuple[int, int]
#: Of a record: partition, offset, value.
Record = tuple[int, int, str]

SPARK: Final = {"spark.driver.memory": "1g", "spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
SHOWN: Final = 5
PAUSE_S: Final = 0.2
LAST_LOOKS: Final = 100
#: Errors that say that records are lost, or that the table is another one: no broker that is away is a reason for them.
NEVER: Final = re.compile(
    r"offsets \d+ to \d+ .*deleted|made anew|not made by an archive|beyond|cannot be read together"
)
#: A frame has one state, so both sides of the join have the same rows: a doubled record is there four times.
JOIN: Final = (
    "SELECT coalesce(a._partition, b._partition) AS _partition, coalesce(a._offset, b._offset) AS _offset, "
    "a.value AS value, b.value AS other FROM {topic} a "
    "FULL JOIN {topic} b ON a._partition = b._partition AND a._offset = b._offset"
)


class ClaimedRecords:
    """What the looks must find, as it becomes known; judges their rows.

    Invariant: grows only. A record that a look has found must be in each later one.
    """

    def __init__(self) -> None:
        self._due: dict[Place, str] = {}
        self._aborted: set[str] = set()
        self._seen: dict[Place, str] = {}

    def learn(self, lines: Iterable[str]) -> None:
        """Take up lines of the file of claims."""
        for line in lines:
            kind, _, rest = line.partition(" ")
            if kind == "aborted":
                self._aborted.add(rest)
            else:
                partition, offset, value = rest.split(" ")
                self._due[int(partition), int(offset)] = value

    def expected(self) -> dict[Place, str]:
        """The records that a statement which begins now must have."""
        return self._seen | self._due

    def faults(self, rows: Sequence[Record], expected: dict[Place, str]) -> list[str]:
        """What is wrong with the rows of a statement before which so much was expected; nothing if they are right."""
        found = {(partition, offset): value for partition, offset, value in rows}
        places = Counter((partition, offset) for partition, offset, _ in rows)
        faults = told("there more than once", (place for place, times in places.items() if times > 1))
        faults += told("missing", expected.keys() - found.keys())
        # What was learnt during the statement may be in its rows as well.
        known = self.expected()
        wrong = ((*place, value) for place, value in found.items() if known.get(place, value) != value)
        faults += told("of another value", wrong)
        faults += told("of an aborted transaction", ((*p, v) for p, v in found.items() if v in self._aborted))
        values = Counter(found.values())
        faults += told("values at several offsets", (value for value, times in values.items() if times > 1))
        self._seen |= found
        return faults


def told(what: str, found: Iterable[Any]) -> list[str]:
    """A line about what was found; none if nothing was."""
    listed = sorted(found)
    return [f"{len(listed)} {what}: {listed[:SHOWN]}"] if listed else []


def unequal_sides(rows: Sequence[tuple[int, int, str, str]]) -> list[str]:
    """Rows of the join of the table with itself whose sides differ: the statement saw two states."""
    return told("rows differ between two looks of one statement", (row[:2] for row in rows if row[2] != row[3]))


class GrowingLines:
    """The whole lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def next(self) -> list[str]:
        """The lines since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode().splitlines()


class Checker:
    """Looks at the unified table, and says what it finds."""

    def __init__(self, spark: Any, given: argparse.Namespace) -> None:
        self._spark = spark
        self._topic = given.topic
        self._where = {"bootstrap_servers": given.bootstrap, "archive": given.archive}
        self._lines = GrowingLines(Path(given.claims))
        self._claimed = ClaimedRecords()
        self._number = 0
        self.rows: list[Record] = []

    def look(self) -> str:
        """One statement: `whole`, `error` or `fault`."""
        self._number += 1
        joins = self._number % 2 == 0
        self._claimed.learn(self._lines.next())
        expected = self._claimed.expected()
        say(begins=self._number)
        try:
            rows = self._joined() if joins else self._table()
        except Exception as error:  # noqa: BLE001 - whatever a user's statement raises while brokers die
            lines = [str(error)[:4000]] if NEVER.search(str(error)) else []
            say(ends=self._number, error=f"{type(error).__name__}: {reason(str(error))}", faults=lines)
            return "fault" if lines else "error"
        self._claimed.learn(self._lines.next())
        faults = unequal_sides(rows) if joins else []
        self.rows = [row[:3] for row in rows]
        faults += self._claimed.faults(self.rows, expected)
        say(ends=self._number, rows=len(rows), expected=len(expected), faults=faults)
        return "fault" if faults else "whole"

    def _table(self) -> list[Any]:
        frame = headwater.table(self._spark, self._topic, **self._where)
        return tuples(frame.select("_partition", "_offset", "value"))

    def _joined(self) -> list[Any]:
        return tuples(headwater.sql(self._spark, JOIN.format(topic=self._topic), **self._where))


def reason(text: str) -> str:
    """The line of an error that says most: of Java's, the first cause of all."""
    lines = text.splitlines() or [""]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes or lines[:1])[-1][:300]


def tuples(frame: Any) -> list[Any]:
    """The rows of a frame."""
    columns = frame.toArrow().to_pydict()
    return list(zip(*columns.values(), strict=True))


def say(**what: Any) -> None:
    """A line for the test."""
    print(json.dumps(what), flush=True)


def main() -> int:
    """Look until the input ends, or a look finds a fault; the exit code."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "archive", "topic", "claims", "rows"):
        parser.add_argument(name)
    given = parser.parse_args()
    try:
        checker = Checker(open_session("checker", f"{given.rows}.spark.log", SPARK), given)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            if checker.look() == "fault":
                return 1
        for _ in range(LAST_LOOKS):
            outcome = checker.look()
            if outcome == "whole":
                Path(given.rows).write_text(json.dumps(checker.rows))
                return 0
            if outcome == "fault":
                return 1
            time.sleep(PAUSE_S)
        return 1
    finally:
        close_session()


if __name__ == "__main__":
    raise SystemExit(main())
