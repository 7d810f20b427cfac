"""Tests that do little but wait, waited for once: the arms of a module run side by side, each on locks of its own.

A fixture of the module runs them to their ends; each test then asks how its own arm ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from process.support import Peer

PATIENCE = 120.0


def side_by_side(**bodies: Callable[[], object]) -> dict[str, Callable[[], None]]:
    """Run the bodies side by side, to their ends; functions, by name, that tell how each has ended."""
    arms = [_Arm(name, body) for name, body in bodies.items()]
    for arm in arms:
        arm.thread.join(PATIENCE)
    return {arm.thread.name: arm.tell for arm in arms}


@contextmanager
def begun(body: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Begin a body that leaves this process and its servers alone: the tests beside it go on, and the result waits for
    it. So does the end of the block, as the test that asks for the result may not be among those that run."""
    arm = _Arm("arm", body)
    yield arm.tell
    arm.thread.join(PATIENCE)


class _Arm:
    def __init__(self, name: str, body: Callable[[], object]) -> None:
        self._body = body
        self._raised: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:  # a failed test and a skipped one are told in the same way
            self._raised = error

    def tell(self) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), f"{self.thread.name} has not ended within {PATIENCE:g} s"
        if self._raised is not None:
            raise self._raised


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
