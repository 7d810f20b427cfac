"""`break`: remove one lock, if it is still the one that was seen."""

from __future__ import annotations

import argparse
import os
import sys

from .._admin.scan import EMPTY, Survey, id_of, name_of
from .._core.messages import advice, sentence
from .._drivers.sync import drive
from .._platform import environment
from ..engines.file.inspect import Assessment, Observation
from ..engines.file.remove import remove_if
from ..engines.file.request import FileRequest
from ..lock import Lock
from ..model import Liveness, Status
from ..protocols import is_persistent
from .console import as_json, rows_of, text_of
from .outcome import DONE, FAILED, HELD, USAGE, say, show
from .target import break_ as break_url
from .target import is_url

_WORD = "break"
_MEANS = (
    "Its holder lives. Without the file it goes on all the same, and the next one gets in beside it: end the process "
    "instead, or, if you are sure, use --force"
)


class _Breaking:
    """One lock, as it was seen first, and what was asked for."""

    def __init__(self, options: argparse.Namespace, status: Status) -> None:
        self.options = options
        self.status = status
        self.id = id_of(environment(), status)
        self._refused: str | None = None
        self._unreadable = False

    def refuse(self, why: str, code: int = HELD) -> int:
        if self.options.json:
            show(as_json("refused", self.status, id=self.id, why=why))
        else:
            say(f"{self.status.path} was not removed: {why}")
        return code

    def end(self, result: str) -> int:
        if self.options.json:
            show(as_json(result, self.status, id=self.id))
        elif not self.options.quiet:
            say(f"{self.status.path}: {result}")
        return DONE

    def remove(self, wanted: str) -> int:
        """Remove it if it is still called so."""
        status = self.status
        request = FileRequest(status.path, {"protocol": status.protocol or "sema"}, lock_file=status.path)

        def agreed(seen: Observation, assessed: Assessment) -> bool:
            self._refused = self._why_not(seen, assessed, wanted)
            self._unreadable = self._refused is None and seen.record is None
            return self._refused is None

        record = drive(remove_if(environment(), request, agreed))
        if self._refused is not None:
            return self.refuse(self._refused)
        gone = record is not None or (self._unreadable and not environment().exists(status.path))
        return self.end("broken" if gone else "not held")

    def _why_not(self, seen: Observation, assessed: Assessment, wanted: str) -> str | None:
        now = name_of(environment(), self.status.path, self.status.protocol, seen.data)
        if now != wanted:
            return f"it is not the one with the id {wanted}, but {now}. Look at its status, and decide anew"
        if assessed.liveness is Liveness.ALIVE and assessed.evidence.source == "guard" and not self.options.force:
            return f"{sentence(self.status)}. {_MEANS}"
        return None


def break_(options: argparse.Namespace) -> int:
    """Remove the lock that is meant, by its id or by the word of whoever sits at the terminal."""
    if is_url(options.lock):
        return break_url(options)
    status = _status(options)
    if status is None:
        say(f"{options.lock} is no lock file of a known protocol; if it is one all the same, name its protocol (-p)")
        return FAILED
    one = _Breaking(options, status)
    if is_persistent(status.protocol):
        return _refuse_kernel_lock(one)
    if one.id is None:
        return one.end("not held")
    wanted: str | None = options.id.strip().lower() if options.id is not None else None
    if wanted is None:
        if options.json or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            return one.refuse(
                f"{sentence(status)}. Where nobody can be asked, --id says which acquisition is meant; this one is "
                f"{one.id}",
                USAGE,
            )
        if status.liveness is Liveness.ALIVE and status.evidence.source == "guard" and not options.force:
            return one.refuse(f"{sentence(status)}. {_MEANS}")  # so there is nothing to ask
        if not _confirmed(one):
            return one.refuse("that was not confirmed")
        wanted = one.id
    return one.remove(wanted)


def _status(options: argparse.Namespace) -> Status | None:
    """One look at it; None for what is there and is no lock file."""
    if options.protocol is not None:
        return Lock(options.lock, protocol=options.protocol).status()
    path = os.path.join(os.getcwd(), options.lock)
    try:
        found = Survey(environment()).file(path)
    except (FileNotFoundError, NotADirectoryError):
        return Lock(path).status()  # says in its own words that nothing is there, or that nothing could be
    if found is not None and found.condition == EMPTY:
        return Lock(path).status()  # whoever wants to break it has met it as a lock that nobody releases
    return None if found is None else found.status


def _refuse_kernel_lock(one: _Breaking) -> int:
    status = one.status
    if not status.locked and not status.holders:
        return one.end("not held")
    return one.refuse(
        f"{sentence(status)}. Such a lock is the kernel's, and ends with its holder; without the file, others would "
        f"get in beside it. {advice(status)}"
    )


def _confirmed(one: _Breaking) -> bool:
    """Whether whoever sits at the terminal, having seen whose it is, says so."""
    status = one.status
    print(text_of([*rows_of(status), ("id", one.id or "")], sys.stderr), file=sys.stderr)
    if status.liveness is Liveness.ALIVE:
        print("Its holder lives, and is not stopped: the next one gets in beside it.", file=sys.stderr)
    print(f"Type {_WORD!r} to remove it: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == _WORD
