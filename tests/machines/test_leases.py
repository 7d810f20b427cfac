"""Locks in a directory that machines share over NFS: several Linux kernels, with a server on one of them (lab.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from machines.lab import Lab, require

SECONDS = float(os.environ.get("HOLDFAST_MACHINES_SECONDS", "8"))
LEASE = 5.0
LONG = "HOLDFAST_MACHINES_SECONDS" in os.environ
Start = Callable[..., Lab]


@pytest.fixture
def start(disk: Path) -> Iterator[Start]:
    require()
    labs: list[Lab] = []

    def make(*arguments: str, nodes: int = 2, share: str = "nfs4", options: str = "") -> Lab:
        labs.append(Lab(disk / "out", "program.py", *arguments, nodes=nodes, share=share, options=options))
        return labs[-1]

    try:
        yield make
    finally:
        for lab in labs:
            lab.end()


@pytest.mark.parametrize("protocol", ["sema", *(["flock"] if LONG else [])])
@pytest.mark.parametrize("share", ["nfs4", *(["nfs3"] if LONG else [])])
def test_processes_of_two_machines_exclude_each_other(protocol: str, share: str, start: Start, disk: Path) -> None:
    (disk / "out").mkdir()
    (disk / "out" / "counter").write_text("0 0")
    lab = start("count", protocol, f"{LEASE}", f"{SECONDS}", "2", share=share)
    outputs = lab.results([0, 1], within=SECONDS + 200)
    done = sum(int(line.split()[1]) for text in outputs for line in text.splitlines() if line.startswith("DONE"))
    assert done == int((lab.out / "counter").read_text().split()[0]) > 0
    assert not any("OVERLAP" in text for text in outputs)


def test_the_lock_of_a_machine_that_died_is_free_after_its_lease(start: Start) -> None:
    lab = start("hold", f"{LEASE}", "1")
    lab.wait("waiting-0")
    time.sleep(LEASE / 2)  # the waiter looks on for a while
    assert not (lab.out / "acquired-0").exists()
    lab.kill(1)
    _, token = lab.wait("acquired-0").split()
    assert int(token) > int(lab.wait("held-0"))
    lab.tell("next-0")
    lab.results([0])


def test_a_machine_that_is_cut_off_is_told_before_the_next_one_enters(start: Start) -> None:
    rounds = 20 if LONG else 2
    lab = start("hold", f"{LEASE}", f"{rounds}")
    for number in range(rounds):
        lab.wait(f"waiting-{number}")
        lab.tell("cut-1")
        lost = float(lab.wait(f"lost-{number}"))
        acquired = float(lab.wait(f"acquired-{number}").split()[0])
        assert lost < acquired  # by the host's clock, which all machines read
        lab.tell("mend-1")
        lab.tell(f"leave-{number}")
        assert lab.wait(f"left-{number}", 120) == "lost"
        lab.tell(f"next-{number}")
    lab.results([0, 1])


def test_a_stopped_process_on_a_living_machine_is_not_robbed(start: Start) -> None:
    lab = start("stop", f"{LEASE}")
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
