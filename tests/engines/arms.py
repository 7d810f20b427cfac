"""Tests that do little but wait, waited for once: the arms of a module run side by side, each on locks of its own.

A fixture of the module runs them to their ends; each test then asks how its own arm has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from process.support import Peer

PATIENCE = 120.0


def side_by_side(**bodies: Callable[[], object]) -> dict[str, Callable[[], None]]:
    """Run them, to their ends. What to call, by name, to hear how one has ended."""
    raised: dict[str, BaseException] = {}

    def run(name: str, body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:  # a failed test and a skipped one are told in the same way
            raised[name] = error

    threads = {
        name: threading.Thread(target=run, args=(name, body), name=name, daemon=True) for name, body in bodies.items()
    }
    for thread in threads.values():
        thread.start()

    def ending(name: str) -> Callable[[], None]:
        threads[name].join(PATIENCE)

        def tell() -> None:
            assert not threads[name].is_alive(), f"{name} has not ended within {PATIENCE:g} s"
            if name in raised:
                raise raised[name]

        return tell

    return {name: ending(name) for name in threads}


@contextmanager
def peers() -> Iterator[Callable[..., Peer]]:
    """Start other processes, which end with the block."""
    started: list[Peer] = []

    def start(code: str, *arguments: object) -> Peer:
        started.append(Peer(code, arguments))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.destroy()
