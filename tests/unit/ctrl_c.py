"""Interruptions as Ctrl-C may make them: of a module at any of its lines, or of a `with` before its exit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from holdfast.lock import BaseHold, Exit, Leaving


def interrupted(module: object, act: Callable[[], object]) -> Iterator[None]:
    """Interrupt `act` at the first line, call or return of the face, then at the second one, and so on."""
    file, step = module.__file__, 0  # type: ignore[attr-defined]
    outer = sys.gettrace()  # of a measurement, which goes on afterwards
    while True:
        step += 1
        left = step

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != file or frame.f_code.co_name == "__del__":
                return None  # Python ignores what is raised in a finaliser
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            act()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(outer)
        yield
        if left > 0:
            return


class _Dropped(Leaving):
    __slots__ = ()

    def __call__(self, *_error: object) -> None:
        pass

    def __del__(self) -> None:
        pass


def drop_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the exit of each `with` of a lock before its first line, and the finalizers, too."""
    monkeypatch.setattr(Exit, "statement", _Dropped)
    monkeypatch.setattr(BaseHold, "__del__", lambda _: None)
