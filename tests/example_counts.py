"""How many examples a property tries: few in `make check`, where it stands beside types; all of them elsewhere.

`HYPOTHESIS_FEW=1`, which the Makefile alone sets, asks for the few. `make test` tries all (`setup/slow_tests.py`).
"""

from __future__ import annotations

import os

#: What Hypothesis tries where a property says nothing.
DEFAULT = 100
FEW_OF_DEFAULT = 25
#: Below this a property would hardly leave its simplest examples.
FEW_MIN = 5
IS_FEW = bool(os.environ.get("HYPOTHESIS_FEW"))


def examples(count: int) -> int:
    """`max_examples` of a property that tries `count` of them when time allows."""
    return min(count, max(FEW_MIN, count * FEW_OF_DEFAULT // DEFAULT)) if IS_FEW else count
