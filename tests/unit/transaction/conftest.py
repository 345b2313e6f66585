"""What stands around the transaction coordinator, in memory."""

from __future__ import annotations

import pytest

from tests.unit.transaction.world import World


@pytest.fixture
def world() -> World:
    """A coordinator with its surroundings; the tests run the loop."""
    return World()
