from __future__ import annotations

import struct

import pytest

from headwater.logtier.client.connection import RESPONSE_BYTES_MAX, BrokerConnection, Request, Response
from headwater.logtier.client.errors import InvalidResponseError


def request(*, tagged: bool = False) -> Request[bytes]:
    return Request(3, 12, tagged, b"body", bytes, tagged)


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def feed(connection: BrokerConnection, data: bytes, *, piece: int) -> list[Response[object]]:
    """Writes the bytes in pieces, as a socket would deliver them."""
    responses = []
    while data:
        buffer = connection.get_buffer()
        count = min(piece, len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        response = connection.buffer_updated(count)
        if response is not None:
            responses.append(response)
    return responses


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_responses_are_correlated_in_order_however_the_bytes_are_cut(piece: int) -> None:
    connection = BrokerConnection("test")
    ids = [connection.send(request())[0] for _ in range(3)]
    data = b"".join(frame(correlation_id, b"answer %d" % correlation_id) for correlation_id in ids)
    responses = feed(connection, data, piece=piece)
    assert [(response.correlation_id, response.value) for response in responses] == [
        (correlation_id, b"answer %d" % correlation_id) for correlation_id in ids
    ]
    assert connection.in_flight == 0


def test_a_request_carries_its_header_and_size() -> None:
    _, data = BrokerConnection("me").send(request(tagged=True))
    assert data == struct.pack(">ihhih", 8 + 4 + 1 + 4, 3, 12, 0, 2) + b"me" + b"\0" + b"body"


def test_tagged_fields_of_a_response_header_are_skipped() -> None:
    connection = BrokerConnection("test")
    connection.send(request(tagged=True))
    (response,) = feed(connection, frame(0, b"\x01\x07\x02xy" + b"answer"), piece=100)
    assert response.value == b"answer"


@pytest.mark.parametrize("size", [-1, 0, 3, RESPONSE_BYTES_MAX + 1, 2**31 - 1])
def test_a_hostile_length_is_refused_before_memory_is_taken(size: int) -> None:
    connection = BrokerConnection("test")
    connection.send(request())
    with pytest.raises(InvalidResponseError, match="outside the limits"):
        feed(connection, struct.pack(">i", size), piece=4)


def test_a_response_to_no_request_is_refused() -> None:
    with pytest.raises(InvalidResponseError, match="to no request"):
        feed(BrokerConnection("test"), frame(0, b""), piece=100)


def test_a_wrong_correlation_id_is_refused() -> None:
    connection = BrokerConnection("test")
    connection.send(request())
    with pytest.raises(InvalidResponseError, match="correlation id 5 where 0 was due"):
        feed(connection, frame(5, b""), piece=100)


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x01\x00\x7f", b"\xff\xff\xff\xff\xff\xff"])
def test_cut_off_tagged_fields_are_refused(body: bytes) -> None:
    connection = BrokerConnection("test")
    connection.send(request(tagged=True))
    with pytest.raises(InvalidResponseError, match="cannot be decoded"):
        feed(connection, frame(0, body), piece=100)


def test_an_answer_in_tls_is_called_so() -> None:
    connection = BrokerConnection("me")
    connection.get_buffer()[:4] = b"\x15\x03\x03\x00"
    with pytest.raises(InvalidResponseError, match="speaks TLS"):
        connection.buffer_updated(4)
