from __future__ import annotations

import dataclasses
import subprocess
import sys

from headwater.pipelines.locks.owner import Owner


def test_an_owner_comes_back_as_it_was_told() -> None:
    owner = Owner.here("load of flights")
    assert Owner.decode(owner.encode()) == owner
    assert Owner.decode(b"") is None
    assert Owner.decode(b"[1]") is None
    assert Owner.decode(b'{"what": "x"}') is None


def test_a_process_of_this_machine_is_known_to_be_dead() -> None:
    assert not Owner.here("x").is_dead
    code = "from headwater.pipelines.locks.owner import Owner; print(Owner.here('x').encode().decode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    ended = Owner.decode(done.stdout)
    assert ended is not None
    assert ended.is_dead
    assert not dataclasses.replace(ended, boot="another machine").is_dead
    assert not dataclasses.replace(ended, boot="").is_dead
