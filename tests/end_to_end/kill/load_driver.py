"""A child process of the kill tests: loads a topic, and ends its own process group at a given step.

    python load_driver.py TARGET BOOTSTRAP TOPIC FORMAT ID [--at STEP] [--nth N]

STEP is one of STEPS; before its N-th occurrence the whole group gets SIGKILL. Prints `step STEP` for each, and at the
end the outcome as JSON.
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


def main() -> None:
    """Load to the end, or to the step at which the group is ended."""
    parser = argparse.ArgumentParser()
    for name in ("target", "bootstrap", "topic", "format", "id"):
        parser.add_argument(name)
    parser.add_argument("--at", default="")
    parser.add_argument("--nth", type=int, default=1)
    given = parser.parse_args()
    seen: Counter[str] = Counter()

    def watched(step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            print(f"step {step}", flush=True)
            seen[step] += 1
            if step == given.at and seen[step] == given.nth:
                os.killpg(0, signal.SIGKILL)
            return original(*arguments, **named)

        return called

    for step, (owner, name) in STEPS.items():
        setattr(owner, name, watched(step, getattr(owner, name)))
    options = LoadOptions((given.topic,), to=given.target, format=given.format, load_id=given.id, wait_s=120.0)
    requests, loaded = requests_of(options, ())
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = LoadRun(requests, loaded, given.bootstrap, file_system)
            log = os.path.join(folder, "spark.log")
            [outcome] = run.run(lambda: open_session("killed", log, SPARK))
        finally:
            close_session()
    print(json.dumps(outcome.value()), flush=True)
    if outcome.error:
        print(f"failed: {outcome.error}", file=sys.stderr, flush=True)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
