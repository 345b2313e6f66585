"""A child process of the kill tests: loads topics, and ends its own process group at a given step.

    python load_driver.py BOOTSTRAP --load TARGET TOPIC FORMAT ID... [--at STEP] [--nth N]

The loads follow each other, whether or not one fails. STEP is one of STEPS; before its N-th occurrence in the last load
the whole group gets SIGKILL. Prints `step TARGET STEP` for each, and each load's outcome as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.loads.loader import TopicLoad
from headwater.pipelines.loads.options import LoadOptions, requests_of
from headwater.pipelines.loads.running import LoadRun
from headwater.pipelines.loads.targets import delta_target, file_target
from headwater.pipelines.loads.targets.records import LoadRecords
from headwater.pipelines.spark.session import close_session, open_session

SPARK: Final = {"spark.driver.memory": "1g", "spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
STEPS: Final[dict[str, tuple[Any, str]]] = {
    "plan": (LoadRecords, "write_plan"),
    "rows": (file_target, "write_rows"),
    "checksums": (file_target, "described_files"),
    "table": (delta_target.DeltaTarget, "write"),
    "confirmed": (TopicLoad, "_before_commit"),
    "commit": (LoadRecords, "create_commit"),
    "move": (file_target.FileTarget, "_move"),
    "manifest": (LoadRecords, "write_manifest"),
}


def main() -> int:
    """Load to the end, or to the step at which the group is ended; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--load", nargs=4, action="append", required=True, metavar=("TARGET", "TOPIC", "FORMAT", "ID"))
    parser.add_argument("--at", default="")
    parser.add_argument("--nth", type=int, default=1)
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    target = ""

    def watched(step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            print(f"step {target} {step}", flush=True)
            seen[step] += 1
            if load is given.load[-1] and step == given.at and seen[step] == given.nth:
                os.killpg(0, signal.SIGKILL)
            return original(*arguments, **named)

        return called

    for step, (owner, name) in STEPS.items():
        setattr(owner, name, watched(step, getattr(owner, name)))
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "spark.log")
        try:
            for load in given.load:
                seen.clear()
                target, topic, form, name = load
                options = LoadOptions((topic,), to=target, format=form, load_id=name, wait_s=120.0)
                requests, loaded = requests_of(options, ())
                run = LoadRun(requests, loaded, given.bootstrap, file_system)
                [outcome] = run.run(lambda: open_session("killed", log, SPARK))
                print(json.dumps(outcome.value()), flush=True)
                if outcome.error:
                    print(f"{name} of {target} failed: {outcome.error}", file=sys.stderr, flush=True)
                    code = 1
        finally:
            close_session()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
