"""The groups that this broker coordinates, of either protocol, by their ids."""

from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup

AnyGroup = Group | ConsumerGroup
GroupRegistry = dict[str, AnyGroup]


def group_state(group: AnyGroup) -> str:
    """The name of its state, as tools are told it."""
    return group.state.phase.value if isinstance(group, ConsumerGroup) else group.state.value


def group_type(group: AnyGroup) -> str:
    """The protocol it speaks, as tools are told it (KIP-848)."""
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


class GroupReplacedError(Exception):
    """The group has become another one (or none) while a decision about it waited for its turn: look it up again."""
