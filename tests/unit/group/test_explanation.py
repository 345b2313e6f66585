"""The line that explains a rebalance stays one line."""

from __future__ import annotations

from headwater.logtier.group.explanation import CAUSE_CHARS_MAX, CHANGES_MAX, Explanation


def test_a_client_cannot_break_the_line_or_fill_the_log() -> None:
    why = Explanation()
    why.begin(0)
    for _ in range(CHANGES_MAX + 5):
        why.add("member x joined", "\nforged line\r" + "x" * 100_000)
    line = why.finish("group g", 1)
    assert line.isprintable()
    assert line.endswith("and 5 more changes")
    assert len(line) < 2 * CHANGES_MAX * CAUSE_CHARS_MAX


def test_a_new_rebalance_does_not_name_the_causes_of_the_last() -> None:
    why = Explanation()
    why.add("one")
    why.finish("group g", 1)
    why.add("two")
    assert "one" not in why.finish("group g", 2)
