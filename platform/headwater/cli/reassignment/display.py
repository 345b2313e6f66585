"""The texts of a plan and of its progress: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.cli.reassignment.execution import PlanProgress
from headwater.cli.reassignment.plan import BrokerLoad, ReassignmentPlan
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["bytes_text", "counted", "load_rows", "move_rows", "plan_summary", "progress_line", "stall_line"]

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP: Final = 1_000
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600


def bytes_text(value: int) -> str:
    """Return bytes with three digits.

    >>> bytes_text(0), bytes_text(999), bytes_text(1_230_000), bytes_text(45_600_000_000)
    ('0 B', '999 B', '1.23 MB', '45.6 GB')
    """
    amount, unit = float(value), 0
    while amount >= _STEP and unit < len(_UNITS) - 1:
        amount, unit = amount / _STEP, unit + 1
    return f"{value} B" if unit == 0 else f"{amount:.3g} {_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """Return a rough duration.

    >>> duration_text(12.3), duration_text(150), duration_text(9_000)
    ('12 s', '2 min', '2 h 30 min')
    """
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "partition"), counted(3, "partition")
    ('1 partition', '3 partitions')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def progress_line(progress: PlanProgress, copied_bytes: int, elapsed_s: float) -> str:
    """Return one line; the estimate supposes that the rest is copied as fast as `copied_bytes` were.

    >>> progress_line(PlanProgress(12, 40, 3_200_000_000, 10_400_000_000, 5), 3_200_000_000, 70)
    'moved 12 of 40 replicas, 3.2 GB of 10.4 GB, 5 running, 45.7 MB/s, about 2 min left'
    >>> progress_line(PlanProgress(0, 40, 0, 10_400_000_000, 5), 0, 1)
    'moved 0 of 40 replicas, 0 B of 10.4 GB, 5 running'
    """
    line = (
        f"moved {progress.moved_replicas} of {progress.replicas} replicas, "
        f"{bytes_text(progress.moved_bytes)} of {bytes_text(progress.total_bytes)}"
    )
    if progress.running:
        line += f", {progress.running} running"
    rest = progress.total_bytes - progress.moved_bytes
    if copied_bytes > 0 and elapsed_s > 0 and rest > 0:
        rate = copied_bytes / elapsed_s
        line += f", {bytes_text(int(rate))}/s, about {duration_text(rest / rate)} left"
    return line


def stall_line(waiting: Mapping[TopicPartition, tuple[int, ...]], seconds: float) -> str:
    """Return one line about a run that does not advance.

    >>> stall_line({TopicPartition("t", 3): (4,)}, 60)
    'nothing was copied for 60 s: t-3 waits for broker 4, which is away'
    >>> stall_line({}, 60)
    'nothing was copied for 60 s; followers may be throttled, or cannot reach the leader: see the logs of the brokers'
    """
    line = f"nothing was copied for {int(seconds)} s"
    if not waiting:
        return f"{line}; followers may be throttled, or cannot reach the leader: see the logs of the brokers"
    key, brokers = next(iter(waiting.items()))
    others = f" (and {len(waiting) - 1} others)" if len(waiting) > 1 else ""
    if len(brokers) == 1:
        return f"{line}: {key} waits for broker {brokers[0]}, which is away{others}"
    return f"{line}: {key} waits for brokers {', '.join(map(str, brokers))}, which are away{others}"


def plan_summary(plan: ReassignmentPlan) -> str:
    """Return what a plan does, in one sentence without an end."""
    orders = len(plan.moves) - len(plan.copies) + len(plan.elections)
    parts = []
    if plan.copies:
        copied = sum(len(each.added) for each in plan.copies)
        parts.append(
            f"move {counted(copied, 'replica')} of {counted(len(plan.copies), 'partition')} to other brokers "
            f"({bytes_text(plan.copied_bytes)})"
        )
    if plan.log_dir_moves:
        size = sum(each.size_bytes for each in plan.log_dir_moves)
        parts.append(f"move {counted(len(plan.log_dir_moves), 'replica')} to other log folders ({bytes_text(size)})")
    if orders:
        parts.append(f"change the preferred or actual leader of {counted(orders, 'partition')}")
    return ", ".join(parts)


def move_rows(plan: ReassignmentPlan, rows_max: int) -> list[dict[str, Any]]:
    """Return the first moves as rows of a table."""
    return [
        {"partition": str(each.key), "before": list(each.before), "after": list(each.after)}
        | {"size": bytes_text(each.size_bytes), "copied": bytes_text(each.copied_bytes) if each.added else None}
        for each in plan.moves[:rows_max]
    ]


def load_rows(before: Sequence[BrokerLoad], after: Sequence[BrokerLoad]) -> list[dict[str, Any]]:
    """Return the loads of brokers before and after a plan as rows of a table."""
    return [
        {
            "broker": old.broker_id,
            "rack": old.rack,
            "replicas": f"{old.replicas} -> {new.replicas}",
            "size": f"{bytes_text(old.size_bytes)} -> {bytes_text(new.size_bytes)}",
            "leaders": f"{old.leaders} -> {new.leaders}",
        }
        for old, new in zip(before, after, strict=True)
    ]
