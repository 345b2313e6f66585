"""Creates the topics that a pipeline needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.definition.plan import TopicPlan


def topics_creator(admin: Any) -> Callable[[Sequence[TopicPlan]], None]:
    """Return the function with which a runner creates missing topics; existing topics remain unchanged."""
    from headwater.api.topic_model import ErrorCode, TopicAdminError, TopicRequest

    def ensure(topics: Sequence[TopicPlan]) -> None:
        existing = {topic.name: topic for topic in admin.list_topics()}
        for topic in topics:
            if topic.name in existing:
                count = existing[topic.name].partitions_count
                if topic.partitions is not None and count != topic.partitions:
                    wanted = f"the pipeline says {topic.partitions}"
                    note(f"topic {topic.name}: has {count} partitions, {wanted}; left as it is")
                continue
            configs = dict(topic.configs) or None
            try:
                admin.create_topic(TopicRequest(topic.name, topic.partitions, topic.replication_factor, configs))
            except TopicAdminError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another run was faster
                    raise

    return ensure
