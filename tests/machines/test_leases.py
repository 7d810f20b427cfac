"""Locks in a directory that machines share: several Linux kernels, with a server on one of them (lab.py, shares.py)."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from machines.lab import Lab, require
from machines.shares import SHARES

LONG = "HOLDFAST_MACHINES_SECONDS" in os.environ
SECONDS = float(os.environ.get("HOLDFAST_MACHINES_SECONDS", "8"))
LEASE = 10.0 if LONG else 5.0
SHORT = 5.0
ROUNDS = 20 if LONG else 2
KILL_EVERY = 10.0
ALL = list(SHARES) if LONG else ["nfs4"]
FILES = [name for name in ALL if SHARES[name].lock_files]
"""Where lock files can be had."""
PROTOCOLS = [
    (share, protocol)
    for share in ALL
    for protocol in ("sema", "flock")
    if (protocol == "flock" and LONG) or (protocol == "sema" and share in FILES)
]
needs_time = pytest.mark.skipif(not LONG, reason="takes minutes: make machines SECONDS=60")
Start = Callable[..., Lab]


@pytest.fixture
def start(disk: Path) -> Iterator[Start]:
    labs: list[Lab] = []

    def make(share: str, *arguments: str, nodes: int = 2, options: str = "") -> Lab:
        require(share)
        (disk / "out").mkdir()
        (disk / "out" / "counter").write_text(f"{0:020} {0:020}")
        labs.append(Lab(disk / "out", "program.py", *arguments, nodes=nodes, share=share, options=options))
        return labs[-1]

    try:
        yield make
    finally:
        for lab in labs:
            lab.end()


def measured(share: str, what: str, *values: float) -> None:
    """Keep it for docs/howto/shared-storage.md, if that was asked for."""
    text = f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f}, {len(values)} times)"
    if path := os.environ.get("HOLDFAST_MACHINES_REPORT"):
        with open(path, "a") as file:
            file.write(f"{share}: {what}: {text}\n")


def counter(lab: Lab) -> int:
    return int((lab.out / "counter").read_text().split()[0])


def begun_by(lab: Lab) -> list[Path]:
    """The file of each process that has begun an increment."""
    return [path for path in lab.out.glob("made-*") if path.stat().st_size]


def increments(lab: Lab) -> tuple[int, list[int]]:
    """The final number, and the increments that no process reported: a kill may have come in between."""
    begun: list[int] = []
    made: list[int] = []
    for path in lab.out.glob("made-*"):
        words = path.read_text().split()
        begun += [int(word[1:]) for word in words if word[0] == "<"]
        made += [int(word[1:]) for word in words if word[0] == ">"]
    number = counter(lab)
    assert [one for one, times in Counter(made).items() if times > 1] == [], lab.logs()
    missing = {*range(1, number + 1)} - {*made}
    assert missing <= {*begun}, "a number was made that nobody has begun"
    assert max(made, default=0) <= number, "a number was lost"
    return number, sorted(missing)


def ask_to_end(lab: Lab, nodes: list[int], within: float = 200.0) -> None:
    lab.tell("end")
    lab.results(nodes, within=within)


def require_no_overlap(lab: Lab) -> None:
    assert "OVERLAP" not in lab.logs()
    assert "FENCED" not in lab.logs()


@pytest.mark.parametrize(("share", "protocol"), PROTOCOLS)
def test_processes_of_two_machines_exclude_each_other(share: str, protocol: str, start: Start) -> None:
    lab = start(share, "count", protocol, f"{LEASE}", "2")
    lab.wait_until(lambda: len(begun_by(lab)) == 4, "not every process has incremented the number", 200)
    before = counter(lab)
    time.sleep(SECONDS)
    ask_to_end(lab, [0, 1])
    number, missing = increments(lab)
    require_no_overlap(lab)
    assert not missing
    measured(share, f"{protocol}: holds a second, of four processes on two machines", (number - before) / SECONDS)


@needs_time
@pytest.mark.parametrize("share", FILES)
def test_no_increment_is_lost_or_doubled_when_machines_are_killed_and_come_back(share: str, start: Start) -> None:
    lab = start(share, "count", "sema", f"{LEASE}", "2", nodes=3)
    until, kills = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        time.sleep(KILL_EVERY)
        victim = 1 + kills % 2
        lab.kill(victim)
        kills += 1
        lab.boot(victim)
    lab.wait("up-1", 120)
    lab.wait("up-2", 120)
    ask_to_end(lab, [0, 1, 2])
    number, missing = increments(lab)
    require_no_overlap(lab)
    assert number > kills
    assert len(missing) <= kills, "more than the one that each kill may have interrupted"
    measured(share, f"increments on three machines, {kills} kills, {len(missing)} interrupted", number)


@needs_time
@pytest.mark.parametrize("share", [name for name in FILES if SHARES[name].reconnects])
def test_a_server_that_is_killed_and_started_again_loses_no_exclusion(share: str, start: Start) -> None:
    """Its machine loses its power, with the disk as it was then; the holders are on all three.

    A removal that the server has done, but not answered, is sent again when it is back, and may remove the next lock
    file. So a resource that goes by tokens is what is exact here.
    """
    lab = start(share, "count", "sema", f"{LEASE}", "2", nodes=3)
    for _ in range(3):
        time.sleep(2 * LEASE)
        before = counter(lab)
        lab.kill(0)
        time.sleep(LEASE / 2)
        lab.boot(0)
        lab.wait("up-0", 120)
        until = time.monotonic() + 120
        while counter(lab) < before + 10:
            assert time.monotonic() < until, f"nobody enters any more\n{lab.logs()}"
            time.sleep(0.5)
    ask_to_end(lab, [0, 1, 2])
    number, missing = increments(lab)
    assert len(missing) <= 3 * 2  # those of the server's own processes
    fenced = lab.logs().count("FENCED")
    measured(share, f"increments while the server was killed three times, {fenced} refused by their tokens", number)


@pytest.mark.parametrize("share", FILES)
def test_the_lock_of_a_machine_that_died_is_free_after_its_lease(share: str, start: Start) -> None:
    lab = start(share, "hold", f"{LEASE}", f"{ROUNDS if LONG else 1}")
    passed = []
    for number in range(5 if LONG else 1):
        lab.wait(f"waiting-{number}", 120)
        time.sleep(LEASE / 2)  # the waiter keeps watching for a while
        assert not (lab.out / f"acquired-{number}").exists()
        lab.kill(1)
        killed = time.time()
        acquired, token = lab.wait(f"acquired-{number}", 120).split()
        assert int(token) > int(lab.wait(f"held-{number}"))
        passed.append(float(acquired) - killed)
        lab.tell(f"next-{number}")
        if LONG and number < 4:
            lab.boot(1)
    measured(share, f"seconds from the kill of a machine to the next holder, lease {LEASE:g} s", *passed)
    if LONG:
        assert max(passed) <= SHARES[share].within * LEASE


@pytest.mark.parametrize("share", FILES)
def test_a_machine_that_is_cut_off_is_told_before_the_next_one_enters(share: str, start: Start) -> None:
    lab = start(share, "hold", f"{SHORT}", f"{ROUNDS}")
    told, entered = [], []
    for number in range(ROUNDS):
        lab.wait(f"waiting-{number}", 120)
        lab.tell("cut-1")
        cut = time.time()
        lost = float(lab.wait(f"lost-{number}"))
        acquired = float(lab.wait(f"acquired-{number}", 120).split()[0])
        assert lost < acquired  # by the host's clock, which all machines read
        told.append(lost - cut)
        entered.append(acquired - cut)
        lab.tell("mend-1")
        lab.tell(f"leave-{number}")
        assert lab.wait(f"left-{number}", 120) == "lost"
        lab.tell(f"next-{number}")
    lab.results([0, 1])
    measured(share, f"seconds from a cut to the holder's loss, lease {SHORT:g} s", *told)
    measured(share, f"seconds from a cut to the next holder, lease {SHORT:g} s", *entered)


@pytest.mark.parametrize("share", FILES)
def test_a_stopped_process_loses_its_lock_only_where_the_server_keeps_the_locks_of_the_dead(
    share: str, start: Start
) -> None:
    lab = start(share, "stop", f"{LEASE}")
    lab.wait("waiting-0", 120)
    lab.tell("stop")
    lab.wait("stopped")
    time.sleep(3 * LEASE)
    robbed = (lab.out / "acquired-0").exists()
    assert robbed is SHARES[share].lasting, "whether its kernel lock counts"
    lab.tell("go-on")
    lab.wait("lost-0")
    lab.tell("leave-0")
    assert lab.wait("left-0") == "lost"
    lab.wait("acquired-0")
    lab.tell("next-0")
    lab.results([0, 1])


@needs_time
def test_over_smb_lock_files_are_refused_and_leave_nothing(start: Start) -> None:
    lab = start("smb", "refuse")
    lab.results([0, 1])
