import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.network.connection import INITIAL_BUFFER_BYTES, KEPT_BUFFER_BYTES, RequestFramer
from headwater.logtier.protocol.errors import ProtocolViolationError


def feed(framer: RequestFramer, data: bytes, chunk: int) -> list[bytes]:
    frames = []
    position = 0
    while position < len(data):
        buffer = framer.get_buffer()
        piece = data[position : position + min(chunk, len(buffer))]
        buffer[: len(piece)] = piece
        framer.received(len(piece))
        position += len(piece)
        while (frame := framer.next_frame()) is not None:
            frames.append(bytes(frame))
    return frames


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


@given(
    st.lists(st.integers(10, 5 * INITIAL_BUFFER_BYTES), min_size=1, max_size=8),
    st.integers(1, 3 * INITIAL_BUFFER_BYTES),
)
def test_frames_come_out_whole_and_in_order_however_the_bytes_are_cut(sizes: list[int], chunk: int) -> None:
    payloads = [bytes([index]) * size for index, size in enumerate(sizes)]
    framer = RequestFramer(10 * INITIAL_BUFFER_BYTES)
    assert feed(framer, b"".join(map(framed, payloads)), max(chunk, 100)) == payloads
    assert not framer.has_frame


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 9])
def test_a_hostile_length_is_refused(length: int) -> None:
    framer = RequestFramer(1000)
    with pytest.raises(ProtocolViolationError, match=f"claims a size of {length} bytes"):
        feed(framer, struct.pack(">i", length), 4)


def test_a_frame_over_the_limit_is_refused_before_a_buffer_is_made_for_it() -> None:
    framer = RequestFramer(1000)
    with pytest.raises(ProtocolViolationError, match="over the limit of 1000"):
        feed(framer, struct.pack(">i", 1001), 4)
    assert len(framer._buffer) == INITIAL_BUFFER_BYTES


def test_a_refused_length_counts_as_a_frame_so_that_reading_stops() -> None:
    framer = RequestFramer(1000)
    framer.get_buffer()[:4] = struct.pack(">i", -5)
    framer.received(4)
    assert framer.has_frame


def test_a_large_buffer_is_given_back_when_it_is_empty() -> None:
    framer = RequestFramer(10 << 20)
    payload = bytes(2 * KEPT_BUFFER_BYTES)
    assert feed(framer, framed(payload), 1 << 20) == [payload]
    # Without another byte: a client may be silent from now on.
    assert len(framer._buffer) == INITIAL_BUFFER_BYTES


def test_a_frame_keeps_its_bytes_while_more_are_received_until_the_next_one_is_asked_for() -> None:
    framer = RequestFramer(10 * INITIAL_BUFFER_BYTES)
    first, second = bytes(range(1, 101)), b"x" * 3 * INITIAL_BUFFER_BYTES
    buffer = framer.get_buffer()
    buffer[:104] = framed(first)
    framer.received(104)
    frame = framer.next_frame()
    assert frame is not None
    received = 0
    data = framed(second)
    while received < len(data):
        buffer = framer.get_buffer()
        piece = data[received : received + min(len(buffer), 1000)]
        buffer[: len(piece)] = piece
        framer.received(len(piece))
        received += len(piece)
    assert bytes(frame) == first
    following = framer.next_frame()
    assert following is not None
    assert bytes(following) == second
