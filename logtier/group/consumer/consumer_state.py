"""The state of a consumer group (KIP-848): the result of its records. Pure."""

import enum
import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from headwater.logtier.group.consumer.consumer_member import (
    LEAVE_EPOCH,
    ConsumerMember,
)
from headwater.logtier.group.consumer.consumer_records import (
    Change,
    ConsumerKey,
    ConsumerValue,
    CurrentValue,
    EpochValue,
    MemberValue,
    RecordKind,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from headwater.logtier.group.partitions import NO_PARTITIONS, Partitions
from headwater.logtier.metadata.image import MetadataImage

_NO_TARGET_EPOCH = -1


class ConsumerGroupState(enum.Enum):
    """States of a consumer group, with the names in Kafka's tools."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerState:
    """The durable state of a consumer group.

    Invariants: only `apply` changes the state, so it equals the replay of the group's records; at most one member owns
    a partition (`owner_of`), and other members wait until the partition is free.
    """

    __slots__ = (
        "_id_by_instance",
        "_owners",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "regexes",
        "target_epoch",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        #: Topics that the members' regular expressions match.
        self.regexes: dict[str, RegexValue] = {}
        self._id_by_instance: dict[str, str] = {}
        self._owners: dict[tuple[UUID, int], str] = {}

    def copy(self) -> "ConsumerState":
        """Return an independent copy."""
        other = ConsumerState(self.group_id)
        other.epoch, other.metadata_hash, other.target_epoch = self.epoch, self.metadata_hash, self.target_epoch
        other.members, other.targets, other.regexes = self.members.copy(), self.targets.copy(), self.regexes.copy()
        other._id_by_instance, other._owners = self._id_by_instance.copy(), self._owners.copy()
        return other

    # ---- records ----

    def apply(self, kind: RecordKind, name: str, value: ConsumerValue | None) -> bool:
        """Apply one record; return False if the record deletes the group."""
        match value:
            case EpochValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case TargetEpochValue():
                self.target_epoch = value.epoch
            case TargetValue():
                self.targets[name] = value.partitions
            case RegexValue():
                self.regexes[name] = value
            case MemberValue():
                self._put(_told(self.members.get(name) or ConsumerMember(name), value))
            case CurrentValue():
                self._put(_assigned(self.members.get(name) or ConsumerMember(name), value))
            case None:
                return self._remove(kind, name)
        return True

    def _remove(self, kind: RecordKind, name: str) -> bool:
        match kind:
            case RecordKind.EPOCH:
                return False
            case RecordKind.MEMBER:
                member = self.members.pop(name, None)
                if member is not None:
                    self._disown(member)
                    if member.instance_id is not None and self._id_by_instance.get(member.instance_id) == name:
                        del self._id_by_instance[member.instance_id]
            case RecordKind.TARGET_EPOCH:
                self.target_epoch = _NO_TARGET_EPOCH
            case RecordKind.TARGET:
                self.targets.pop(name, None)
            case RecordKind.CURRENT:
                if name in self.members:
                    gone = CurrentValue(
                        LEAVE_EPOCH, LEAVE_EPOCH, self.members[name].state, NO_PARTITIONS, NO_PARTITIONS
                    )
                    self._put(_assigned(self.members[name], gone))
            case RecordKind.REGEX:
                self.regexes.pop(name, None)
        return True

    def _put(self, member: ConsumerMember) -> None:
        old = self.members.get(member.member_id)
        if old is not None:
            self._disown(old)
            if old.instance_id not in (None, member.instance_id):
                self._id_by_instance.pop(old.instance_id or "", None)
        self.members[member.member_id] = member
        for partition in member.owned():
            self._owners[partition] = member.member_id
        if member.instance_id is not None:
            self._id_by_instance[member.instance_id] = member.member_id

    def _disown(self, member: ConsumerMember) -> None:
        for partition in member.owned():
            if self._owners.get(partition) == member.member_id:
                del self._owners[partition]

    # ---- questions ----

    @property
    def phase(self) -> ConsumerGroupState:
        """State of the group."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def owner_of(self, topic_id: UUID, index: int) -> str | None:
        """Return the member that owns a partition: assigned, or not yet revoked."""
        return self._owners.get((topic_id, index))

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the static member of an instance id."""
        member_id = self._id_by_instance.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str) -> Partitions:
        """Return a member's target assignment."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of a member's topics, subscribed by name and by regular expression."""
        matched = self.regexes.get(member.topic_regex or "")
        return member.topic_names if matched is None else member.topic_names | matched.topics

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of all subscribed topics."""
        return frozenset().union(*(self.topics_of(member) for member in self.members.values()))

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members request; the first by name wins a tie."""
        votes = Counter(member.server_assignor for member in self.members.values() if member.server_assignor)
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    def is_waiting_for_others(self, member: ConsumerMember) -> bool:
        """Whether other members still own partitions of a member's target."""
        return any(
            index not in member.assigned.get(topic_id, frozenset()) and self.owner_of(topic_id, index) is not None
            for topic_id, indexes in self.target_of(member.member_id).items()
            for index in indexes
        )

    def classic_members(self) -> list[ConsumerMember]:
        """Return the members that use the classic protocol."""
        return [member for member in self.members.values() if member.classic is not None]

    def tombstones(self) -> Iterator[Change]:
        """Return the tombstones that delete the group, in the order that replay requires."""
        for kind in (RecordKind.CURRENT, RecordKind.TARGET):
            for member_id in self.members:
                yield self.change(kind, member_id, None)
        yield self.change(RecordKind.TARGET_EPOCH, "", None)
        for member_id in self.members:
            yield self.change(RecordKind.MEMBER, member_id, None)
        for regex in self.regexes:
            yield self.change(RecordKind.REGEX, regex, None)
        yield self.change(RecordKind.EPOCH, "", None)

    def records(self) -> Iterator[Change]:
        """Return the records of the group's state, in the order that replay requires."""
        for member_id, member in self.members.items():
            yield self.change(RecordKind.MEMBER, member_id, MemberValue.of(member))
        for regex, matched in self.regexes.items():
            yield self.change(RecordKind.REGEX, regex, matched)
        yield self.change(RecordKind.EPOCH, "", EpochValue(self.epoch, self.metadata_hash))
        for member_id, partitions in self.targets.items():
            yield self.change(RecordKind.TARGET, member_id, TargetValue(partitions))
        yield self.change(RecordKind.TARGET_EPOCH, "", TargetEpochValue(self.target_epoch))
        for member_id, member in self.members.items():
            yield self.change(RecordKind.CURRENT, member_id, CurrentValue.of(member))

    def change(self, kind: RecordKind, name: str, value: ConsumerValue | None) -> Change:
        """Return one record of this group."""
        return Change(ConsumerKey(self.group_id, kind, name), value)


def metadata_hash(topics: Iterable[str], image: MetadataImage) -> int:
    """Return a hash that changes when a topic is created, deleted, recreated or grows; 0 if none exists."""
    digest = hashlib.blake2b(digest_size=8)
    some = False
    for name in sorted(topics):
        topic = image.topic(name)
        if topic is not None:
            some = True
            digest.update(topic.topic_id.bytes + struct.pack(">i", len(topic.partitions)))
    number: int = struct.unpack(">q", digest.digest())[0]
    return number if some else 0


def existing(partitions: Partitions, image: MetadataImage) -> Mapping[str, tuple[UUID, frozenset[int]]]:
    """Return partitions by topic name, without those of deleted topics."""
    found = {}
    for topic_id, indexes in partitions.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            found[topic.name] = (topic_id, indexes)
    return found


def _told(member: ConsumerMember, value: MemberValue) -> ConsumerMember:
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=value.topic_names,
        topic_regex=value.topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=value.classic,
    )


def _assigned(member: ConsumerMember, value: CurrentValue) -> ConsumerMember:
    return replace(
        member,
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=value.state,
        assigned=value.assigned,
        revoking=value.revoking,
    )
