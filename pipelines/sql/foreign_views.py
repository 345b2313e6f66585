"""Keeps the names of topics for clients that no statement of ours passes through: JDBC, ODBC, Spark Connect.

| name | relation |
|---|---|
| `topics.NAME` | the topic; where it has an archive, the unified table |
| `log.NAME` | the records of the topic as the log holds them |
| `lake.NAME` | the Delta table, as in the shell |

The view of an archived topic fixes the version of its table and the offsets where the log continues, not the log's end.
After each commit of the archive the view is replaced, in one step; statements that are analysed by then go on with what
they have, whose files VACUUM leaves and whose offsets the archive's `view_grace` holds.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.shared_views import ServedViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ForeignTopics", "ForeignViews", "Look", "ShownViews", "renewals"]

INTERNAL_PREFIX: Final = "__"  # Kafka's and Headwater's internal topics have no views
#: Between two looks at topics and tables.
LOOK_EVERY_S: Final = 1.0
#: A look at a local table takes some milliseconds: with many archives, looks take this part of a core at most.
LOOKING_SHARE_MAX: Final = 0.1
LOOK_AGAIN_S_MAX: Final = 30.0  # a look that waited for brokers has used no core
#: A registry's new schema adds columns without a commit. Of those that are so old, a look renews one: each takes some
#: hundred milliseconds, and other changes must not wait for them.
RENEWED_AFTER_S: Final = 60.0
#: Before a topic that failed is tried again.
AGAIN_AFTER_S: Final = 10.0
#: A view of a table by key fixes the log's end. Of those that records have come behind, a look renews the oldest for so
#: long, and none so soon again: with many busy topics, views after commits must not wait for them.
BEHIND_AFTER_S: Final = 1.0
BEHIND_LOOK_S: Final = 0.5
STOP_SECONDS_MAX: Final = 30.0


class ForeignTopics(Protocol):
    """What is known of topics and tables. Each function raises errors of its own."""

    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each topic of the cluster."""

    def archived(self, topic: str) -> tuple[Hashable, Hashable]:
        """What the view of an archived topic fixes: a state of its table, and for one by key the log's ends.

        Equal while the view need not be replaced; None for what it does not fix.
        """

    def rows(self, topic: str) -> DataFrame:
        """`topics.NAME`; statements that read it ask for the log's end."""

    def log(self, topic: str) -> DataFrame:
        """`log.NAME`; statements that read it ask for the log's end."""

    def make_tables(self) -> None:
        """Make those of `lake.NAME` that are there and are not made yet."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found of a topic.

    Attributes:
        partitions: Views read those that they were made with.
        archived: The state of its table, as by `ForeignTopics.archived`.
        ends: The log's ends, as by the same.
    """

    partitions: int = 1
    archived: Hashable = None
    ends: Hashable = None


@dataclass(frozen=True, slots=True)
class ShownViews:
    """What views of a topic show.

    Attributes:
        at_s: When they were made or tried, by the monotonic clock.
        failure: Why they could not be made; '' if they are.
        has_views: Whether there are views, if only older ones.
    """

    look: Look
    at_s: float
    failure: str = ""
    has_views: bool = True


def renewals(
    shown: Mapping[str, ShownViews], looks: Mapping[str, Look], now_s: float
) -> tuple[list[str], list[str], list[str]]:
    """The topics whose views are to be dropped; those whose are to be made; and those that records have come behind.

    Made are all that have changed, and the oldest. Of those behind, the oldest comes first.

    >>> shown = {
    ...     "a": ShownViews(Look(1, 7), 0.0),
    ...     "b": ShownViews(Look(), 0.0),
    ...     "c": ShownViews(Look(), 0.0, "unreachable"),
    ... }
    >>> renewals(shown, {"a": Look(1, 8), "c": Look(), "d": Look()}, 1.0)
    (['b'], ['a', 'd'], [])
    >>> renewals(shown, {"a": Look(1, 7), "b": Look(2), "c": Look()}, AGAIN_AFTER_S)
    ([], ['b', 'c'], [])
    >>> renewals({"a": ShownViews(Look(), 1.0), "b": ShownViews(Look(), 0.0)}, {"a": Look(), "b": Look()}, 100.0)
    ([], ['b'], [])
    >>> shown = {name: ShownViews(Look(1, 7, 40), at_s) for name, at_s in (("a", 3.0), ("b", 2.0), ("c", 1.0))}
    >>> renewals(shown, {"a": Look(1, 7, 41), "b": Look(1, 7, 41), "c": Look(1, 8, 41)}, 9.0)
    ([], ['c'], ['b', 'a'])
    """
    renewed, old, behind = [], [], []
    for topic, look in sorted(looks.items()):
        before = shown.get(topic)
        if before is None:
            renewed.append(topic)
            continue
        age_s = now_s - before.at_s
        is_other = (look.partitions, look.archived) != (before.look.partitions, before.look.archived)
        if age_s >= AGAIN_AFTER_S if before.failure else is_other:
            renewed.append(topic)
        elif before.failure:
            continue
        elif look.ends != before.look.ends:
            if age_s >= BEHIND_AFTER_S:
                behind.append((before.at_s, topic))
        elif age_s >= RENEWED_AFTER_S:
            old.append((before.at_s, topic))
    dropped = sorted(shown.keys() - looks.keys())
    return dropped, renewed + [topic for _, topic in sorted(old)[:1]], [topic for _, topic in sorted(behind)]


def with_views(topics: Iterable[str]) -> tuple[list[str], list[str]]:
    """The topics that have views, and those that have none because they differ in case only, which Spark ignores.

    >>> with_views(["b", "a", "A", "__consumer_offsets"])
    (['b'], ['A', 'a'])
    """
    known = [each for each in topics if not each.startswith(INTERNAL_PREFIX)]
    same = Counter(each.lower() for each in known)
    return (
        sorted(each for each in known if same[each.lower()] == 1),
        sorted(each for each in known if same[each.lower()] > 1),
    )


class ForeignViews:
    """Keeps views by a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        spark: SparkSession,
        views: ServedViews,
        topics: ForeignTopics,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` is called with a line about each topic whose views cannot be made, once for each reason."""
        self._tell = report
        self._spark = spark
        self._views = views
        self._topics = topics
        self._clock = clock
        self._shown: dict[str, ShownViews] = {}
        self._reported: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="foreign-views", daemon=True)

    def start(self) -> None:
        """Make the views, as far as they can be made, and keep them from then on."""
        jvm.activate(self._spark)
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Views stay as they are."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    def _run(self) -> None:
        jvm.activate(self._spark)
        looked_s = 0.0
        while not self._ended.wait(min(max(LOOK_EVERY_S, looked_s / LOOKING_SHARE_MAX), LOOK_AGAIN_S_MAX)):
            looked_s = self.look()

    def look(self) -> float:
        """One look: drop, make and replace what has changed. Reports failures, which leave the views as they are.

        Returns the seconds that it took to see what has changed.
        """
        began_s = self._clock()
        try:
            partitions = self._topics.partitions()
        except Exception as error:  # noqa: BLE001 - the listing's own; the next look asks again
            self._report("", f"topics cannot be listed: {first_line(error)}")
            return self._clock() - began_s
        known, ambiguous = with_views(partitions)
        self._report("", f"no views for topics that differ in case only: {', '.join(ambiguous)}" if ambiguous else "")
        found = {topic: self._look_at(topic, partitions[topic]) for topic in known}
        seen_s = self._clock()
        dropped, renewed, behind = renewals(self._shown, found, seen_s)
        for topic in dropped:
            try:
                self._views.forget(topic)
            except Exception as error:  # noqa: BLE001 - tried again by the next look
                self._report(topic, f"the views of {topic}, which is deleted, remain: {first_line(error)}")
            else:
                del self._shown[topic]
                self._reported.pop(topic, None)
        for topic in renewed:
            if self._ended.is_set():
                return seen_s - began_s
            self._renew(topic, found[topic])
        until_s = self._clock() + BEHIND_LOOK_S
        for topic in behind:
            if self._ended.is_set():
                return seen_s - began_s
            self._renew(topic, found[topic])
            if self._clock() >= until_s:
                break
        try:
            self._topics.make_tables()
        except Exception as error:  # noqa: BLE001 - as above
            self._report(" tables", f"tables of lake cannot be made: {first_line(error)}")
        else:
            self._report(" tables", "")
        return seen_s - began_s

    def _look_at(self, topic: str, partitions: int) -> Look:
        try:
            return Look(partitions, *self._topics.archived(topic))
        except Exception as error:  # noqa: BLE001 - one bad table stops no other topic
            self._report(topic, f"the table of {topic} cannot be looked at: {first_line(error)}")
            before = self._shown.get(topic)
            return Look(partitions) if before is None else before.look

    def _renew(self, topic: str, look: Look) -> None:
        before = self._shown.get(topic)
        try:
            self._views.keep(topic, self._topics.rows(topic), self._topics.log(topic))
        except Exception as error:  # noqa: BLE001 - one bad topic stops no other
            why = first_line(error)
            has_views = before is not None and before.has_views
            older = "; its views show an older state" if has_views else ""
            self._report(topic, f"the views of {topic} cannot be made: {why}{older}")
            kept = before.look if before is not None else look
            self._shown[topic] = ShownViews(kept, self._clock(), why, has_views)
            return
        self._report(topic, "")
        self._shown[topic] = ShownViews(look, self._clock())

    def _report(self, topic: str, what: str) -> None:
        if what and self._reported.get(topic) != what:
            self._tell(what)
        self._reported[topic] = what
