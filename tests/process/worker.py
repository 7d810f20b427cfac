"""The storm: processes that increment a counter under one lock while somebody kills them at random.

    python worker.py LOCK STATE SECONDS WORKERS [SHELL]

LOCK is the lock path, STATE a directory for everything else. This small process forks the workers, so that a new one
costs a millisecond; it prints what happened as JSON. What is written inside the critical section is the proof:

    journal    e PID            this process is inside
               i N WHO FROM     WHO is about to make the counter N; it took the lock over from FROM, or `-`
               d N WHO          the counter is N
               x WHO PID        WHO found PID inside as well
    counter    N

Exact, because a killed process can leave out only a last `d`, and then its `i` says so. Whoever comes next must find N,
or N - 1 and an `i` without a `d`. That two are never inside at once is also asked of a file that has nothing to do with
the lock: its flock must never be refused, except by one that is being killed at that moment, whose descriptors the
kernel closes one after the other.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time

KILL_EVERY = 0.05
KILLS_A_SECOND, INCREMENTS_A_SECOND = 5, 50
"""At least, of the seconds asked for."""
PATIENCE = 60.0
LINGER, LINGER_SHARE = 0.002, 0.1
"""Some stay inside for up to so many seconds, so that the lock changes hands and kills find somebody inside."""

SHELL = r"""
# A contender as the specification's own example has it: plain shell, nothing of holdfast.
lock=$1 state=$2
now=$(date +%s)
exec 8>>"$state/journal" 9>>"$state/detector"
while [ -e "$state/go" ]; do
    if (set -o noclobber; printf 'pid=%s\ntimestamp=%s\ntag=shell\n' $$ "$now" > "$lock") 2>/dev/null; then
        read -r n < "$state/counter"
        n=$((n + 1))
        echo "e $$" >&8
        if ! flock -n 9; then
            other=$(grep '^e' "$state/journal" | tail -n 2 | head -n 1)
            other=${other#e }
            set -- $(cat "/proc/$other/stat" 2>/dev/null)
            if [ $# -gt 9 ] && [ $(($9 & 4)) -eq 0 ]; then echo "x shell $other" >&8; fi
            flock 9
        fi
        echo "i $n shell -" >&8
        echo "$n" > "$state/counter"
        echo "d $n shell" >&8
        flock -u 9
        rm -f "$lock"
    else
        sleep 0.001
    fi
done
"""


def increment(name: str, state: str, counter: int, journal: int, detector: int, recovered: str) -> None:
    os.write(journal, f"e {os.getpid()}\n".encode())
    try:
        fcntl.flock(detector, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = inside(state)[-2]  # the last is this process
        if not is_dying(other):
            os.write(journal, f"x {name} {other}\n".encode())
        fcntl.flock(detector, fcntl.LOCK_EX)
    n = int(os.pread(counter, 64, 0)) + 1
    os.write(journal, f"i {n} {name} {recovered}\n".encode())
    if random.random() < LINGER_SHARE:
        time.sleep(random.random() * LINGER)
    os.pwrite(counter, b"%-20d\n" % n, 0)
    os.write(journal, f"d {n} {name}\n".encode())
    fcntl.flock(detector, fcntl.LOCK_UN)


def inside(state: str) -> list[int]:
    """The processes that were inside last, the latest at the end."""
    with open(f"{state}/journal", "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        return [int(line[2:]) for line in file.read().splitlines() if line.startswith(b"e ")]


def is_dying(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            flags = int(file.read().rpartition(b")")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(flags & 4)  # PF_EXITING


def work(path: str, state: str, name: str) -> None:
    from holdfast import Lock

    counter = os.open(f"{state}/counter", os.O_RDWR)
    journal = os.open(f"{state}/journal", os.O_WRONLY | os.O_APPEND)
    detector = os.open(f"{state}/detector", os.O_RDWR)
    lock = Lock(path, tag=name)
    while os.path.exists(f"{state}/go"):
        hold = lock.acquire(timeout=30)
        recovered = hold.recovered_from.tag if hold.recovered_from else "-"
        increment(name, state, counter, journal, detector, recovered)
        hold.release()


class Storm:
    def __init__(self, path: str, state: str) -> None:
        self.path = path
        self.state = state
        self.workers: dict[int, str] = {}
        self.killed: list[str] = []
        self.failed: list[str] = []
        self.started = 0
        self.shell = False
        """Whether a shell contends, too."""

    def start(self) -> None:
        name = f"w{self.started}"
        self.started += 1
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.work(name)
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        self.workers[pid] = name

    def work(self, name: str) -> None:
        work(self.path, self.state, name)

    def inside(self) -> list[int]:
        return inside(self.state)

    def kill(self) -> None:
        """Anyone, or the one that was last seen inside; now and then also one of those who then take over."""
        victims = [random.choice(list(self.workers))]
        last = self.inside()[-1:]
        if last and last[0] in self.workers and random.random() < 0.5:
            victims = last
        if random.random() < 0.25:
            victims.append(random.choice(list(self.workers)))
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for pid in set(victims):
            self.reap(pid)
            self.start()

    def reap(self, pid: int) -> None:
        name = self.workers.pop(pid)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            self.killed.append(name)
        elif status:
            self.failed.append(name)

    def enough(self, seconds: float) -> bool:
        """Whether it has been a storm; on a busy machine that takes longer."""
        if len(self.killed) <= KILLS_A_SECOND * seconds or self.counter() <= INCREMENTS_A_SECOND * seconds:
            return False
        with open(f"{self.state}/journal", encoding="ascii") as file:
            return not self.shell or any(line.endswith(" shell\n") for line in file)

    def counter(self) -> int:
        with open(f"{self.state}/counter", encoding="ascii") as file:
            return int(file.read() or 0)  # the shell makes it empty for a moment

    def run(self, seconds: float, workers: int) -> None:
        until = time.monotonic() + seconds
        for _ in range(workers):
            self.start()
        while not self.failed and (time.monotonic() < until or not self.enough(seconds)):
            assert time.monotonic() < until + PATIENCE, "too little has happened"
            time.sleep(KILL_EVERY)
            self.kill()
        os.unlink(f"{self.state}/go")
        for pid in list(self.workers):
            self.reap(pid)


def prepare(state: str) -> None:
    for name, content in (("counter", "0\n"), ("journal", ""), ("detector", ""), ("go", "")):
        with open(f"{state}/{name}", "w") as file:
            file.write(content)


def main(path: str, state: str, seconds: str, workers: str, shell: str = "") -> None:
    prepare(state)
    import holdfast._os  # once, here; every worker is a fork of this process

    holdfast._os.environment().identity()
    storm = Storm(path, state)
    storm.shell = bool(shell)
    other = subprocess.Popen([shell, "-c", SHELL, shell, path, state]) if shell else None
    try:
        storm.run(float(seconds), int(workers))
        if other is not None and other.wait(30) != 0:
            storm.failed.append(shell)
    finally:
        for pid in storm.workers:
            os.kill(pid, signal.SIGKILL)
        if other is not None:
            other.kill()
    print(json.dumps({"killed": storm.killed, "failed": storm.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
