"""Where groups live in `__consumer_offsets`."""

from __future__ import annotations

import pytest

from logtier.group.consumer_protocol import all_subscribed_topics, subscribed_topics
from logtier.group.offsets_topic import partition_for


@pytest.mark.parametrize(
    ("group_id", "java_hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("äöü", 226986),
        ("\U0001f600", 1772899),
    ],
)
def test_a_groups_partition_is_that_of_javas_hash_code(group_id: str, java_hash_code: int) -> None:
    positive = 0 if java_hash_code == -(2**31) else abs(java_hash_code)
    assert [partition_for(group_id, count) for count in (1, 50, 1000)] == [positive % count for count in (1, 50, 1000)]


@pytest.mark.parametrize("data", [b"", b"\0\0", bytes.fromhex("0000 7fffffff"), bytes.fromhex("0000 00000001 0005 61")])
def test_a_subscription_that_cannot_be_read_is_no_subscription(data: bytes) -> None:
    assert subscribed_topics(data) is None
    assert all_subscribed_topics([bytes.fromhex("0000 00000000"), data]) is None
