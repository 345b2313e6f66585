"""Names of the topics that the product makes for itself: those of its brokers, its registry and its pipelines.

The log tier knows them by name only: it counts those with few replicas (see `replication_families`).
"""

from typing import Final

from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS

PRODUCT_REPLICAS: Final = 3
"""Replicas of the product's own topics on a cluster of that many brokers or more."""

_NAMES: Final = INTERNAL_TOPICS | {
    "__headwater_fences",
    "__headwater_status",
    "_schemas",  # by default
}
_DEAD_LETTERS_SUFFIX: Final = ".dead_letters"


def is_product_topic(name: str) -> bool:
    """Return whether the product makes a topic of this name for itself.

    Topics of late records are missing: a pipeline chooses their names.

    >>> [is_product_topic(name) for name in ("__consumer_offsets", "flights.dead_letters", "flights")]
    [True, True, False]
    """
    return name in _NAMES or name.endswith(_DEAD_LETTERS_SUFFIX)
