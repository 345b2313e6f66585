"""Whatever bytes come as a request: it is read, or refused in one line, and takes no memory to speak of."""

from __future__ import annotations

import contextlib
import random
import resource
import struct
from itertools import chain
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema

from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ProtocolViolationError
from tests.hostile_messages import cuts, lies
from tests.kio_messages import filled, tokens

MEMORY_KIB_MAX = 64 * 1024
FLIPS = 50


@pytest.mark.parametrize("api_key", HANDLERS, ids=messages.api_name)
def test_a_hostile_request_is_read_or_refused_without_much_memory(api_key: int) -> None:
    first, last = HANDLERS[api_key].VERSIONS
    noise = random.Random(api_key)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for version in range(first, last + 1):
        schema: Any = load_request_schema(api_key, version)
        flexible = b"\x00" if messages.is_flexible(api_key, version) else b""
        header = struct.pack(">hhih", api_key, version, 7, 1) + b"c" + flexible
        parts = tokens(filled(schema))
        whole = b"".join(part.data for part in parts)
        flipped = [bytearray(whole) for _ in range(FLIPS if whole else 0)]
        for copy in flipped:
            for _ in range(noise.choice([1, 1, 2, 8])):
                copy[noise.randrange(len(copy))] = noise.randrange(256)
        for body in chain(cuts(parts), lies(parts), map(bytes, flipped)):
            frame = header + body
            with contextlib.suppress(ProtocolViolationError):
                messages.read_request(messages.read_request_header(frame), memoryview(frame))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MEMORY_KIB_MAX


@pytest.mark.parametrize("api_key", HANDLERS, ids=messages.api_name)
def test_a_request_that_is_cut_at_a_field_is_refused(api_key: int) -> None:
    first, last = HANDLERS[api_key].VERSIONS
    for version in range(first, last + 1):
        flexible = b"\x00" if messages.is_flexible(api_key, version) else b""
        header = struct.pack(">hhih", api_key, version, 7, 1) + b"c" + flexible
        for body in cuts(tokens(filled(load_request_schema(api_key, version)))):
            frame = header + body
            with pytest.raises(ProtocolViolationError):
                messages.read_request(messages.read_request_header(frame), memoryview(frame))


@pytest.mark.parametrize("version", [1, 9, 12])
def test_a_hostile_response_is_read_or_refused_by_our_client(version: int) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = {
        "topics": (),
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    request = kio_request(ApiKey.METADATA, version, values)
    parts = tokens(filled(load_response_schema(ApiKey.METADATA, version)))
    request.decode(memoryview(b"".join(part.data for part in parts)))
    for body in chain(cuts(parts), lies(parts)):
        with contextlib.suppress(ValueError):
            request.decode(memoryview(body))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MEMORY_KIB_MAX
