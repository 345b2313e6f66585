"""A resource that its first use opens, and that is given up when idle."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from headwater.cli.sql_service.held_resource import HeldResource
from tests.waiting import until


class Lab:
    """A resource that counts, kept by a thread of its own; its clock is set by hand."""

    def __init__(self) -> None:
        self.opened = 0
        self.is_open = False
        self.failure: Exception | None = None
        self.now = 0.0
        self._over = threading.Event()
        self.held: HeldResource[int] = HeldResource(self._open, 10, lambda: self.now)
        self._thread = threading.Thread(target=self.held.keep, args=(lambda _: self._over.is_set(),))

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        if self.failure is not None:
            raise self.failure
        self.opened += 1
        self.is_open = True
        try:
            yield self.opened
        finally:
            self.is_open = False

    def __enter__(self) -> Lab:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def nothing() -> None:
    pass


def test_it_is_opened_by_its_first_use_and_shared(lab: Lab) -> None:
    assert lab.opened == 0
    with lab.held.used(nothing) as one, lab.held.used(nothing) as two:
        assert (one, two) == (1, 1)


def test_it_is_closed_when_idle_and_opened_again(lab: Lab) -> None:
    with lab.held.used(nothing):
        lab.now = 100
    assert lab.is_open  # idle since 100
    lab.now = 110
    until(lambda: not lab.is_open)
    with lab.held.used(nothing) as value:
        assert value == 2


def test_it_is_not_closed_in_use(lab: Lab) -> None:
    closed_in_use = []
    with lab.held.used(nothing):
        lab.now = 1_000
        with lab.held.used(nothing):
            closed_in_use.append(lab.is_open)
        lab.now = 2_000
        # The keeper looks again and again meanwhile.
        threading.Event().wait(1.2)
        closed_in_use.append(lab.is_open)
    assert closed_in_use == [True, True]


def test_a_failure_is_that_of_its_users_and_the_next_use_tries_again(lab: Lab) -> None:
    lab.failure = ValueError("no JVM")
    with pytest.raises(ValueError, match="no JVM"), lab.held.used(nothing):
        pass
    lab.failure = None
    with lab.held.used(nothing) as value:
        assert value == 1


def test_who_waits_can_give_up() -> None:
    lab = Lab()  # nobody keeps it, so it is never opened

    def give_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), lab.held.used(give_up):
        pass


def raises(error: type[BaseException]) -> Callable[[object], bool]:
    def is_over(value: object) -> bool:
        if value is not None:
            raise error
        return False

    return is_over


def test_a_signal_ends_the_keeper_and_closes() -> None:
    lab = Lab()
    ended = []

    def keep() -> None:
        try:
            lab.held.keep(raises(KeyboardInterrupt))
        except KeyboardInterrupt:
            ended.append(lab.is_open)

    keeper = threading.Thread(target=keep)
    keeper.start()

    def give_up_after_it() -> None:
        if not keeper.is_alive():
            raise TimeoutError

    with contextlib.suppress(TimeoutError), lab.held.used(give_up_after_it):
        pass
    keeper.join()
    assert ended == [False]
