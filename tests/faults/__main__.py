"""`make faults`: minutes of faults of a cluster's real processes and links, each run with its seed."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.processes import Failed
from tests.faults.run import FaultRun

#: Time of one run: its logs are read back at its end.
RUN_S = 120.0


def main() -> int:
    """Run for some minutes; exit code 1 for an anomaly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    end_s = time.monotonic() + 60 * options.minutes
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    acknowledged = moved = copied = faults = hangs = 0
    while (left_s := end_s - time.monotonic()) > 0:
        print(f"seed {seed}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="hw-faults-"))
        try:
            outcome = FaultRun(folder, seed, min(RUN_S, left_s), lambda line: print(f"  {line}", flush=True)).run()
        except Failed as error:
            print(f"{error}\nits files are kept in {folder}")
            return 1
        acknowledged += outcome.acknowledged
        moved += outcome.moved
        copied += outcome.copied
        hangs += outcome.hangs
        faults += len(outcome.faults)
        if outcome.anomalies:
            print("\n".join(outcome.anomalies))
            print(f"its files are kept in {folder}")
            return 1
        shutil.rmtree(folder)
        seed += 1
    print(
        f"{faults} faults, {acknowledged} acknowledged records, {moved} moved and {copied} copied in transactions, "
        "no anomaly"
    )
    if hangs:
        print(f"{hangs} clients hung in librdkafka, and others took their place")
    return 0


if __name__ == "__main__":
    sys.exit(main())
