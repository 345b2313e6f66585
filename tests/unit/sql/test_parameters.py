"""`--param`: typed values, never text of a statement."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from headwater.cli.shell.errors import CliError
from headwater.cli.sql.parameters import parameters


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("a=5", 5),
        ("a=-0.50", Decimal("-0.50")),
        ("a=007", "007"),
        ("a=+5", "+5"),
        ("a=TRUE", True),
        ("a=null", None),
        ("a='; DROP TABLE t; --", "'; DROP TABLE t; --"),
        ("a=x=y", "x=y"),
        ("a=12345678901234567890", "12345678901234567890"),
        ("a:string=5", "5"),
        ("a:bigint=12", 12),
        ("a:double=1e3", 1000.0),
        ("a:boolean=false", False),
        ("a:date=2013-01-01", dt.date(2013, 1, 1)),
        ("a:timestamp=2013-01-01T05:00:00", dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)),
        ("a:timestamp=2013-01-01T05:00:00+02:00", dt.datetime(2013, 1, 1, 3, tzinfo=dt.UTC)),
    ],
)
def test_a_value_has_the_type_that_it_shows_or_that_is_given(given: str, value: Any) -> None:
    found = parameters([given])["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["a"], "is not of the form NAME=VALUE"),
        (["1a=2"], "is not of the form"),
        (["a=1", "a=2"], "--param a is given twice"),
        (["a:int8=1"], "unknown type 'int8'; known: string"),
        (["a:bigint=x"], "'x' is not a bigint"),
        (["a:boolean=1"], "'1' is not a boolean"),
        (["a:date=01.01.2013"], "is not a date"),
        (["a:decimal=x"], "is not a decimal"),
    ],
)
def test_a_wrong_parameter_is_one_line(given: list[str], line: str) -> None:
    with pytest.raises(CliError, match=line):
        parameters(given)
