"""The groups that this broker coordinates, of either protocol, by id."""

from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup

AnyGroup = Group | ConsumerGroup
GroupRegistry = dict[str, AnyGroup]


def group_state(group: AnyGroup) -> str:
    """Return the name of a group's state in ListGroups and DescribeGroups."""
    return group.state.phase.value if isinstance(group, ConsumerGroup) else group.state.value


def group_type(group: AnyGroup) -> str:
    """Return a group's protocol in ListGroups (KIP-848)."""
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


class GroupReplacedError(Exception):
    """The group was replaced or removed while a decision waited for its lock: the caller looks the group up again."""
