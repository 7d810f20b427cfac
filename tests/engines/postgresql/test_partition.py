"""A network that is cut between two machines: only what the kernels and the clocks say is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engines.postgresql.server import binary


def test_the_next_one_is_in_before_the_holder_knows() -> None:
    """PG11: with `stale_after` of 3 s, the holder gives up after 2 s, the server after 3 at the earliest."""
    binary("postgres")
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a network namespace")
    for name in ("unshare", "nsenter", "ip"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed: apt-get install util-linux iproute2 (Debian's packages)")
    if subprocess.run(["unshare", "-n", "ip", "link", "add", "hf0", "type", "veth"], capture_output=True).returncode:
        pytest.skip("network namespaces are not permitted here")
    done = subprocess.run(
        ["unshare", "-n", sys.executable, Path(__file__).with_name("partition.py"), "3"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    lost, next_in = map(float, done.stdout.split())
    assert lost < next_in
    assert lost <= 2.5
    assert next_in + 0.6 >= 3  # of the last heartbeat, which was before the cut, half a second is gone at most
