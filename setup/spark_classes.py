"""Archive the classes that Spark loads: `spark_classes.py FILE`, a FILE for `-XX:SharedArchiveFile`.

A session begins with some 20,000 classes, which the JVM otherwise parses and verifies at each start. The session of
this run tests a stage of the flights: a stream with a watermark, state and Delta. The JVM writes its archive while it
ends. FILE exists once it is whole: a JVM that starts earlier starts without it.
"""

from __future__ import annotations

import os
import sys

from headwater.cli.demo.files import conf_file
from headwater.cli.main import main
from headwater.pipelines.spark import session

#: A stage's only test; more tests would cost more than they would add.
TEST = "an_hour_is_told_when_the_watermark_has_passed_it"
#: A JVM takes 10 s of processor time to write 200 MB; the cores are busy otherwise, too.
WRITE_S = 240.0


def archive(path: str) -> int:
    """The exit code."""
    partial = f"{path}.partial"
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{given} -XX:ArchiveClassesAtExit={partial}"
    session.JVM_END_SECONDS_MAX = WRITE_S  # its limit would kill the JVM that writes
    code = main(["pipeline", "test", conf_file("pipelines", "flights.yaml"), "--name", TEST])
    if code == 0:
        os.replace(partial, path)
    return code


if __name__ == "__main__":
    sys.exit(archive(sys.argv[1]))
