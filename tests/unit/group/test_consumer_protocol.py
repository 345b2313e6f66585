"""Subscriptions that cannot be read."""

from __future__ import annotations

import pytest

from headwater.logtier.group.consumer_protocol import all_subscribed_topics, subscribed_topics


@pytest.mark.parametrize("data", [b"", b"\0\0", bytes.fromhex("0000 7fffffff"), bytes.fromhex("0000 00000001 0005 61")])
def test_a_subscription_that_cannot_be_read_is_no_subscription(data: bytes) -> None:
    assert subscribed_topics(data) is None
    assert all_subscribed_topics([bytes.fromhex("0000 00000000"), data]) is None
