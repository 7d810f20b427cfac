"""Values that all layers use (model.py, events.py, remote.py), misused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast import sema, semats, sidecar
from holdfast.events import Event, deliver
from holdfast.model import Value


class Pair(Value):
    first: int
    second: int = 2


def test_a_value_is_made_of_its_own_fields() -> None:
    assert Pair(1) == Pair(first=1, second=2) != Pair(1, 3)
    with pytest.raises(TypeError, match="Pair takes 2 values, not 3"):
        Pair(1, 2, 3)
    with pytest.raises(TypeError, match="Pair needs 'first'"):
        Pair(second=1)
    with pytest.raises(TypeError, match="no such field, or was given it twice: 'first'"):
        Pair(1, first=1)
    with pytest.raises(TypeError, match="no such field, or was given it twice: 'third'"):
        Pair(1, third=1)


def test_a_complaint_that_cannot_be_written_does_not_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback fails, and so does the log handler: the lock must not suffer from either."""

    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise ValueError(record.getMessage())

    def failing(_event: Event) -> None:
        raise RuntimeError("a defect of the callback")

    logger, handler = logging.getLogger("holdfast"), Broken()
    logger.addHandler(handler)
    try:
        deliver(Event("acquired", 0.0, "/l", "sema", 1, 1, "me", None, None, 0.0, None, None, None), failing)
    finally:
        logger.removeHandler(handler)


def test_the_objects_of_the_faces_can_be_told_apart_in_a_traceback(disk: Path) -> None:
    assert repr(sema.Semaphore(str(disk / "a"))) == f"<holdfast.sema.Semaphore {str(disk / 'a')!r}>"
    assert str(disk / "b") in repr(semats.Semaphore(str(disk / "b")))
    assert "sidecar" in repr(sidecar.create_file_lock_manager(str(disk)))
