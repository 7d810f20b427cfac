"""The frame of a run: fresh directories, and an end that leaves neither them nor a process."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from procs import adopt_orphans, end_adopted, kill_all, sweep_behind_us

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextmanager
def directories(*parents: Path) -> Iterator[list[Path]]:
    """A fresh directory in each parent; afterwards no child process, and no directory, is left."""
    for number in _SIGNALS:
        signal.signal(number, _stop)
    adopt_orphans()
    made: list[Path] = []
    try:
        # One by one: if the second cannot be made, the first is on the list already.
        made.extend(Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=parent.resolve())) for parent in parents)
        for directory in made:
            # The default place is a working tree, where someone may commit everything that is there.
            (directory / ".gitignore").write_text("*\n", encoding="ascii")
        sweep_behind_us(made)
        yield made
    finally:
        # A second Ctrl-C must not stop the clean-up.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        kill_all()
        end_adopted(settle=0.05)
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)


def _stop(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)
