from __future__ import annotations

import pytest

from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.publishing.transaction_size import PARTS_MAX, parts_needed, rows_limit


def test_large_rows_and_short_transactions_leave_fewer_rows() -> None:
    usual = rows_limit(1_000_000, 100 << 20, 900_000)
    assert rows_limit(1_000_000, 100 << 30, 900_000) < usual
    assert rows_limit(1_000_000, 100 << 20, 60_000) < usual
    assert rows_limit(0, 0, 900_000) == usual
    assert rows_limit(10, 10 << 40, 1_000) == 1


def test_one_transaction_is_the_rule_and_several_are_asked_for() -> None:
    assert parts_needed(0, 10, is_split=False, timeout_ms=1) == 1
    assert parts_needed(10, 10, is_split=True, timeout_ms=1) == 1
    with pytest.raises(PublishRefused, match=r"11 rows are too many .* 900,000 ms about 10 are safe; --split"):
        parts_needed(11, 10, is_split=False, timeout_ms=900_000)
    assert parts_needed(11, 10, is_split=True, timeout_ms=1) == 2
    with pytest.raises(PublishRefused, match="at most 1,000 are made"):
        parts_needed(PARTS_MAX + 1, 1, is_split=True, timeout_ms=1)
