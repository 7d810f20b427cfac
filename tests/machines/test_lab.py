"""The machines themselves (lab.py)."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from machines.lab import BOOT_WITHIN, require

_RUN = """
import sys, time
from pathlib import Path
from machines.lab import Lab
lab = Lab(Path(sys.argv[1]), "program.py", "silent", nodes=1)
print(*(node.pid for node in lab.nodes), flush=True)
time.sleep(1000)
"""


def test_no_machine_outlives_a_run_that_is_killed(disk: Path) -> None:
    require("nfs4")
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, disk / "out"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    try:
        assert run.stdout is not None
        assert select.select([run.stdout], [], [], BOOT_WITHIN)[0]
        (machine,) = map(os.pidfd_open, map(int, run.stdout.readline().split()))
    finally:
        run.kill()
        run.communicate()
    try:
        assert select.select([machine], [], [], 20)[0]
    finally:
        os.close(machine)
