"""A script of what happens to files, and brokers that are part of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from headwater.shipping.file_patterns import FilePatterns
from headwater.shipping.line_sender import LineSender
from headwater.shipping.shipped_positions import load_positions
from headwater.shipping.shipper import SCAN_S, Shipper
from headwater.shipping.summary import Summary
from headwater.shipping.topic_limits import TopicLimits

Script = Iterator[float]
"""Does something to the files, then says how many seconds pass."""


class Crash(Exception):
    """The process ends here, and notes nothing."""


class Refusal:
    """One of librdkafka's errors."""

    def __init__(self, code: str) -> None:
        self.code = code

    def name(self) -> str:
        return self.code

    def str(self) -> str:
        return f"Broker: {self.code}"

    def fatal(self) -> bool:
        return False


class Brokers:
    """Takes lines, unless it is away: then its queue holds a few and nothing is acknowledged."""

    def __init__(self, queue_max: int = 2) -> None:
        self.lines: list[tuple[str, str]] = []
        self.is_away = False
        self.now_s = 0.0
        self.wait: Callable[[], None] = lambda: None
        #: Why a line is refused, if it is.
        self.refusal: Callable[[bytes], str | None] = lambda _: None
        self.properties: list[dict[str, Any]] = []
        #: What the topic's config says; None: nobody tells.
        self.limit: int | None = None
        self._queue_max = queue_max
        self._queue: list[tuple[Callable[[], None], Callable[[str], None]]] = []

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.lines]

    def make_producer(self, properties: dict[str, Any]) -> Producer:
        self.properties.append(properties)
        return cast(Producer, self)

    def ask_limits(self, _: Mapping[str, Any]) -> AnsweredLimits:
        return AnsweredLimits(None if self.limit is None else TopicLimits(self.limit))

    def produce(self, _topic: str, text: bytes, key: bytes, *, headers: Any, on_delivery: Any) -> None:
        if self.is_away and len(self._queue) >= self._queue_max:
            raise BufferError

        def take() -> None:
            if (reason := self.refusal(text)) is not None:
                refuse(reason)
            else:
                self.lines.append((Path(os.fsdecode(key)).name, text.decode()))
                on_delivery(None, None)

        def refuse(reason: str) -> None:
            on_delivery(Refusal(reason), None)

        self._queue.append((take, refuse))

    def poll(self, timeout_s: float) -> int:
        self.flush()
        if timeout_s:
            self.wait()
        return 0

    def flush(self, _timeout_s: float = 0) -> int:
        while self._queue and not self.is_away:
            self._queue.pop(0)[0]()
        return len(self._queue)

    def purge(self) -> None:
        queue, self._queue = self._queue, []
        for _, refuse in queue:
            refuse("_PURGE_QUEUE")


class AnsweredLimits:
    """A question for limits, answered at once."""

    def __init__(self, limits: TopicLimits | None) -> None:
        self._limits = limits

    def poll(self) -> None:
        pass

    def is_done(self) -> bool:
        return True

    def answer(self) -> TopicLimits | None:
        return self._limits


class Runs:
    """Runs shippers of one file of positions, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.brokers = Brokers()
        self.folder = folder
        self.positions = str(folder.parent / "positions.json")

    def run(self, script: Script, *patterns: str, excluded: Sequence[str] = (), **options: Any) -> Summary:
        """Until the script is at its end; whenever the shipper waits the script goes on, then time passes."""
        monotonic_s = lambda: self.brokers.now_s  # noqa: E731
        sender = LineSender(
            "t",
            {},
            make_producer=self.brokers.make_producer,
            ask_limits=self.brokers.ask_limits,
            monotonic_s=monotonic_s,
        )
        shipper = Shipper(
            sender,
            FilePatterns([str(self.folder / pattern) for pattern in patterns], excluded),
            self.positions,
            monotonic_s=monotonic_s,
            **options,
        )

        def wait() -> None:
            try:
                self.brokers.now_s += next(script)
            except StopIteration:
                # Once: what is under way is waited for.
                self.brokers.wait = lambda: None
                shipper.stop()

        self.brokers.wait = wait
        return shipper.run()

    def crash(self, script: Script, *patterns: str) -> None:
        """What is under way never arrives."""

        def crashing() -> Script:
            yield from script
            raise Crash

        with pytest.raises(Crash):
            self.run(crashing(), *patterns)
        self.brokers._queue.clear()
        self.brokers.is_away = False

    def known(self) -> dict[str, int]:
        """The offsets by the name of the file."""
        return {Path(known.path).name: known.position.offset for known in load_positions(self.positions).values()}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    (tmp_path / "logs").mkdir()
    return Runs(tmp_path / "logs")


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def pause(seconds: float = 2 * SCAN_S) -> Script:
    """Time passes in small pieces, so that names are looked up meanwhile."""
    for _ in range(round(seconds / SCAN_S)):
        yield SCAN_S
