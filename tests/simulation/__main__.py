"""`make simulate SEEDS=n [SEED=first]`: simulated runs with faults; a seed that fails is replayed and shrunk."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.run import Outcome, run
from tests.simulation.shrinking import shrink

#: Length of a run until its last fault, in virtual seconds.
DURATION_S = 30.0


def quiet_run(seed: int, duration_s: float) -> Outcome:
    """Run a seed without the brokers' log lines."""
    logging.disable(logging.CRITICAL)
    return run(seed, duration_s)


def report(failed: Outcome, duration_s: float) -> None:
    """Print how to replay a failed seed, and the fewest faults with which it fails."""
    print(f"seed {failed.seed}: {failed.violation}", flush=True)
    kind = str(failed.violation).partition(":")[0]
    found = failed

    def fails(faults: object) -> bool:
        nonlocal found
        outcome = run(failed.seed, duration_s, list(faults))  # type: ignore[call-overload]
        if not str(outcome.violation).startswith(kind):
            return False
        found = outcome
        return True

    logging.disable(logging.CRITICAL)
    faults = shrink(failed.faults, fails)
    print(f"  {len(faults)} of {len(failed.faults)} faults suffice: {found.violation}")
    for fault in faults:
        print(f"    {fault}")
    print(f"  replay: make simulate SEEDS=1 SEED={failed.seed}", flush=True)


def main() -> int:
    """Run the seeds; the exit code tells whether one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--seconds", type=float, default=DURATION_S, help="virtual seconds of faults in a run")
    arguments = parser.parse_args()
    failures = 0
    counts: dict[str, int] = {}
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(seeds))) as processes:
        for outcome in processes.map(partial(quiet_run, duration_s=arguments.seconds), seeds):
            for kind, count in outcome.counts.items():
                counts[kind] = counts.get(kind, 0) + count
            if outcome.violation is not None:
                failures += 1
                report(outcome, arguments.seconds)
    print(f"{len(seeds)} seeds, {failures} failed; events: {', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
