"""Many calls of the command for the price of one start: each is a process of its own, forked when all is imported.

Started by `World.each`. On stdin, the arguments of each call, as JSON; on stdout, what has become of each.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from importlib import import_module
from typing import NoReturn

from holdfast import cli


def prepare(words: list[str]) -> None:
    """Import what the call needs; where it is none, that is for the call to say."""
    import_module("holdfast.cli.arguments")
    command = words[0] if words else ""
    for name in ("run", "beads", cli._MODULES.get(command, "basic")):
        if name in (command, cli._MODULES.get(command), "basic"):
            import_module(f"holdfast.cli.{name}")


def _be(words: list[str]) -> NoReturn:
    """Taking an interpreter down costs as much as the rest of it; what that does to a command has tests of its own."""
    sys.argv[1:] = words
    status: object = 1
    try:
        cli.main()
    except SystemExit as end:
        status = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


def call(words: list[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    files = [os.memfd_create("output"), os.memfd_create("complaint")]
    pid = os.fork()
    if pid == 0:
        for number, fd in enumerate(files, 1):
            os.dup2(fd, number)
        _be(words)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = []
    for fd in files:
        with open(fd, "rb") as file:
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return status, said[0], said[1]


def main() -> None:
    calls: list[list[str]] = json.load(sys.stdin)
    for words in calls:
        prepare(words)
    import_module("holdfast._os").environment()  # nothing is held; after a fork it is the child's own
    gc.collect()
    gc.freeze()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    json.dump([call(words) for words in calls], sys.stdout)


if __name__ == "__main__":
    main()
