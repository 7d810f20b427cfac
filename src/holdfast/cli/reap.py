"""`reap`: watch a directory, and remove the lock of each holder the moment it dies (reaper.py)."""

from __future__ import annotations

import os

from .._admin.reaper import Reaper
from .._drivers.apart import seen_at
from .._drivers.sync import drive
from .._platform import environment
from .options import Namespace
from .outcome import say


def reap_(options: Namespace) -> int:
    """Run until a signal ends the process."""
    directory = seen_at(options.directory, lambda: os.path.realpath(options.directory))  # a watch follows no links
    directory = directory.replace(os.sep, "/")

    def tell(path: str, why: str) -> None:
        if not options.quiet:
            say(f"removed {path}: {why}")

    def ready() -> None:
        if not options.quiet:
            say(f"watching {directory}")
        notify("READY=1")

    try:
        drive(Reaper(environment(), directory, tell, lambda path, problem: say(f"{path}: {problem}")).run(ready))
    finally:
        notify("STOPPING=1")


def notify(state: str) -> None:
    """Tell the service manager, if there is one that asks for it (sd_notify). Never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    import socket

    where = "\0" + address[1:] if address[0] == "@" else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)) as channel:
            channel.sendto(os.fsencode(state), where)
    except OSError:
        pass
