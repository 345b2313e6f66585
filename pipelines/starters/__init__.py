"""The pipelines that `headwater pipeline init` writes: each complete, with schemas, tests and sample records. Pure.

The command line offers the names of `TEMPLATES` as choices, so this package imports nothing that is slow to import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headwater.pipelines.starters.cdc import CDC
from headwater.pipelines.starters.enrich import ENRICH
from headwater.pipelines.starters.orders import ORDERS
from headwater.pipelines.starters.sessions import SESSIONS
from headwater.pipelines.starters.template import PIPELINE_FILE, Starter, Template, fill

__all__ = ["DEFAULT_TEMPLATE", "PIPELINE_FILE", "TEMPLATES", "Starter", "fill", "pipeline_name"]

TEMPLATES: Final[Mapping[str, Template]] = {"orders": ORDERS, "cdc": CDC, "sessions": SESSIONS, "enrich": ENRICH}
DEFAULT_TEMPLATE: Final = "orders"


def pipeline_name(folder: str) -> str:
    """A name that a pipeline may have, from that of its folder.

    >>> pipeline_name("My shop.2"), pipeline_name("2nd"), pipeline_name("")
    ('my_shop_2', 'p_2nd', 'pipeline')
    """
    name = re.sub(r"[^a-z0-9_-]+", "_", folder.lower()).strip("_-")
    if not name:
        return "pipeline"
    return name if name[0].isalpha() else f"p_{name}"
