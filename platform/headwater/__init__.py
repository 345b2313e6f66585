"""Headwater: pipelines, topics and tables from one command line; topics as frames in a Spark session.

`load`, `sql`, `stream` and `table` (`headwater.notebook`) are imported when they are used: `import headwater` needs no
Spark.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

#: Names that users take from the package, and the modules that they come from.
_USED_LATER = dict.fromkeys(("load", "sql", "stream", "table"), "headwater.notebook")


def __getattr__(name: str) -> Any:
    if name in _USED_LATER:
        return getattr(importlib.import_module(_USED_LATER[name]), name)
    raise AttributeError(f"module 'headwater' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_USED_LATER])
