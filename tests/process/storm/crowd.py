"""The storm of worker.py with contenders of every kind, which are killed, stopped and continued at random.

    python monitor.py PLAN

PLAN is JSON: `path`, `protocol`, `state`, `seconds`, `kinds` (names of `KINDS`, repeated as often as wanted), and
`modules`, the Node and the module of the kinds that need one. The results are printed as JSON.

A stopped holder keeps the lock: while it is stopped inside, the journal must not grow (`robbed`). A stopped waiter is
passed: the others go on meanwhile (`passed`). This process adopts the orphans of its children, and waits for all of
them in the end (`left`).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from children import fork
from storm import contenders
from storm.inside import Inside
from worker import Storm, prepare, warm_up

HERE = Path(__file__).parent
PR_SET_CHILD_SUBREAPER = 36
TICK = 0.02
VISITS, PAUSE = 3, 0.5
"""Visits, or seconds, between two disturbances: on a busy machine, too, most contenders live for long enough to get
in."""
STOP_SHARE, MEANWHILE_KILLED = 0.3, 0.1
STOPPED_AT_ONCE = 2
STOPS = (0.03, 0.03, 0.1, 0.5)
"""Seconds of a stop, each as likely as another. A contender that is stopped as its turn comes delays the next one."""
END = 60.0
"""Seconds within which everything has ended once the storm is over."""

# Each hold of a script lasts as long as a hundred of the others': hence the pauses.
HOLDFAST = f"{sys.executable} -m holdfast"
ONCE = f'{sys.executable} -ISs {HERE}/inside.py "$3" "$4"'

RUN = f"""
while [ -e "$3/go" ]; do
    {HOLDFAST} run -q -p "$2" -t "$4" "$1" -- {ONCE} 2> "$3/said-$$"
    status=$?
    cat "$3/said-$$" >&2
    [ $status -eq 0 ] || [ $status -eq 137 ] || grep -q "guardian was killed" "$3/said-$$" || exit $status
    sleep 0.1
done
"""
"""A loop of `holdfast run`, whose guardian may be killed at once with the command, or before that was started."""
SHELL = f"""
while [ -e "$3/go" ]; do
    if {HOLDFAST} acquire -q -w 20 -p "$2" -t "$4" "$1"; then
        {ONCE} || exit 10
        {HOLDFAST} release -q -p "$2" "$1" || exit 11
    elif {HOLDFAST} try -q -p "$2" -t "$4" "$1"; then
        {ONCE} || exit 12
        {HOLDFAST} release -q -p "$2" "$1" || exit 13
    fi
    sleep 1
done
"""
SEMA = f"""
while [ -e "$3/go" ]; do
    {HOLDFAST} sema acquire "$1" -q || exit 10
    {ONCE} || exit 11
    {HOLDFAST} sema release "$1" -q || exit 12
    sleep 1
done
"""
SEMATS = f"""
while [ -e "$3/go" ]; do
    {HOLDFAST} semats acquire "$1" >/dev/null || exit 10
    {ONCE} || exit 11
    {HOLDFAST} semats release "$1" -f >/dev/null || exit 12
    sleep 1
done
"""
FLOCK = f"""
while [ -e "$3/go" ]; do
    flock "$1" {ONCE}
    status=$?
    [ $status -eq 0 ] || [ $status -eq 137 ] || exit $status
    sleep 0.05
done
"""
FCNTL = FLOCK.replace("flock ", "flock --fcntl ")
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
TIME = ["unshare", "--time", "--boottime", "864000", "--monotonic", "432000", "--fork", "--kill-child"]


class Kind(NamedTuple):
    letter: str
    weight: int = 0
    """How often it is killed; 0: never, as nobody could know that its lock is no longer held."""
    script: str = ""
    prefix: tuple[str, ...] = ()
    python: str = ""


KINDS = {
    **{name: Kind(name[0], 6) for name in contenders.KINDS if name not in ("stand-in", "rude", "lockf")},
    "stand-in": Kind("S"),
    "lockf": Kind("l", 6),
    "rude": Kind("X"),
    "container": Kind("c", 2, prefix=tuple(CONTAINER), python="sync"),
    "other clock": Kind("o", 2, prefix=tuple(TIME), python="sync"),
    "run": Kind("R", 1, RUN),
    "shell": Kind("H", 1, SHELL),
    "flock(1)": Kind("F", 2, FLOCK),
    "flock(1) --fcntl": Kind("L", 2, FCNTL),
    "drop-in sema": Kind("D", 0, SEMA),
    "drop-in semats": Kind("D", 0, SEMATS),
    "fs-safe 0.3.0": Kind("N"),
    "fs-safe 0.21.0": Kind("M"),
    "proper-lockfile": Kind("P"),
}
"""How each kind is started: as a fork of this process, a script, or a program with words before it."""


class Stop(NamedTuple):
    until: float
    size: int
    """Size of the journal, if it was stopped inside; -1: it was not inside."""


class Crowd(Storm):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan["path"], plan["state"])
        self.plan = plan
        self.kinds: dict[int, str] = {}
        self.alone = Inside(self.state)
        self.stopped: dict[int, Stop] = {}
        self.visits = 0
        self.disturbed = 0.0
        self.told = {"stops": 0, "kept": 0, "passed": 0}
        self.robbed: list[str] = []
        self.left: list[str] = []

    # -- starting --

    def begin(self, kind: str) -> None:
        how = KINDS[kind]
        name = f"{how.letter}{self.started}"
        self.started += 1
        words = [self.path, self.plan["protocol"], self.state, name]
        if how.script:
            pid = self._execute(["sh", "-c", how.script, "sh", *words])
        elif how.python:
            program = [sys.executable, str(HERE / "contenders.py"), how.python, *words, str(self.alone.proc)]
            pid = self._execute([*how.prefix, *program])
        elif kind in self.plan["modules"]:
            node, module = self.plan["modules"][kind]
            arguments = [self.path, self.state, name, sys.executable, str(HERE / "inside.py")]
            script = "proper_lockfile.mjs" if kind == "proper-lockfile" else "fs_safe.mjs"
            pid = self._execute([node, str(HERE / script), module, *arguments])
        else:
            pid = fork(lambda: contenders.be(kind, contenders.Contender(*words, self.alone.proc)))
        self.workers[pid], self.kinds[pid] = name, kind

    def _execute(self, command: list[str]) -> int:
        return subprocess.Popen(command, process_group=0, pass_fds=[self.alone.proc], stdout=2).pid

    # -- disturbing --

    def disturb(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, stop in self.stopped.items() if now >= stop.until]:
            self.go_on(pid)
        visits = int(os.pread(self.alone.counter, 64, 0))
        if visits < self.visits + VISITS and now < self.disturbed + PAUSE:
            return
        self.visits, self.disturbed = visits, now
        if random.random() < STOP_SHARE and len(self.stopped) < STOPPED_AT_ONCE:
            self.stop(self.one_inside(0.8) or random.choice(list(self.workers)))
        else:
            self.kill()

    def one_inside(self, share: float) -> int | None:
        """The contender that was last seen inside, if that is still known."""
        last = self.alone.entered()[-1:]
        if not last or random.random() >= share:
            return None
        try:
            group = os.getpgid(last[0])
        except ProcessLookupError:
            return None
        return next((pid for pid in (last[0], group) if pid in self.workers), None)

    def kill(self) -> None:
        """Kill any contender that may be killed, or the one last seen inside; now and then two at a time."""
        may = [pid for pid, kind in self.kinds.items() if KINDS[kind].weight and pid not in self.stopped]
        if not may:
            return
        victims = random.choices(may, [KINDS[self.kinds[pid]].weight for pid in may], k=random.choice((1, 1, 1, 2)))
        inside = self.one_inside(0.5)
        if inside in may and random.random() < KINDS[self.kinds[inside]].weight / 4:
            victims[0] = inside
        for pid in set(victims):
            if self.kinds[pid] not in ("run", "flock(1)", "flock(1) --fcntl") or random.random() < 0.3:
                self.end(pid)
            else:
                self.kill_one_below(pid)

    def end(self, pid: int) -> None:
        """Kill a contender, with its whole group if it has one, and start another one of its kind."""
        kind = self.kinds[pid]
        self.signal(pid, signal.SIGKILL)
        if KINDS[kind].prefix:
            self.killed.append(self.workers[pid] + contenders.OF_CHILD)  # of its group, and of its container
        self.reap(pid)
        self.begin(kind)

    def kill_one_below(self, pid: int) -> None:
        """Kill the command that holds the lock, or the process inside it: one of them goes on alone."""
        below, at = [], pid
        while (children := children_of(at)) and len(children) == 1:
            at = children[0]
            below.append(at)
        if below:
            try:
                os.kill(random.choice(below), signal.SIGKILL)
            except ProcessLookupError:
                return
            self.killed.append(self.workers[pid])
            self.alone.give_up()

    def signal(self, pid: int, number: int) -> None:
        try:
            group = os.getpgid(pid) == pid
        except ProcessLookupError:
            return
        (os.killpg if group else os.kill)(pid, number)

    def stop(self, pid: int) -> None:
        if pid in self.stopped:
            return
        self.signal(pid, signal.SIGSTOP)
        last = self.alone.entered()[-1:]
        still = [pid, *(other for other in last if group_of(other) == pid)]
        until = time.monotonic() + 1
        while not all(is_stopped(other) for other in still):
            if time.monotonic() > until:
                break  # it has ended, or sleeps where no signal is heard
            time.sleep(0.0005)
        self.told["stops"] += 1
        size = -1
        if all(is_stopped(other) for other in still):
            size = self.size() if self.is_inside(pid) else -1
        self.stopped[pid] = Stop(time.monotonic() + random.choice(STOPS), size)

    def is_inside(self, pid: int) -> bool:
        """Whether it is inside, by the end of the journal: nobody else may be, while it is stopped."""
        kind, *words = self.alone.tail()[-1:][0].decode().split() if self.size() else [""]
        if kind == "e":
            return group_of(int(words[0])) == pid or int(words[0]) == pid
        return kind == "i" and words[1].partition(".")[0] == self.workers[pid]

    def go_on(self, pid: int) -> None:
        stop = self.stopped.pop(pid)
        if stop.size >= 0:
            self.told["kept"] += 1
            if self.size() != stop.size:
                self.robbed.append(self.workers[pid])
        else:
            self.told["passed"] += 1
        if KINDS[self.kinds[pid]].weight and random.random() < MEANWHILE_KILLED:
            self.end(pid)
        else:
            self.signal(pid, signal.SIGCONT)

    def size(self) -> int:
        return os.fstat(self.alone.journal).st_size

    # -- the whole --

    def storm(self) -> None:
        until = time.monotonic() + self.plan["seconds"]
        for kind in self.plan["kinds"]:
            self.begin(kind)
        while time.monotonic() < until and not self.failed and not self.robbed:
            time.sleep(TICK)
            self.disturb()
            for pid in [pid for pid in self.workers if has_ended(pid)]:
                self.failed.append(f"{self.workers[pid]} ({self.kinds[pid]}) ended by itself")
                self.reap(pid)
        for pid in list(self.stopped):
            self.go_on(pid)
        os.unlink(f"{self.state}/go")
        self.finish()

    def finish(self) -> None:
        until = time.monotonic() + END
        while self.workers and time.monotonic() < until:
            for pid in [pid for pid in self.workers if has_ended(pid)]:
                self.reap(pid)
            time.sleep(0.005)
        self.failed += [f"{name} did not end" for name in self.workers.values()]
        while time.monotonic() < until:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return  # there are none left
            if pid and not os.WIFSIGNALED(status) and status:
                self.failed.append(f"an orphan ended with {status:#x}")
            time.sleep(0 if pid else 0.005)
        self.left = [" ".join(command_of(pid)) for pid in children_of(os.getpid())]

    def reap(self, pid: int) -> None:
        self.kinds.pop(pid)
        self.stopped.pop(pid, None)
        super().reap(pid)

    def outcome(self) -> dict[str, Any]:
        return {
            "killed": self.killed,
            "failed": self.failed,
            "robbed": self.robbed,
            "left": self.left,
            "by_kind": {KINDS[kind].letter: kind for kind in self.plan["kinds"]},
            **self.told,
        }


# -- processes ---------------------------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [str(pid)]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def states_of(pid: int) -> list[str]:
    """States of its threads, the first thread first."""
    states = []
    try:
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: task.name != str(pid))
    except (FileNotFoundError, ProcessLookupError):
        return []
    for task in tasks:
        try:
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # one thread that has ended, or all of them
    return states


def is_stopped(pid: int) -> bool:
    states = states_of(pid)
    return bool(states) and set(states) == {"T"}


def has_ended(pid: int) -> bool:
    return states_of(pid)[:1] in ([], ["Z"])


def main(plan: dict[str, Any]) -> None:
    prepare(plan["state"])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in ("asyncio", "holdfast.aio", *(["uvloop"] if "uvloop" in plan["kinds"] else [])):
        importlib.import_module(name)
    warm_up()
    crowd = Crowd(plan)
    try:
        crowd.storm()
    finally:
        for pid in list(crowd.workers):
            crowd.signal(pid, signal.SIGKILL)
    print(json.dumps(crowd.outcome()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
