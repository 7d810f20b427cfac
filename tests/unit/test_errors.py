"""Errors: their fields, their messages, and pickling (errors.py, messages.py)."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast._admin.scan import heartbeat, own_view
from holdfast._core.attempt import AttemptEvents, Refusal
from holdfast._core.messages import advice, duration, moment, printable, refused, sentence, waiting
from holdfast._platform import environment
from holdfast.cli.console import rows_of
from holdfast.errors import HoldfastError
from holdfast.liveness import Liveness
from holdfast.lock import requests_of
from holdfast.model import Evidence, Holder, Identity, Marker, Record, Status
from unit.stepping import Contender, sema_record

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HoldfastError)]
BUILTIN = {
    "AcquireTimeout": TimeoutError,
    "WouldDeadlock": RuntimeError,
    "MalformedRecord": ValueError,
    "InvalidPath": ValueError,
    "UnsupportedFilesystem": OSError,
    "EngineUnavailable": OSError,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_a_pickle(kind: type[HoldfastError]) -> None:
    holder = Holder(pid=7, host="h", since=1.5, tag="t", command="c")
    error = kind("what happened", path="/p", protocol="sema", holder=holder)
    error.add_note("what else happened")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is kind
        assert (str(copy), copy.path, copy.protocol, copy.holder) == ("what happened", "/p", "sema", holder)
        assert copy.__notes__ == ["what else happened"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_can_be_caught_by_its_builtin_base(kind: type[HoldfastError]) -> None:
    assert issubclass(kind, BUILTIN.get(kind.__name__, HoldfastError))
    assert kind.__name__ in holdfast.__all__
    bare = kind("m")
    assert (bare.path, bare.protocol, bare.holder) == (None, None, None)
    assert str(bare) == "m"


def test_values_survive_a_pickle_and_compare() -> None:
    evidence = Evidence("guard", "x", proven=True)
    record = Record("sema", {"pid": 1}, pid=1)
    status = Status("/p", "sema", True, False, Liveness.ALIVE, evidence, Holder(pid=1), record)
    copy = pickle.loads(pickle.dumps(status))
    assert copy == status
    assert copy.liveness is Liveness.ALIVE
    assert Holder(pid=1) != Holder(pid=2)
    assert evidence == Evidence("guard", "x", proven=True)
    with pytest.raises(AttributeError):
        status.locked = False  # type: ignore[misc]


def refusal_of(contender: Contender, timeout: float | None = 0) -> str:
    result = contender.run()
    assert isinstance(result, Refusal)
    return str(refused(result, timeout))


def test_a_refusal_says_who_since_when_why_and_what_next(
    disk: Path, contend: Callable[..., Contender], live_pid: int
) -> None:
    path = disk / "l"
    contend(path, tag="nightly backup").get()
    said = refusal_of(contend(path))
    for part in (str(path), "process", "since", "nightly backup", "kernel lock", "Wait"):
        assert part in said, part
    path = disk / "foreign"
    path.write_bytes(sema_record(live_pid, time.time(), "by hand"))
    said = refusal_of(contend(path))
    command = "sleep 1000" if sys.platform != "win32" else os.path.basename(sys.executable)
    for part in (str(path), f"process {live_pid}", command, "by hand", "is running"):
        assert part in said, part


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"pid=1\n"])
def test_an_unreadable_record_is_explained(content: bytes, disk: Path, contend: Callable[..., Contender]) -> None:
    (disk / "l").write_bytes(content)
    said = refusal_of(contend(disk / "l"))
    assert str(disk / "l") in said
    assert "record" in said
    assert "break_lock" in said


def test_a_record_cannot_write_on_the_terminal(disk: Path, contend: Callable[..., Contender], live_pid: int) -> None:
    nasty = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u2028\x9b31m"
    (disk / "l").write_bytes(sema_record(live_pid, time.time(), nasty))
    said = refusal_of(contend(disk / "l"))
    assert said.isprintable()
    assert "owned" in said


def test_a_record_cannot_fill_the_terminal(disk: Path, contend: Callable[..., Contender], live_pid: int) -> None:
    (disk / "l").write_bytes(sema_record(live_pid, time.time(), "x" * 10_000))
    assert len(refusal_of(contend(disk / "l"))) < 1500


@pytest.mark.parametrize("stamp", [0, 2**63, 2**64 - 1])
def test_an_impossible_time_does_not_break_the_message(
    stamp: int, disk: Path, contend: Callable[..., Contender], live_pid: int
) -> None:
    (disk / "l").write_bytes(sema_record(live_pid, stamp))
    assert f"process {live_pid}" in refusal_of(contend(disk / "l", stale="never"))
    assert moment(float(stamp))


def test_a_year_has_four_digits() -> None:
    assert moment(-62_000_000_000).startswith("0005-04-")
    assert moment(0).startswith(("1970-01-01 ", "1969-12-31 "))


def test_a_moment_in_the_future_is_not_called_a_while_ago() -> None:
    status = Status("/p", "sema", True, False, Liveness.ALIVE, Evidence("none", "e"), Holder(pid=7, since=9e9), age=0.0)
    assert dict(rows_of(status))["since"] == moment(9e9)
    assert dict(rows_of(status.replaced(age=100.0)))["since"] == f"{moment(9e9)} (100 s ago)"


def test_durations_are_readable() -> None:
    assert [duration(s) for s in (0, 59, 119, 120, 7199, 7200, 172_799, 172_800)] == [
        "0 s",
        "59 s",
        "119 s",
        "2 min",
        "120 min",
        "2 h",
        "48 h",
        "2 d",
    ]


def test_text_is_cut_and_escaped() -> None:
    assert printable("a\tb\u00e9\udc80") == "a\\tb\u00e9\\udc80"
    assert printable("x" * 10, 5) == "xxxx\u2026"
    assert printable("x" * 5, 5) == "xxxxx"


def test_every_state_has_advice() -> None:
    record = Record("sema", {}, pid=7)
    for liveness in Liveness:
        status = Status(
            "/p", "sema", True, False, liveness, Evidence("none", "e"), Holder(pid=7), record, reason="why", age=1.0
        )
        assert advice(status)
        assert "7" in sentence(status)
        assert ("why" in sentence(status)) is (liveness is not Liveness.ALIVE)


@pytest.mark.parametrize("name", ["l", "s"], ids=["lock", "semaphore"])
def test_a_lock_that_changes_hands_is_not_called_unreadable(disk: Path, name: str) -> None:
    """A waiter that is not the first may look between two holders, and must not be misinformed."""
    lock = holdfast.Lock(disk / name)
    slots = holdfast.Semaphore(disk / name, slots=2)
    with slots:
        statuses = (lock.status(),) if name == "l" else tuple(slots.status())
        events = AttemptEvents(environment(), requests_of(lock)[0], ())
        refusal = Refusal(str(disk / name), 1.5, lambda: statuses, events)
        texts = waiting(refusal), str(refused(refusal, 1.5))
    for text in texts:
        assert "nobody holds it at this moment: it is changing hands" in text
        assert "counts as held" not in text
        assert "slots are taken" not in text
    assert "Try again" in texts[1]


def test_the_end_of_an_invisible_process_is_not_promised_to_free_the_lock() -> None:
    """It may have ended already, and left the kernel lock to processes that it started (`run --until jobs`)."""
    record = Record("sema", {}, pid=7)
    seen = Status("/p", "sema", True, False, Liveness.ALIVE, Evidence("guard", "e"), Holder(pid=7, command="x"), record)
    assert advice(seen) == "Wait until process 7 releases it or ends"
    unseen = seen.replaced(holder=Holder(pid=7))
    assert advice(unseen) == "Wait until process 7, or a process that inherited the lock from it, releases it or ends"


@pytest.mark.parametrize("liveness", [Liveness.UNKNOWN, Liveness.DEAD])
def test_the_advice_for_a_holder_with_a_lease_is_to_wait_for_its_end(liveness: Liveness) -> None:
    """Whatever the protocol's rule (policy.py, V8); so nobody is told to break its lock."""
    marker = Marker(True, 5, Identity(7, "boot", "1.1", "t1", "other"), 1.0, 30.0)
    record = Record("sidecar", {}, pid=7, created=1.0, marker=marker)
    status = Status("/p", "sidecar", True, False, liveness, Evidence("none", "e"), Holder(pid=7), record)
    assert advice(status) == "Wait until it is released, or its record has not changed for its lease of 30 s"
    assert own_view(status) == "holdfast takes it over once its record has not changed for its lease of 30 s"
    assert heartbeat(status) == 10.0
    assert "lease" not in advice(status.replaced(record=record.replaced(marker=None)))


def test_all_readers_are_to_be_waited_for() -> None:
    readers = tuple(Holder(pid=pid, shared=True) for pid in range(8, 16))
    status = Status("/p", "flock", True, False, Liveness.ALIVE, Evidence("guard", "e"), readers[0], holders=readers)
    assert advice(status) == "Wait until processes 8, 9, 10, 11, 12 and 3 more release it, or end them"
    two = status.replaced(holders=readers[:2])
    assert advice(two) == "Wait until processes 8 and 9 release it, or end them"
    assert advice(two.replaced(holders=readers[:1])) == "Wait until process 8 releases it, or end that process"
    assert "fuser" in advice(two.replaced(holder=None, holders=(Holder(shared=True),)))


def test_processes_that_inherited_a_lock_are_its_holders() -> None:
    record, guard = Record("sema", {}, pid=7), Evidence("guard", "e")
    heirs = tuple(Holder(pid=pid, command=f"job {pid}", host="h") for pid in range(8, 13))
    status = Status("/p", "sema", True, False, Liveness.ALIVE, guard, heirs[0], record)
    for number, who, step in (
        (1, "process 8 (job 8)", "process 8 releases it or ends"),
        (2, "process 8 (job 8) and process 9 (job 9)", "processes 8 and 9 release it or end"),
        (5, "process 8 (job 8), process 9 (job 9), process 10 (job 10) and 2 more", "processes 8, 9, 10, 11 and 12 "),
    ):
        one = status.replaced(holders=heirs[:number])
        assert sentence(one) == f"held by {who}, to which process 7 left it when it ended; alive: e"
        assert advice(one).startswith(f"Wait until {step}")
    unseen = status.replaced(holder=Holder(pid=7, host="h"), holders=(Holder(),))
    assert sentence(unseen) == "held by a process that inherited it from process 7, which has ended; alive: e"
    assert advice(unseen) == "Wait until the process that inherited the lock from process 7 releases it or ends"


def test_a_holder_in_another_container_is_reported_with_its_host() -> None:
    """Its pid is most often 1, which means another process here, so the message says where it is."""
    record = Record("sema", {}, pid=1)
    alive = Status(
        "/p", "sema", True, False, Liveness.ALIVE, Evidence("guard", "e"), Holder(pid=1, host="web-1"), record
    )
    assert sentence(alive) == "held by process 1 on web-1; alive: e"
    here = Status(
        "/p",
        "sema",
        True,
        False,
        Liveness.ALIVE,
        Evidence("guard", "e"),
        Holder(pid=7, host="h", command="job"),
        record,
    )
    assert sentence(here) == "held by process 7 (job); alive: e"
