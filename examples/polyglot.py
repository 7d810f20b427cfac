"""One counter, three languages, one lock: `python examples/polyglot.py`.

A Python process, a shell script (polyglot.sh) and a Node process (polyglot.mjs) each add 1 to a number in a file, many
times. Each reads the number and writes it back, so two at once would lose an increment. The lock file is of the `sema`
protocol, because that is the simplest to write in any language: create the file exclusively, remove it when done.
The other two do just that, in a dozen lines, and need no holdfast.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast

TIMES = 100
HERE = Path(__file__).parent


def increment(counter: Path, lock_file: str) -> None:
    lock = holdfast.Lock(lock_file, protocol="sema", tag="counting in Python")
    for _ in range(TIMES):
        with lock:  # wakes when another language removes the file; nothing is polled
            counter.write_text(f"{int(counter.read_text()) + 1}\n")


def languages() -> dict[str, list[str]]:
    """The commands to run: those whose interpreter is here."""
    found = {"Python": [sys.executable, __file__]}
    for name, program in {"sh": "polyglot.sh", "node": "polyglot.mjs"}.items():
        interpreter = shutil.which(name)
        if interpreter is None:
            print(f"without {program}: there is no {name} here")
        else:
            found[program] = [interpreter, str(HERE / program)]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        counter, lock_file = Path(directory, "counter"), f"{directory}/counter.lock"
        counter.write_text("0\n")
        began = time.perf_counter()
        running = {
            name: subprocess.Popen([*command, str(counter), lock_file, str(TIMES)])
            for name, command in languages().items()
        }
        for name, process in running.items():
            assert process.wait() == 0, name
        wanted, found = TIMES * len(running), int(counter.read_text())
        took = time.perf_counter() - began
        print(f"{' + '.join(running)}: {len(running)} x {TIMES} increments make {found}, in {took:.1f} s")
        assert found == wanted, "an increment was lost"


if __name__ == "__main__":
    if len(sys.argv) == 4:
        increment(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
