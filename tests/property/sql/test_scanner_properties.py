"""No text makes the scanner lose a character, and a text divided at its semicolons is the same text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.sql_text.scanner import SqlTokenKind, statements, tokens

TEXT = st.text(st.sampled_from("ab1 \n\t;'\"`\\-/*.,:rR()é"), max_size=60)
# Parts that are whole by themselves, whatever follows.
PARTS = st.sampled_from(["a", "'x;y'", '"x;y"', "`x;y`", "r'\\'", "/* ; */", "-- ;\n", "'\\';'", " ", "1", "'';", "''"])


@given(TEXT)
def test_between_tokens_there_is_only_white_space(text: str) -> None:
    at = 0
    for token in tokens(text):
        assert text[at : token.start].strip() == ""
        assert token.text
        assert text[token.start : token.end] == token.text
        at = token.end
    assert text[at:].strip() == ""


@given(TEXT)
def test_only_the_last_token_can_be_open(text: str) -> None:
    seen = list(tokens(text))
    assert not any(token.is_open for token in seen[:-1])


@given(st.lists(PARTS.filter(lambda part: not part.endswith("';")), min_size=1, max_size=5), st.integers(1, 4))
def test_statements_that_are_joined_are_divided_again(parts: list[str], count: int) -> None:
    one = "SELECT " + " ".join(parts)
    text = ";\n".join([one] * count)
    found = statements(text)
    assert len(found) == count
    assert [each.line for each in found] == [1 + i * (one.count("\n") + 1) for i in range(count)]
    for each in found:
        expected = [token.text for token in tokens(one) if token.kind is not SqlTokenKind.COMMENT]
        assert [token.text for token in tokens(each.text) if token.kind is not SqlTokenKind.COMMENT] == expected
