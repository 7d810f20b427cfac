"""Fencing tokens among processes that are killed: a resource that checks them never sees one twice, nor a lower one."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from process.support import Peer

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "4"))
WRITER = """
lock = Lock(path, protocol=sys.argv[2], fencing=True)
say("begins")
while True:
    with lock as hold:
        fd = os.open(path + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, b"%d %d\\n" % (hold.token, os.getpid()))
        os.close(fd)
        hold.ensure_held()
"""


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_a_killed_holder_neither_lowers_nor_repeats_a_token(disk: Path, protocol: str) -> None:
    """TK1, TK3: three processes count, and one of them is killed at a random moment, again and again."""
    if protocol == "flock" and ("HOLDFAST_OS" in os.environ or "flock" in os.environ.get("HOLDFAST_WITHOUT", "")):
        pytest.skip("kernel locks are switched off (HOLDFAST_OS, HOLDFAST_WITHOUT), and there are no others here")
    path = disk / "l"
    chance = random.Random(4711)
    until = time.monotonic() + SECONDS / 2
    peers: list[Peer] = []
    kills = 0
    try:
        while time.monotonic() < until or kills < 3:
            while len(peers) < 3:
                peers.append(Peer(WRITER, [path, protocol]))
                assert peers[-1].hear() == "begins"
            time.sleep(chance.uniform(0, 0.05))  # at any moment
            victim = peers.pop(chance.randrange(3))
            victim.destroy()
            kills += 1
    finally:
        for peer in peers:
            peer.destroy()
    tokens = [int(line.split()[0]) for line in (disk / "l.log").read_text().splitlines()]
    assert kills >= 3
    assert len(tokens) > kills
    assert all(one < other for one, other in itertools.pairwise(tokens))


def test_the_example_refuses_the_late_writer() -> None:
    example = Path(__file__).parents[2] / "examples" / "fencing.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "and is refused: token" in done.stdout
    assert done.stdout.endswith("the report is 'by the second'\n")
