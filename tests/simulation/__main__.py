"""`make simulate SEEDS=n [SEED=first] [BROKERS=3]`: runs with faults; a seed that fails is replayed and shrunk."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.simulation.cluster.run import run_cluster
from tests.simulation.faults import Fault
from tests.simulation.run import Outcome, run
from tests.simulation.shrinking import shrink

#: Length of a run until its last fault, in virtual seconds.
DURATION_S = 30.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a seed is run with: one broker, or a cluster of several."""

    seed: int
    brokers: int
    seconds: float

    def run(self, faults: Sequence[Fault] | None = None) -> Outcome:
        """Run the seed, without the brokers' log lines."""
        logging.disable(logging.CRITICAL)
        if self.brokers == 1:
            return run(self.seed, self.seconds, faults)
        return run_cluster(self.seed, self.seconds, faults, brokers=self.brokers)

    def report(self, failed: Outcome) -> None:
        """Print how to replay the failed seed, and the fewest faults with which it fails."""
        print(f"seed {self.seed} of {self.brokers} brokers: {failed.violation}", flush=True)
        kind = str(failed.violation).partition(":")[0]
        found = failed

        def fails(faults: Sequence[Fault]) -> bool:
            nonlocal found
            outcome = self.run(list(faults))
            if not str(outcome.violation).startswith(kind):
                return False
            found = outcome
            return True

        faults = shrink(failed.faults, fails)
        print(f"  {len(faults)} of {len(failed.faults)} faults suffice: {found.violation}")
        for fault in faults:
            print(f"    {fault}")
        print(f"  replay: make simulate SEEDS=1 SEED={self.seed} BROKERS={self.brokers}", flush=True)


def main() -> int:
    """Run the seeds; the exit code tells whether one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument(
        "--brokers", type=int, nargs="*", default=[1, 3], help="numbers of brokers to run each seed with"
    )
    parser.add_argument("--seconds", type=float, default=DURATION_S, help="virtual seconds of faults in a run")
    arguments = parser.parse_args()
    failures = 0
    counts: dict[str, int] = {}
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    settings = [Setting(seed, brokers, arguments.seconds) for brokers in arguments.brokers for seed in seeds]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(settings))) as processes:
        for setting, outcome in zip(settings, processes.map(Setting.run, settings), strict=True):
            for kind, count in outcome.counts.items():
                counts[kind] = counts.get(kind, 0) + count
            if outcome.violation is not None:
                failures += 1
                setting.report(outcome)
    print(
        f"{len(settings)} runs, {failures} failed; events: {', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
