"""Tests that do little but wait, in a process of their own beside each worker of a run of all tests.

They need a tenth of a processor, and a worker that ran them would need nothing else for minutes. So each worker forks
another process before its first test (its companion), which runs its share of them, one after the other, and keeps what
it has to report. They come last in the order of the tests: whichever worker comes to one only hands on its report.

  BS1  A companion begins when nothing has been set up: it shares no server, no fixture and no directory with others.
  BS2  It is no child of its worker, whose tests look at their children.
  BS3  What a companion has not reported when it ends, the workers run as always.
  BS4  The end of its worker kills it: the kernel sends the signal when nobody has the other end of its pipe any more.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import tempfile
import time
from collections.abc import Iterator
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import warm

SHARES = (
    (
        *("tests/engines/", "tests/cli/test_run.py", "tests/process/test_waiting.py"),
        *(f"tests/unit/test_{name}.py" for name in ("apart", "cancel", "events", "lease", "reaper", "rivals")),
    ),
    ("tests/conformance/test_kit", "tests/docs/test_pages.py", "tests/process/test_silence.py"),
)
"""What waits. All of a share is run by one companion, and those that start the same servers are in one share."""
_BEGINS_WITHIN = 60.0


def _share(item: pytest.Item) -> int | None:
    return next((number for number, share in enumerate(SHARES) if item.nodeid.startswith(share)), None)


class Beside:
    """The plugin of a worker."""

    def __init__(self, config: pytest.Config) -> None:
        worker: dict[str, object] = config.workerinput  # type: ignore[attr-defined]
        self._config = config
        self._number, self._count = int(str(worker["workerid"])[2:]), int(str(worker["workercount"]))
        self._reports = Path(config.option.basetemp).parent / "beside"
        self._alive = -1

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        yield
        items.sort(key=lambda item: _share(item) is not None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        self._reports.mkdir(parents=True, exist_ok=True)
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # who asks first makes it anew
        mine = [item for item in session.items if _share(item) is not None and self._companion(item) == self._number]
        ours, self._alive = os.pipe()
        with open(self._lock(self._number), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # for as long as the companion has it open
            if (child := os.fork()) == 0:
                if os.fork() == 0:
                    _end_with_the_last_writer(ours, self._alive)
                    self._accompany(mine)
                os._exit(0)
            os.close(ours)
            os.waitpid(child, 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if _share(item) is None or not (kept := self._kept(item)):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in pickle.loads(kept):
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        item.session._setupstate.teardown_exact(nextitem)  # of the test before
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not session.shouldstop:
            while self._runs(self._number):  # another worker may want what it will report
                time.sleep(0.01)
        os.close(self._alive)

    # -- what has been reported ----------------------------------------------------------------------------------------

    def _companion(self, item: pytest.Item) -> int:
        share = _share(item)
        assert share is not None
        return share % self._count

    def _lock(self, number: int) -> Path:
        return self._reports / f"lock-{number}"

    def _report(self, item: pytest.Item) -> Path:
        return self._reports / blake2b(item.nodeid.encode(), digest_size=16).hexdigest()

    def _kept(self, item: pytest.Item) -> bytes:
        """Its reports, as soon as there are any; nothing if there will be none (BS3)."""
        path, number = self._report(item), self._companion(item)
        begins = time.monotonic() + _BEGINS_WITHIN
        while not path.exists():
            if not self._runs(number) and (self._lock(number).exists() or time.monotonic() > begins):
                break
            time.sleep(0.01)
        return path.read_bytes() if path.exists() else b""

    def _runs(self, number: int) -> bool:
        try:
            with open(self._lock(number)) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    # -- the companion -------------------------------------------------------------------------------------------------

    def _accompany(self, items: list[pytest.Item]) -> None:
        status = 1
        try:
            self._leave_the_worker()
            collected = _Collected()
            self._config.pluginmanager.register(collected)
            for item, following in pairwise([*items, None]):
                assert item is not None
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                data = [
                    self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
                    for report in collected.taken()
                ]
                made = self._report(item).with_suffix(".new")
                made.write_bytes(pickle.dumps(data))
                made.rename(self._report(item))
            status = 0
        finally:
            warm.end()
            os._exit(status)

    def _leave_the_worker(self) -> None:
        """Report to nobody, and write into no file of the worker's."""
        for plugin in self._config.pluginmanager.get_plugins():
            if plugin is self:
                self._config.pluginmanager.unregister(plugin)
            elif hasattr(plugin, "channel"):
                self._config.pluginmanager.unregister(plugin)
                io = plugin.channel.gateway._io  # which would be open for as long as this lives
                with open(os.devnull, "r+b", buffering=0) as nothing:
                    for file in (io.infile, io.outfile):
                        os.dup2(nothing.fileno(), file.fileno(), inheritable=False)
        for capture in self._captures():
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), capture.tmpfile.fileno(), inheritable=False)
                os.dup2(own.fileno(), capture.targetfd)

    def _captures(self) -> Iterator[Any]:
        manager = self._config.pluginmanager.getplugin("capturemanager")
        capturing = getattr(manager, "_global_capturing", None)
        for name in ("out", "err"):
            capture = getattr(capturing, name, None)
            if hasattr(capture, "targetfd"):
                yield capture


def _end_with_the_last_writer(reader: int, writer: int) -> None:
    """BS4."""
    os.close(writer)
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([reader], [], [], 0)[0]:
        os._exit(1)  # it has ended already


class _Collected:
    def __init__(self) -> None:
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def taken(self) -> list[pytest.TestReport]:
        found, self._reports = self._reports, []
        return found
