"""Runs the tests again and again, in random order, beside busy loops: `make flaky TIMES=20 ARGS=tests/process`.

    python flaky.py [--times 20] [--jobs 3] [--load 4] [--stalls 0] [--seed N] [--keep DIRECTORY] [-- WORDS FOR PYTEST]

Round k has the seed N+k-1, so SEED=N repeats the order of a round. The output of a failed round is kept; it lists the
tests of each worker in their order. The busy loops end with this process, however it ends. With `--stalls 1.5`, all
processes of a round stand still for up to 1.5 s, every three seconds or so, as on a machine whose host has other work;
and one in four of the new ones by itself, at some moment of its first tenth of a second, so that others overtake it.

Exit status: 0 if every round passed, 1 if one failed, 130 if interrupted (the failures up to then are still listed).
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from shuffled import SEED

ROOT = Path(__file__).parents[1]
BUSY = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", re.MULTILINE)
"""Lines of pytest's short summary."""


@dataclass
class Round:
    number: int
    seed: int
    log: Path
    seconds: float = 0.0
    status: int = 0
    summary: str = ""
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"{self.number:5}  {self.seed:10}  {minutes:3}:{seconds:02}  {self.summary}"


def main(arguments: list[str]) -> int:
    options = parsed(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    place = options.keep / time.strftime("%Y%m%d-%H%M%S")
    place.mkdir(parents=True)
    rounds: list[Round] = []
    print(f"{options.times} rounds from SEED={options.seed}, {options.jobs} tests at a time, {options.load} busy loops")
    print(f"{'round':>5}  {'seed':>10}  {'time':>6}", flush=True)
    try:
        with load(options.load):
            for number in range(1, options.times + 1):
                seed = options.seed + number - 1
                rounds.append(Round(number, seed, place / f"round-{number:03}-seed-{seed}.log"))
                run(rounds[-1], options.jobs, options.stalls, options.words)
                print(rounds[-1], flush=True)
    except KeyboardInterrupt:
        rounds[-1].status, rounds[-1].summary = 130, "interrupted"
        print(rounds[-1])
    report(rounds)
    if not any(place.iterdir()):
        place.rmdir()
    return 130 if rounds[-1].status == 130 else int(any(each.status for each in rounds))


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="flaky.py", description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--load", type=int, default=4, help="how many busy loops")
    parser.add_argument("--stalls", type=float, default=0.0, help="stop a round for up to so many seconds (needs root)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "flaky", help="where failed rounds are kept")
    parser.add_argument("words", nargs="*", help="arguments of pytest")
    options = parser.parse_args(arguments)
    if options.times < 1:
        parser.error("at least one round")
    if options.stalls and os.geteuid() != 0:
        parser.error("--stalls needs root, to freeze a control group")
    return options


@contextmanager
def load(number: int) -> Iterator[None]:
    """Busy loops beside the body. Each ends itself once its parent has changed, as after a SIGKILL of this process."""
    command = [sys.executable, "-S", "-E", "-c", BUSY, str(os.getpid())]
    loops = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def stalled(process: subprocess.Popen[bytes], longest: float) -> Iterator[None]:
    """Freeze the process and its descendants again and again beside the body (cgroups(7), `cgroup.freeze`)."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    group = Path(next(mount[1] for mount in mounts if mount[2] == "cgroup2"), f"holdfast-stalls-{process.pid}")
    over = threading.Event()
    group.mkdir()
    (group / "cgroup.procs").write_text(str(process.pid))
    threads = [threading.Thread(target=stall, args=(group, longest, over)) for stall in (stall_all, stall_young)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        dissolve(group)  # with processes in it only if the round was interrupted


def stall_all(group: Path, longest: float, over: threading.Event) -> None:
    while not over.wait(random.expovariate(1 / 3)):
        frozen(group, random.uniform(0, longest), over)


def stall_young(group: Path, longest: float, over: threading.Event) -> None:
    """Freeze young processes, each by itself: the processes that they start meanwhile go on in the group of all."""
    seen: set[str] = set()
    threads: list[threading.Thread] = []
    while not over.wait(0.004):
        found = set((group / "cgroup.procs").read_text().split())
        for pid in found - seen:
            if random.random() < 0.25:
                threads.append(threading.Thread(target=stall_one, args=(group, pid, longest, over)))
                threads[-1].start()
        seen = found | {pid for pid in seen if Path("/proc", pid).exists()}  # or it is held in a group of its own
        threads = [thread for thread in threads if thread.is_alive()]
    for thread in threads:
        thread.join()


def stall_one(group: Path, pid: str, longest: float, over: threading.Event) -> None:
    over.wait(random.uniform(0, 0.1))
    alone = group / pid
    alone.mkdir()
    with suppress(ProcessLookupError):
        (alone / "cgroup.procs").write_text(pid)
        frozen(alone, random.uniform(0, longest), over)
    dissolve(alone)


def frozen(group: Path, seconds: float, over: threading.Event) -> None:
    (group / "cgroup.freeze").write_text("1")
    over.wait(seconds)
    (group / "cgroup.freeze").write_text("0")


def dissolve(group: Path) -> None:
    """Dissolve a group; its processes go on in the group above."""
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
            return
        except OSError:  # a process of it has just started another, or is about to be gone
            time.sleep(0.001)


def run(this: Round, jobs: int, longest: float, words: list[str]) -> None:
    """Run one round, in its own process group: an interrupt of this process reaches it once, when we pass it on."""
    options = ["-v", "-n", str(jobs), "--dist", "worksteal", f"--hypothesis-seed={this.seed}"]
    began = time.monotonic()
    with this.log.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *words],
            cwd=ROOT,
            env={**os.environ, SEED: str(this.seed), "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
        try:
            with stalled(process, longest) if longest else nullcontext():
                this.status = process.wait()
        except KeyboardInterrupt:
            end(process)
            raise
        finally:
            this.seconds = time.monotonic() - began
    read(this)
    if this.status == 0:
        this.log.unlink()


def end(process: subprocess.Popen[bytes]) -> None:
    """Let pytest tidy up, unless there is a second interrupt."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read(this: Round) -> None:
    text = this.log.read_text(errors="replace")
    found = re.findall(r"^=+ (.*\b(?:passed|failed|error|errors|skipped|ran)\b.*) in \S+.* =+$", text, re.MULTILINE)
    this.summary = found[-1] if found else ""
    if this.status:
        summary = text[text.rfind("short test summary info") :]
        this.failed = tuple(FAILED.findall(summary)) or (f"pytest itself, with status {this.status}",)
        this.summary = ", ".join(filter(None, [this.summary, f"exit status {this.status}"]))


def report(rounds: list[Round]) -> None:
    print(f"\n{'round':>5}  {'seed':>10}  {'time':>6}")
    for each in rounds:
        print(each)
    names = sorted({name for each in rounds for name in each.failed})
    times = {name: [each for each in rounds if name in each.failed] for name in names}
    print(f"\n{len(names) or 'nothing'} failed in {len(rounds)} rounds")
    for name in sorted(names, key=lambda name: -len(times[name])):
        print(f"{len(times[name])} of {len(rounds)}  {name}")
        for each in times[name]:
            print(f"    SEED={each.seed}  {each.log}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
