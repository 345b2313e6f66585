from pathlib import Path

import pytest

from headwater.logtier.config.reference import pages


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_reference_is_made_of_the_tables(name: str, root: Path) -> None:
    assert (root / "docs" / "reference" / name).read_text() == pages()[name], "run `make docs`"
