"""A cache that is filled once, by whoever comes first, also if that one dies: `python examples/build_cache.py`.

Eight processes want the same artifact. One builds it, the others wait. The builder is killed half-way: another one
builds, and nobody ever sees half an artifact.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import holdfast

PARTS = 10


def fetch(cache: Path, name: str, build: Callable[[Path], None]) -> tuple[Path, str]:
    """The artifact, and how we came by it."""
    artifact = cache / name
    if artifact.exists():  # it appears whole, so a reader needs no lock
        return artifact, "found"
    with holdfast.Lock(f"{artifact}.lock", tag=f"build {name}") as hold:
        if artifact.exists():  # built while we waited
            return artifact, "waited"
        # One name for all builders: a dead one leaves at most this file, and the next one writes over it.
        unfinished = cache / f"{name}.unfinished"
        build(unfinished)
        hold.ensure_held()  # or somebody removed our lock file, and another one may be building
        os.replace(unfinished, artifact)
        if hold.recovered_from is not None:
            return artifact, f"built after process {hold.recovered_from.pid} had died"
        return artifact, "built"


def compile_slowly(path: Path) -> None:
    with path.open("w") as file:
        for part in range(PARTS):
            print(f"part {part}", file=file, flush=True)
            time.sleep(0.01)
        os.fsync(file.fileno())  # on the disk before it gets its name, or a power cut could leave that name empty


def compile_or_die(path: Path) -> None:
    """The same, but the first one that tries is killed half-way."""
    try:
        path.with_suffix(".tried").mkdir()
    except FileExistsError:
        compile_slowly(path)
    else:
        path.write_text("part 0\npart 1\n")
        os.kill(os.getpid(), 9)


def worker(cache: str, name: str, journal: str) -> None:
    artifact, how = fetch(Path(cache), name, compile_or_die)
    assert len(artifact.read_text().splitlines()) == PARTS, "half an artifact"
    with open(journal, "a") as file:
        file.write(how + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        journal = os.path.join(directory, "journal")
        workers = [multiprocessing.Process(target=worker, args=(directory, "libfoo.a", journal)) for _ in range(8)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
        builders = [line for line in Path(journal).read_text().splitlines() if line.startswith("built")]
        print(f"{[process.exitcode for process in workers].count(-9)} of {len(workers)} processes was killed half-way")
        print(f"{len(builders)} of the others has {builders[0]}; {sum(not p.exitcode for p in workers)} have it whole")


if __name__ == "__main__":
    if len(sys.argv) == 3:  # a directory and a name: for whoever wants an artifact
        print(*fetch(Path(sys.argv[1]), sys.argv[2], compile_slowly))
    else:
        main()
