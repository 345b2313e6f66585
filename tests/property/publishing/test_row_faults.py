"""The first faulty row is found whichever rows are faulty, in few attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.publishing.row_faults import first_failing


@given(st.integers(0, 5_000), st.sets(st.integers(0, 4_999), max_size=8))
def test_the_first_faulty_position_is_found(count: int, faulty: set[int]) -> None:
    attempts = 0

    def fails(low: int, high: int) -> str | None:
        nonlocal attempts
        attempts += 1
        return "bad" if any(low <= position < high for position in faulty) else None

    inside = [position for position in faulty if position < count]
    assert first_failing(count, fails) == (min(inside) if inside else None)
    assert attempts <= 1 + 2 * count.bit_length()
