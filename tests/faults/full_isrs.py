"""Waits until a cluster has recovered: every partition has a leader and all its replicas in the ISR."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient

from tests.faults.processes import until

#: Time for all ISRs to fill after a fault.
FULL_S = 120.0


def await_full_isrs(admin: AdminClient, brokers: int, partitions: int) -> None:
    """Wait for the ISRs of at least so many partitions, each with a replica on every broker.

    Raises:
        Failed: They are not full in time; with the state of each partition.
    """
    deadline_s = time.monotonic() + FULL_S
    while True:
        topics = admin.list_topics(timeout=10).topics
        states = {
            f"{name}-{number}": (each.leader, each.isrs)
            for name in topics
            for number, each in topics[name].partitions.items()
        }
        if len(states) >= partitions and all(leader >= 0 and len(isr) == brokers for leader, isr in states.values()):
            return
        until(deadline_s, f"the ISRs did not fill ({states})")
