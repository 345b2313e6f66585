"""Changes of the metadata that a broker needs for itself, whichever broker is the controller."""

from collections.abc import Sequence
from typing import Protocol

from headwater.logtier.controller.commands import NewTopic, TopicResult
from headwater.logtier.controller.producer_ids import ProducerIds
from headwater.logtier.controller.state import CountMutations


class MetadataChanges(Protocol):
    """The controller as the other parts of a broker see it.

    On a single node it is the `Controller`, in a cluster `RemoteChanges`. Results are as those of the controller's
    command: a topic without an error is in this broker's image.
    """

    @property
    def producer_ids(self) -> ProducerIds:
        """The producer ids of this broker."""
        ...

    async def create_topics(
        self, topics: Sequence[NewTopic], *, count_mutations: CountMutations = ...
    ) -> list[TopicResult]:
        """Create topics, each accepted or rejected separately; one result for each name."""
        ...
