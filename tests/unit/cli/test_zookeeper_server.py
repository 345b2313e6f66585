"""ZooKeeper's process and the process that starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from headwater.zookeeper_server import die_with_parent

COMMAND = [sys.executable, "-c", "print('it runs')"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process of its parent's death")
def test_a_server_whose_parent_was_killed_at_its_start_ends_too() -> None:
    # The parent of an orphan is another process than the one that started it.
    orphan = subprocess.run(COMMAND, preexec_fn=partial(die_with_parent, 1), capture_output=True, check=False)
    assert (orphan.returncode, orphan.stdout) == (1, b"")
    child = subprocess.run(COMMAND, preexec_fn=partial(die_with_parent, os.getpid()), capture_output=True, check=False)
    assert (child.returncode, child.stdout) == (0, b"it runs\n")
