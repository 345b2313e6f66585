"""Whether a load did what was expected of it: counts, gaps, freshness. Pure, and free of Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater_settings import Check

__all__ = ["problems"]


def problems(
    outcomes: Sequence[Mapping[str, Any]], topics: Sequence[str], check: Check, delay_s: float | None = None
) -> list[str]:
    """What is wrong with the outcomes of `headwater load -o json`, a line each.

    `delay_s` is the time from the interval's end until now, None where it says nothing, as in a backfill.
    """
    found = []
    seen = {str(outcome.get("topic")): outcome for outcome in outcomes}
    for topic in topics:
        outcome = seen.get(topic)
        if outcome is None:
            found.append(f"{topic}: the load says nothing about it")
            continue
        rows, refused, late = (int(outcome.get(name, 0)) for name in ("rows", "refused", "late"))
        if outcome.get("error"):
            found.append(f"{topic}: {outcome['error']}")
        if rows < check.rows_min:
            found.append(f"{topic}: {rows:,} rows, expected at least {check.rows_min:,}")
        if check.refused_max is not None and refused > check.refused_max:
            found.append(f"{topic}: {refused:,} rows could not be decoded, allowed are {check.refused_max:,}")
        if check.late_max is not None and late > check.late_max:
            found.append(f"{topic}: {late:,} rows were late, allowed are {check.late_max:,}")
        lost = {partition: ranges for partition, ranges in outcome.get("gaps", {}).items() if ranges}
        if lost and check.gaps == "fail":
            number = sum(end - start for ranges in lost.values() for start, end in ranges)
            places = ", ".join(
                f"partition {partition}: {start} to {end - 1}"
                for partition, ranges in lost.items()
                for start, end in ranges
            )
            found.append(f"{topic}: {number:,} offsets were gone by retention ({places})")
        offsets = sum(end - start for ranges in outcome.get("offsets", {}).values() for start, end in ranges)
        if rows > offsets:
            found.append(f"{topic}: {rows:,} rows from {offsets:,} offsets")
    if check.fresh_s is not None and delay_s is not None and delay_s > check.fresh_s:
        found.append(f"loaded {delay_s:,.0f} s after the interval's end, allowed are {check.fresh_s:,.0f} s")
    return found
