"""How a LOCK of another program is shown by `status`, and waited for by `wait` (foreign.py)."""

from __future__ import annotations

from .._admin.kinds.base import View, sentence
from .._admin.kinds.waiting import until_free
from .._core.messages import duration, moment
from .._drivers.sync import drive
from .._platform import environment
from ..lock import Lock
from .console import as_json, holder_text, rows_of_content, rows_of_waiters, text_of
from .foreign import look_at
from .locks import absolute, answered, is_url
from .outcome import DONE, HELD, say, show
from .target import of_survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from .._admin.found import Found


def of_status(options: argparse.Namespace, found: Found) -> int:
    """As `status` shows a lock of ours."""
    status = found.status
    if options.json:
        more: dict[str, Any] = {
            "content_protocol": None,
            "kernel_lock": [],
            "stale_for": [],
            "heartbeat": None,
            "next": found.advice,
        }
        result = "held" if status.locked else "free"
        show(as_json(result, status, condition=found.condition, **of_survey(found), **more))
    elif not options.quiet:
        rows = _rows(found)
        if options.verbose:
            env = environment()
            view = View(env, env.proc_files, status.path, env.stat(status.path))
            link = view.link()
            rows += [("content", f"-> {link}")] if link else rows_of_content("content", view.data())
        show(text_of(rows))
    return HELD if status.locked else DONE


def _rows(found: Found) -> list[tuple[str, str]]:
    status = found.status
    rows = [("lock", f"{status.path} ({status.protocol}'s)"), ("state", found.condition)]
    named = [one for one in status.holders if one.pid is not None or one.host is not None or one.tag is not None]
    rows += [("" if number else "holder", holder_text(one)) for number, one in enumerate(named)]
    user = of_survey(found)["user"]
    if user is not None:
        rows.append(("user", user))
    if status.holder is not None and status.holder.since is not None:
        rows.append(("since", f"{moment(status.holder.since)} ({duration(status.age or 0)} ago)"))
    if status.holder is not None and status.holder.tag is not None:
        rows.append(("tag", status.holder.tag))
    rows.append(("liveness", f"{status.liveness.value}: {status.evidence.text}"))
    rows.append(("verdict", status.reason))
    if found.advice:
        rows.append(("next", found.advice))
    return rows + rows_of_waiters(status.waiters)


class Awaited:
    """A lock of another program, as `wait` waits for it: with a notice after a second."""

    def __init__(self, options: argparse.Namespace, path: str) -> None:
        self._options = options
        self._path = path
        self._left: Found | None = None

    def wait(self, timeout: float | None) -> bool:
        """Whether it has ended within so many seconds; None: for ever."""
        env = environment()
        watch = env.folder_watch()
        told = None if self._options.quiet else self._notice
        try:
            self._left = drive(until_free(env, watch, self._path, lambda: look_at(self._path), timeout, told))
        finally:
            if watch is not None:
                watch.close()
        return self._left is None

    def _notice(self, seen: Found) -> None:
        say(f"waiting for {self._path} ({seen.status.protocol}'s): {sentence(seen)}. {seen.advice}")

    def tell_waited(self) -> int:
        """Say how the last wait has ended; the exit status."""
        options, left = self._options, self._left
        if options.json:
            status = Lock(self._path).status() if left is None else left.status
            show(as_json("free" if left is None else "held", status))
        elif left is not None and not options.quiet:
            why = f"did not become free: {sentence(left)}. {left.advice}"
            say(f"{self._path} ({left.status.protocol}'s) {why}")
        if left is None and options.verbose:
            say(f"{self._path} is free")
        return DONE if left is None else int(options.held_code)


def awaited(options: argparse.Namespace) -> Awaited | None:
    """None for what is no lock of another program, or is to be looked at by a protocol."""
    if options.protocol is not None or options.slots is not None or is_url(options.lock):
        return None
    path = absolute(options.lock)
    seen = answered(Lock(path), options.timeout, lambda: look_at(path))
    return None if seen is None else Awaited(options, path)
