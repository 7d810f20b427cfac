"""The main job on real files: a held lock, a contender that waits for it, and a crash that is recovered.

Run it with `make demo`, or `python examples/demo.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast


def hold_until_told(path: str, tag: str) -> None:
    """The other process: hold the lock until a line arrives."""
    with holdfast.Lock(path, tag=tag).acquire(timeout=5):
        print("ready", flush=True)
        sys.stdin.readline()


def start_holder(path: str, tag: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, path, tag], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def say(text: str) -> None:
    print(f"\n== {text}")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "deploy.lock")
        lock = holdfast.Lock(path, tag="deploy v2")

        holder = start_holder(path, "deploy v1")
        say(f"process {holder.pid} holds the lock; this is the lock file:")
        print(Path(path).read_text(), end="")

        say("a second contender is told who holds it, and since when:")
        try:
            lock.acquire(timeout=0.2)
        except holdfast.AcquireTimeout as error:
            print(error)

        say("a contender that waits is woken when the holder releases; nobody polls:")
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        with lock.acquire(timeout=5) as hold:
            print(f"process {hold.record.pid} has it now, for {hold.record.tag!r}")
        assert not os.path.exists(path)
        holder.communicate()

        holder = start_holder(path, "deploy v3")
        say(f"process {holder.pid} holds the lock and is killed with SIGKILL; it leaves its lock file behind:")
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        status = lock.status()
        print(f"{status.liveness.value}: {status.evidence.text} (proven: {status.evidence.proven})")

        say("the next contender proves that it is dead and takes over, with no timeout to wait for:")
        began = time.perf_counter()
        with lock.acquire(timeout=5) as hold:
            took = (time.perf_counter() - began) * 1000
            assert hold.recovered_from is not None
            print(f"acquired in {took:.1f} ms, recovered from process {hold.recovered_from.pid}")

        say("and nothing is left:")
        print(os.listdir(directory))
        assert os.listdir(directory) == []


if __name__ == "__main__":
    if len(sys.argv) == 3:
        hold_until_told(sys.argv[1], sys.argv[2])
    else:
        main()
