"""Regular expressions over topic names: RE2's syntax and answers, and a backtracking engine's, in linear time."""

from __future__ import annotations

import contextlib
import re

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.group.regex_syntax import InvalidRegexError
from headwater.logtier.group.topic_regex import TopicRegex

_atoms = st.sampled_from(["a", "b", "c", "_", "-", r"\.", ".", "[a-c]", "[^ab]", r"\d", r"\w", r"\W", "^", "$", r"\b"])
_repetitions = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?"])
expressions = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, _repetitions).map(lambda pair: f"({pair[0]}){pair[1]}"),
        inner.map(lambda text: f"(?P<n{abs(hash(text))}>{text})"),
    ),
    max_leaves=12,
)


@given(expression=expressions, names=st.lists(st.text("abc1._-", max_size=8), max_size=6))
def test_it_matches_what_pythons_engine_matches(expression: str, names: list[str]) -> None:
    try:
        expected = re.compile(expression)
    except re.error:  # a group's name twice
        return
    regex = TopicRegex(expression)
    for name in names:
        assert regex.matches(name) == (expected.fullmatch(name) is not None)


_pieces = st.sampled_from(
    [*"ab.*+?(){}[]|^$\\-1,23:=<>!P_iUsmdwWDSQEpLNxAzbB ", "[:alpha:]", "[^[:digit:]]", r"\pL", r"\p{Nd}", "(?i)",
     "(?P<n>", r"\Q", r"\E", r"\x41", r"\d"]
)  # fmt: skip
_quiet = re2.Options()
_quiet.log_errors = False


@given(
    expression=expressions | st.lists(_pieces, max_size=8).map("".join),
    names=st.lists(st.text("abcAB1._-", max_size=8), max_size=6),
)
def test_it_is_an_expression_and_matches_as_re2_says(expression: str, names: list[str]) -> None:
    try:
        expected = re2.compile(expression, _quiet)
    except re2.error:
        with pytest.raises(InvalidRegexError):
            TopicRegex(expression)
        return
    try:
        regex = TopicRegex(expression)
    except InvalidRegexError:
        # RE2 lets a repetition stand behind flags, where it means nothing.
        assert re.search(r"\(\?[imsU-]+\)[*+?{]", expression), expression
        return
    for name in names:
        assert regex.matches(name) == (expected.fullmatch(name) is not None)


@given(text=st.text(max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidRegexError):
        TopicRegex(text).matches("orders")


def test_what_holds_up_a_backtracking_engine_for_hours_is_answered() -> None:
    # 2 ** 249 ways to try.
    assert not TopicRegex("(a|aa|a*)*b").matches("a" * 249)
    assert TopicRegex("(a?){100}a{100}").matches("a" * 100)


@pytest.mark.parametrize(
    ("expression", "matching", "others"),
    [
        ("orders", ["orders"], ["orders-2", "my-orders"]),
        ("(?i)ORDERS.*", ["orders-1", "Orders"], ["order"]),
        ("(?i:a)b", ["ab", "Ab"], ["aB"]),
        (r"\Qa.b\E-[0-9]{2}", ["a.b-12"], ["axb-12", "a.b-1"]),
        ("[[:alpha:]_]+", ["ab_c"], ["ab-c"]),
        ("[^[:digit:]]+", ["ab"], ["a1"]),
        (r"[\w.-]+", ["a.b-c_1"], [""]),
        (r"\x61\x{62}\143", ["abc"], ["ab"]),
        (r"\60\061", ["01"], ["60"]),
        (r"\pL+\p{Nd}", ["ab1"], ["1", "a-1"]),
        (r"\Atopic\z", ["topic"], ["topic1"]),
        (r"a\b-", ["a-"], []),
        ("", [""], ["a"]),
        ("a|", ["", "a"], ["b"]),
        ("[]a]", ["a"], ["b"]),
        ("x{,2}", [], ["xx"]),
        ("(^t.*)|(^zz.*)", ["t1", "zz-2"], ["z"]),
    ],
)
def test_the_syntax_is_re2s(expression: str, matching: list[str], others: list[str]) -> None:
    regex = TopicRegex(expression)
    assert [name for name in [*matching, *others] if regex.matches(name)] == matching


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("[", "missing closing ]"),
        ("(", "missing closing )"),
        (")", "unexpected )"),
        ("a**", "invalid nested repetition operator"),
        ("*a", "missing argument to repetition operator"),
        ("{2}", "missing argument to repetition operator"),
        (r"\1", "invalid escape sequence"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<=a)b", "invalid or unsupported Perl syntax"),
        ("(?z)", "invalid or unsupported Perl syntax"),
        ("a{1001}", "invalid repeat count"),
        ("a{2,1}", "invalid repeat count"),
        ("((a{100}){100}){100}", "too large"),
        ("(" * 200 + ")" * 200, "groups within each other"),
        ("\\", "trailing backslash"),
        ("[b-a]", "invalid character class range"),
        (r"\p{Klingon}", "invalid character class range"),
        ("(?P<>a)", "invalid named capture"),
        (r"\x{110000}", "invalid escape sequence"),
    ],
)
def test_an_expression_that_is_none_is_refused_with_the_reason(expression: str, why: str) -> None:
    with pytest.raises(InvalidRegexError, match=re.escape(why)):
        TopicRegex(expression)


def test_the_automaton_stays_small() -> None:
    # Its deterministic automaton has 2 ** 15 states.
    regex = TopicRegex("[ab]*a[ab]{14}")
    for number in range(3000):
        name = f"{number:015b}".replace("0", "a").replace("1", "b")
        assert regex.matches(name) == (name[0] == "a")
    assert len(regex._states) <= 1001
