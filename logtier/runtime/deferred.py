"""Awaitables that begin when they are awaited."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Deferred(Awaitable[T], Generic[T]):
    """Makes its awaitable when it is awaited, once.

    A coroutine or future that a request has made, and does not await because its client has gone, would leave a warning
    behind.
    """

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Awaitable[T]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begin().__await__()
