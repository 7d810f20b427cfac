"""The processes below this one, where the system shows less than Linux usually does (tree.py)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast._platform import libc, tree
from holdfast._platform.tree import Member, adopt_orphans, children, descendants, is_running, send

pytestmark = pytest.mark.needs("linux")


@pytest.fixture
def child() -> Iterator[Member]:
    """A child of this process that lives until it gets a signal."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        (one,) = (member for member in children() if member.pid == process.pid)
        yield one
    finally:
        process.kill()
        process.wait()


def test_the_ancestors_of_a_process_begin_with_it_and_its_parent(child: Member) -> None:
    found = tree.ancestors(child.pid)
    assert found[:3] == [child.pid, os.getpid(), os.getppid()]
    assert len(found) == len(set(found))
    assert tree.ancestors(0) == []


def refuse(*_args: object, **_options: object) -> Any:
    raise PermissionError(1, "refused")


def test_a_system_that_gives_no_orphans_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "LIBC", None)  # it has no `prctl`
    assert adopt_orphans() is False


def test_children_are_found_where_the_kernel_keeps_no_list_of_them(
    child: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CONFIG_PROC_CHILDREN, the parent of every process is looked up."""
    listed = os.listdir

    def without_tasks(path: str) -> list[str]:
        if path.endswith("/task"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return listed(path)

    monkeypatch.setattr(tree.os, "listdir", without_tasks)
    assert child in children()
    assert child in descendants()
    assert child not in descendants(frozenset({child}))


def test_no_processes_are_seen_where_proc_may_not_be_listed(child: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree.os, "listdir", refuse)
    assert children() == frozenset()
    assert descendants() == []
    assert is_running(child), "its own entry can be read all the same"


def test_the_processes_of_another_namespace_are_not_taken_for_ours(
    child: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    for link in (refuse, lambda _path: str(os.getpid() + 1)):
        with monkeypatch.context() as changed:
            changed.setattr(tree.os, "readlink", link)
            assert children() == frozenset()
            assert descendants() == []
    assert child in children()


def test_without_pidfd_a_later_process_does_not_get_the_signal(child: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.3 and on other systems."""
    monkeypatch.delattr(os, "pidfd_open")
    assert not send(child.replaced(started=child.started + 1), signal.SIGKILL)
    assert is_running(child)
    assert send(child, signal.SIGKILL)
    while is_running(child):
        time.sleep(0.001)
    assert not send(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["pidfd_open", "pidfd_send_signal"])
def test_a_signal_is_sent_although_pidfds_are_refused(
    child: Member, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """By a system call filter, or a kernel without them; a PermissionError would mean another user's process."""

    def refused(*_given: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os if call == "pidfd_open" else tree.signal, call, refused)
    before = os.listdir("/proc/self/fd")
    assert not send(child.replaced(started=child.started + 1), signal.SIGKILL)
    assert is_running(child)
    assert send(child, signal.SIGKILL)
    while is_running(child):
        time.sleep(0.001)
    assert os.listdir("/proc/self/fd") == before


def test_a_process_that_ends_between_two_steps_is_no_error(child: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(_fd: int, _number: int) -> None:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(tree.signal, "pidfd_send_signal", too_late)
    before = os.listdir("/proc/self/fd")
    assert not send(child, signal.SIGTERM)
    assert os.listdir("/proc/self/fd") == before
