"""The brokers of a cluster as elections, reassignments and changes of an ISR ask for them."""

from __future__ import annotations

from dataclasses import dataclass, field

IDS = (1, 2, 3, 4, 5)


@dataclass
class FakeBrokers:
    """The brokers that are alive; those that are full cannot append."""

    alive: set[int] = field(default_factory=lambda: set(IDS))
    full: set[int] = field(default_factory=set)

    def is_candidate(self, broker_id: int, directory: str) -> bool:
        return broker_id in self.alive

    def has_room(self, broker_id: int, directory: str) -> bool:
        return broker_id not in self.full

    def may_join(self, broker_id: int, broker_epoch: int, directory: str) -> bool:
        return broker_id in self.alive


def without(*away: int) -> FakeBrokers:
    """All brokers but some."""
    return FakeBrokers({*IDS} - {*away})
