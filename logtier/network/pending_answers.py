"""The answers of one connection that are not sent yet, in the order of the requests."""

import asyncio
from collections import deque
from collections.abc import Sequence

from headwater.logtier.runtime.network import Part

#: The response of one request: its parts in order, or None for a request without a response (acks=0).
Response = Sequence[Part] | None

#: Produce requests of a connection that may wait for their acknowledgement at the same time.
OVERLAPPING_MAX = 64
#: Bytes of their frames beyond which no further one is served. What is kept of a request is no record, but can be 46
#: times as large as its frame, if it names many topics.
OVERLAPPING_BYTES_MAX = 512 << 10


def failed(error: BaseException) -> "asyncio.Future[Response]":
    """Return an answer that is an error."""
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    answer.set_exception(error)
    return answer


class PendingAnswers:
    """Responses that are there or will be, each behind those of earlier requests."""

    __slots__ = ("_answers", "_frame_bytes")

    def __init__(self) -> None:
        self._answers: deque[tuple[int, asyncio.Future[Response] | Response]] = deque()
        self._frame_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._answers)

    @property
    def have_room(self) -> bool:
        """Whether one more request may be carried out before the earlier ones are answered."""
        return len(self._answers) < OVERLAPPING_MAX and self._frame_bytes < OVERLAPPING_BYTES_MAX

    def add(self, answer: "asyncio.Future[Response] | Response", frame_bytes: int) -> None:
        """Add the answer of a request whose frame has so many bytes."""
        self._answers.append((frame_bytes, answer))
        self._frame_bytes += frame_bytes

    def take_ready(self) -> tuple[list[Part], BaseException | None]:
        """Remove the first answers that are there; return their parts, and the error of the last one, if it has one."""
        parts: list[Part] = []
        answers = self._answers
        while answers:
            frame_bytes, answer = answers[0]
            if isinstance(answer, asyncio.Future) and not answer.done():
                break
            answers.popleft()
            self._frame_bytes -= frame_bytes
            if isinstance(answer, asyncio.Future):
                # Not raised: the traceback would refer to this frame, and so keep the request alive.
                error = None if answer.cancelled() else answer.exception()
                if error is not None:
                    return parts, error
                answer = None if answer.cancelled() else answer.result()
            parts.extend(answer or ())
        return parts, None

    def cancel(self) -> None:
        """Cancel all of them; nobody waits for them any longer."""
        answers, self._answers = self._answers, deque()
        for _, answer in answers:
            if isinstance(answer, asyncio.Future):
                answer.cancel()
