"""Statements, names and parameters, where quotes, comments and escapes could mislead."""

from __future__ import annotations

import pytest

from headwater.pipelines.sql_text.scanner import names, parameters, statements, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT ';'; SELECT \";\"", ["SELECT ';'", 'SELECT ";"']),
        ("SELECT 'it\\'s; one'; SELECT 2", ["SELECT 'it\\'s; one'", "SELECT 2"]),
        ("SELECT r'\\'; SELECT 2", ["SELECT r'\\'", "SELECT 2"]),
        ("SELECT 1 -- one; two\n; SELECT 2", ["SELECT 1 -- one; two", "SELECT 2"]),
        ("SELECT 1 -- one \\\n; two\n; SELECT 2", ["SELECT 1 -- one \\\n; two", "SELECT 2"]),
        ("SELECT 1 -- one\r; SELECT 2 -- \\\r\n; SELECT 3", ["SELECT 1 -- one", "SELECT 2 -- \\", "SELECT 3"]),
        ("SELECT /* a; /* b; */ c; */ 1;;", ["SELECT /* a; /* b; */ c; */ 1"]),
        ("SELECT `a;b` FROM `c``;`;", ["SELECT `a;b` FROM `c``;`"]),
        ("-- nothing\n/* at all */;", []),
        ("SELECT 'it''s;'", ["SELECT 'it''s;'"]),
    ],
)
def test_a_semicolon_ends_a_statement_only_outside_of_strings_names_and_comments(
    text: str, expected: list[str]
) -> None:
    assert [each.text for each in statements(text)] == expected


@pytest.mark.parametrize("text", ["SELECT 'a", "SELECT `a", "SELECT /* a", 'SELECT "a\\"', "/* only"])
def test_what_is_still_open_is_no_whole_statement(text: str) -> None:
    assert [each.is_ended for each in statements(text + ";")] == [False]


def test_a_place_in_a_statement_is_a_place_in_the_file() -> None:
    second = statements("SELECT 1;\n\n  SELECT\n    x")[1]
    assert (second.line, second.column) == (3, 3)
    assert second.place(second.text.index("x")) == (4, 5)
    assert second.place(0) == (3, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 'FROM x' AS `FROM y` FROM a -- FROM z", [("a",)]),
        ("SELECT * FROM log.flights f JOIN lake . t USING (k)", [("log", "flights"), ("lake", "t")]),
        ("INSERT INTO lake.t TABLE `a.b`", [("lake", "t"), ("a.b",)]),
        ("MERGE INTO lake.t USING s ON t.k = s.k WHEN MATCHED THEN DELETE", [("lake", "t"), ("s",)]),
        ("DESCRIBE EXTENDED flights", [("flights",)]),
        ("SHOW COLUMNS IN flights", [("flights",)]),
        ("SELECT * FROM (SELECT 1)", []),
    ],
)
def test_names_are_those_in_the_places_of_relations(text: str, expected: list[tuple[str, ...]]) -> None:
    assert names(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a::int, b:field, ':c', `:d` FROM t WHERE e > :f AND g=:h", ["f", "h"]),
        ("SELECT x LIMIT :most", ["most"]),
        ("SELECT array(:a)[0]:b", ["a"]),
    ],
)
def test_a_colon_of_a_cast_or_a_path_is_no_parameter(text: str, expected: list[str]) -> None:
    assert parameters(text) == expected


def test_words_are_without_what_is_quoted() -> None:
    assert words("select `Insert`, 'merge' -- delete\nFROM t") == ["SELECT", "FROM", "T"]
