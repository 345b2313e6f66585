"""Regular expressions over topic names: RE2's syntax, whole names, and the limits on an expression."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.protocol.name_regex import MEMORY_BYTES_MAX, REGEX_BYTES_MAX, InvalidRegexError, NameRegex

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
    regex = NameRegex(expression)
    for name in names:
        assert regex.matches(name) == (expected.fullmatch(name) is not None)


@given(text=st.text(max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidRegexError):
        NameRegex(text).matches("orders")


def test_what_holds_up_a_backtracking_engine_for_hours_is_answered() -> None:
    # 2 ** 249 ways to try.
    assert not NameRegex("(a|aa|a*)*b").matches("a" * 249)
    assert NameRegex("(a?){100}a{100}").matches("a" * 100)


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
        ("(" * 200 + "a" + ")" * 200, ["a"], ["b"]),
        (".", ["a", "ü"], ["", "ab", "\n"]),  # a transactional id may hold any character
        (r"\p{Greek}+", ["αβγ"], ["abc"]),
    ],
)
def test_the_syntax_is_re2s(expression: str, matching: list[str], others: list[str]) -> None:
    regex = NameRegex(expression)
    assert [name for name in [*matching, *others] if regex.matches(name)] == matching


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("[", "missing ] in `[`"),
        ("(", "missing ) in `(`"),
        (")", "unexpected ) in `)`"),
        ("a**", "bad repetition operator in `**`"),
        ("*a", "no argument for repetition operator in `*`"),
        ("{2}", "no argument for repetition operator in `{2}`"),
        (r"\1", r"invalid escape sequence in `\1`"),
        (r"(a)\1", r"invalid escape sequence in `\1`"),
        ("(?=a)", "invalid perl operator in `(?=`"),
        ("(?<=a)b", "invalid perl operator in `(?<=`"),
        ("(?z)", "invalid perl operator in `(?z`"),
        ("a{1001}", "invalid repetition size in `{1001}`"),
        ("a{2,1}", "invalid repetition size in `{2,1}`"),
        ("((a{100}){100}){100}", "invalid repetition size in `{100}`"),
        ("(?:[xy]?){1000}" * 6, f"its program needs more than {MEMORY_BYTES_MAX >> 10} KiB"),
        (r"\pL{1000}", f"its program needs more than {MEMORY_BYTES_MAX >> 10} KiB"),
        ("a" * (REGEX_BYTES_MAX + 1), f"it has {REGEX_BYTES_MAX + 1} bytes, and at most {REGEX_BYTES_MAX} are allowed"),
        ("\\", "trailing \\"),
        ("[b-a]", "invalid character class range in `b-a`"),
        (r"\p{Klingon}", r"invalid character class range in `\p{Klingon}`"),
        ("(?P<>a)", "invalid named capture group in `(?P<>`"),
        (r"\x{110000}", r"invalid escape sequence in `\x{110000`"),
    ],
)
def test_an_expression_that_is_none_is_refused_with_the_reason(
    expression: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidRegexError, match=re.escape(why)):
        NameRegex(expression)
    assert capfd.readouterr() == ("", ""), "RE2 logs nothing"


def test_names_are_matched_without_the_automaton_when_it_exceeds_the_memory(capfd: pytest.CaptureFixture[str]) -> None:
    # The automaton of this expression has 2 ** 15 states.
    regex = NameRegex("[ab]*a[ab]{14}")
    for number in range(3000):
        name = f"{number:015b}".replace("0", "a").replace("1", "b")
        assert regex.matches(name) == (name[0] == "a")
    assert capfd.readouterr() == ("", ""), "RE2 logs nothing"


def test_an_expression_at_the_limit_of_bytes_is_read() -> None:
    regex = NameRegex("|".join(f"t{number:03}-orders-of-a-country" for number in range(163))[:REGEX_BYTES_MAX])
    assert regex.matches("t100-orders-of-a-country")
    assert regex.size < 10_000
