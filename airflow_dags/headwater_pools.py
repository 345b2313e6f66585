"""Prints the pools that the DAGs need, as JSON for `airflow pools import`: python headwater_pools.py > pools.json."""

from __future__ import annotations

import json
import sys

from headwater_settings import Event, Load, Settings, SettingsError, read_settings

__all__ = ["pools"]


def pools(settings: Settings) -> dict[str, dict[str, object]]:
    """A pool of one slot for each target."""
    entries: list[Load | Event] = [*settings.loads, *settings.events]
    names = [f"headwater_{entry.name}" for entry in entries]
    return {
        name: {"slots": 1, "description": "Loads and maintenance of a target, one at a time", "include_deferred": False}
        for name in names
    }


if __name__ == "__main__":
    try:
        print(json.dumps(pools(read_settings()), indent=1))
    except SettingsError as error:
        sys.exit(str(error))
