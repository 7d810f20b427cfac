"""Locks in a directory that machines share over NFS: several Linux kernels, with a server on one of them (lab.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from machines.lab import Lab, require

LONG = "HOLDFAST_MACHINES_SECONDS" in os.environ
SECONDS = float(os.environ.get("HOLDFAST_MACHINES_SECONDS", "8"))
LEASE = 10.0 if LONG else 5.0
ALL = ("nfs4", "nfs3", "smb", "9p", "gluster") if LONG else ("nfs4",)
Start = Callable[..., Lab]


@pytest.fixture
def start(disk: Path) -> Iterator[Start]:
    labs: list[Lab] = []

    def make(share: str, *arguments: str, nodes: int = 2, options: str = "") -> Lab:
        require(share)
        labs.append(Lab(disk / "out", "program.py", *arguments, nodes=nodes, share=share, options=options))
        return labs[-1]

    try:
        yield make
    finally:
        for lab in labs:
            lab.end()


@pytest.mark.parametrize("protocol", ["sema", *(["flock"] if LONG else [])])
@pytest.mark.parametrize("share", ALL)
def test_processes_of_two_machines_exclude_each_other(protocol: str, share: str, start: Start, disk: Path) -> None:
    (disk / "out").mkdir()
    (disk / "out" / "counter").write_text("0 0")
    lab = start(share, "count", protocol, f"{LEASE}", f"{SECONDS}", "2")
    outputs = lab.results([0, 1], within=SECONDS + 200)
    done = sum(int(line.split()[1]) for text in outputs for line in text.splitlines() if line.startswith("DONE"))
    assert done == int((lab.out / "counter").read_text().split()[0]) > 0
    assert not any("OVERLAP" in text for text in outputs)


@pytest.mark.parametrize("share", ALL)
def test_the_lock_of_a_machine_that_died_is_free_after_its_lease(share: str, start: Start) -> None:
    lab = start(share, "hold", f"{LEASE}", "1")
    lab.wait("waiting-0")
    time.sleep(LEASE / 2)  # the waiter looks on for a while
    assert not (lab.out / "acquired-0").exists()
    lab.kill(1)
    killed = time.time()
    acquired, token = lab.wait("acquired-0", 100).split()
    print(share, "machine killed: entered after", float(acquired) - killed)
    assert int(token) > int(lab.wait("held-0"))
    lab.tell("next-0")
    lab.results([0])


@pytest.mark.parametrize("share", ALL)
def test_a_machine_that_is_cut_off_is_told_before_the_next_one_enters(share: str, start: Start) -> None:
    rounds = 20 if LONG else 2
    lab = start(share, "hold", f"{LEASE}", f"{rounds}")
    for number in range(rounds):
        lab.wait(f"waiting-{number}")
        lab.tell("cut-1")
        cut = time.time()
        lost = float(lab.wait(f"lost-{number}"))
        acquired = float(lab.wait(f"acquired-{number}", 100).split()[0])
        print(share, "cut: lost, acquired", lost - cut, acquired - cut)
        assert lost < acquired  # by the host's clock, which all machines read
        lab.tell("mend-1")
        lab.tell(f"leave-{number}")
        assert lab.wait(f"left-{number}", 120) == "lost"
        lab.tell(f"next-{number}")
    lab.results([0, 1])


@pytest.mark.parametrize("share", ALL)
def test_a_stopped_process_on_a_living_machine_is_not_robbed(share: str, start: Start) -> None:
    lab = start(share, "stop", f"{LEASE}")
    lab.wait("waiting-0")
    lab.tell("stop")
    lab.wait("stopped")
    time.sleep(3 * LEASE)
    assert not (lab.out / "acquired-0").exists(), "its kernel lock is held"
    lab.tell("go-on")
    lab.wait("lost-0")
    lab.tell("leave-0")
    assert lab.wait("left-0") == "lost"
    lab.wait("acquired-0")
    lab.tell("next-0")
    lab.results([0, 1])
