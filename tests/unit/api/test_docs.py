"""The reference pages name every route and every error code, and no route that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headwater.api.errors import STATUS
from headwater.api.registry import errors

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
DOCUMENT = REFERENCE / "rest.md"
REGISTRY = REFERENCE / "schema_registry.md"


def served(client: Any) -> set[tuple[str, str]]:
    paths = client.call("GET", "/openapi.json").json()["paths"]
    return {(method.upper(), path.removeprefix("/v3")) for path, methods in paths.items() for method in methods}


def test_the_reference_lists_exactly_the_routes_that_are_served(client: Any) -> None:
    text = DOCUMENT.read_text() + REGISTRY.read_text()
    documented = set(re.findall(r"^\| (GET|POST|PUT|PATCH|DELETE) \| `(\S+)` \|", text, re.MULTILINE))
    documented |= set(re.findall(r"(GET) `(/healthz)`", text))
    assert documented == served(client)


def test_the_reference_lists_every_error_code() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {(int(status), int(code)) for status, code in rows}
    assert set(STATUS.values()) <= documented


def test_the_registrys_reference_lists_every_code_of_its_own() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    documented = {int(code) for _, code in re.findall(r"^\| (\d{3}) \| (\d+) \|", REGISTRY.read_text(), re.MULTILINE)}
    assert documented == codes | {400}
