"""docs/reference/rest.md names every route and every error code, and no route that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from api.errors import STATUS

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "rest.md"


def served(client: Any) -> set[tuple[str, str]]:
    paths = client.call("GET", "/openapi.json").json()["paths"]
    return {(method.upper(), path.removeprefix("/v3")) for path, methods in paths.items() for method in methods}


def test_the_reference_lists_exactly_the_routes_that_are_served(client: Any) -> None:
    text = DOCUMENT.read_text()
    documented = set(re.findall(r"^\| (GET|POST|PUT|PATCH|DELETE) \| `(\S+)` \|", text, re.MULTILINE))
    documented |= set(re.findall(r"(GET) `(/healthz)`", text))
    assert documented == served(client)


def test_the_reference_lists_every_error_code() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {(int(status), int(code)) for status, code in rows}
    assert set(STATUS.values()) <= documented
