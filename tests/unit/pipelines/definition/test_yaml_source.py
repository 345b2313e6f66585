from __future__ import annotations

import pytest

from headwater.pipelines.definition import yaml_source
from headwater.pipelines.definition.yaml_source import read
from headwater.pipelines.errors import PipelineError


def refused(text: str) -> str:
    with pytest.raises(PipelineError) as caught:
        read(text, "f.yaml")
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_text_that_is_not_yaml_is_told_with_line_and_column() -> None:
    assert refused("a: 1\nb: [1, 2\nc: 3\n").startswith("f.yaml:3:2: not valid YAML:")


def test_a_tab_is_told() -> None:
    assert "f.yaml:2:1" in refused("a:\n\tb: 1\n")


def test_an_empty_file_says_how_to_start() -> None:
    assert "start with `pipeline: NAME`" in refused("# nothing\n")


def test_a_key_that_stands_twice_is_refused_with_both_lines() -> None:
    assert refused("a: 1\nb: 2\na: 3\n") == "f.yaml:3:1: a: 'a' is defined twice (first on line 1); remove one"


def test_a_file_over_the_limit_is_refused() -> None:
    assert "larger than" in refused("a: " + "x" * yaml_source.FILE_BYTES_MAX)


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_deep_nesting_is_refused_before_anything_recurses(opening: str) -> None:
    assert "nested deeper than" in refused(opening * 50_000)


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "once aliases are expanded" in refused("\n".join(lines))


def test_an_alias_of_itself_is_refused() -> None:
    assert "once aliases are expanded" in refused("a: &a [*a]\n")


def test_a_key_that_is_no_text_is_refused() -> None:
    assert "a field's name must be text" in refused("? [a, b]\n: 1\n")


def test_values_have_the_marks_of_their_place() -> None:
    document = read("a:\n  - b: 1\n    c: |\n      one\n      two\n", "f.yaml")
    assert document.values == {"a": [{"b": 1, "c": "one\ntwo\n"}]}
    assert (document.mark(("a", 0, "b")).line, document.mark(("a", 0, "b")).column) == (2, 8)
    assert document.mark(("a", 0, "c")).block == 4
    assert document.key_mark(("a", 0, "c")).line == 3
    assert document.mark(("a", 0, "nowhere", "at", "all")).line == 2


@pytest.mark.parametrize(
    ("text", "column", "shown"),
    [
        ("to: {topic: ${name}}", 13, "${name}"),
        ("to: {topic: orders_${name}/x, key: a}", 13, "orders_${name}/x"),
        ("to: [a, ${one}${two}]", 9, "${one}${two}"),
        ("to: {password: ${env:PW}}", 16, "${env:PW}"),
        ("to: {topic: ${name}", 13, "${name}"),
    ],
)
def test_an_unquoted_variable_inside_braces_is_told_with_its_quotes(text: str, column: int, shown: str) -> None:
    what = f"{shown} is not quoted: inside braces and brackets, YAML reads its brace as a mapping"
    assert refused(f'# ${{x}}\na: "${{y}}"\n{text}\n') == f'f.yaml:3:{column}: {what}; quote it: "{shown}"'


def test_other_mistakes_inside_braces_are_told_as_before() -> None:
    for text in ("a: {b: 1 {c: 2}}", "a: {b: ${c", "a: {b: $ {c}}"):
        assert "not valid YAML: while parsing a flow" in refused(text)


def test_a_long_unquoted_variable_is_found_at_once_and_cut() -> None:
    assert len(refused(f"a: {{b: {'x' * 200_000}${{c}}}}")) < 400


def test_braces_of_a_template_language_are_told() -> None:
    assert refused("a: {{ name }}\n").endswith(
        'a field\'s name must be text; a variable is written "${name}", in quotes'
    )
