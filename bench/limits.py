"""The kernel's own locks from a program in C (limits.c): the least that a lock between processes can cost.

A robust mutex is a futex(2) in memory that all processes share: free, it takes no system call. It belongs to no file
that anybody could look at, and each process must be trusted not to write there. Blocking flock(2) is the reference that
references.py has from Python, without the interpreter. Neither is a goal: they show how much of a number is the
machine's.
"""

from __future__ import annotations

import subprocess
from array import array
from functools import cache
from pathlib import Path

from peers import Subject
from procs import Failed, NotAvailable


class Limit(Subject):
    """A lock that limits.c takes, in processes of its own. `word` is its name there."""

    word: str

    @classmethod
    def measured(cls, programs: Path, path: Path | str, mode: str, *words: object, timeout: float = 60) -> array[int]:
        """The numbers that limits.c prints in that mode; `programs` is the directory for the compiled program."""
        return numbers(compiled("limits.c", programs), cls.word, path, mode, *words, timeout=timeout)


class RobustMutex(Limit):
    """pthread_mutex_t, process-shared and robust: the death of a holder frees it."""

    label, word = "robust mutex, C", "mutex"


class FlockInC(Limit):
    """flock(2), LOCK_EX, blocking."""

    label, word = "blocking flock, C", "flock"


LIMITS: tuple[type[Limit], ...] = (RobustMutex, FlockInC)


@cache
def compiled(source: str, directory: Path) -> Path:
    """The program compiled from `source`, a file beside this one. `NotAvailable` if it cannot be compiled."""
    program = directory / source.removesuffix(".c")
    command = ["cc", "-O2", "-pthread", "-o", str(program), str(Path(__file__).with_name(source))]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotAvailable("no C compiler (cc)") from None
    if made.returncode != 0:
        raise NotAvailable(f"cc failed: {made.stderr.strip().splitlines()[-1:]}")
    return program


def numbers(program: Path, *words: object, timeout: float) -> array[int]:
    """The 64-bit integers that the program prints. `Failed`, with its message, if it fails."""
    try:
        done = subprocess.run([str(program), *map(str, words)], capture_output=True, check=False, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from None
    if done.returncode != 0:
        raise Failed(done.stderr.decode().strip() or f"exit status {done.returncode}")
    found = array("q")
    found.frombytes(done.stdout)
    return found
