"""Tests that do little but wait, in processes of their own beside the workers of a run of all tests.

They need a tenth of a processor, and a worker that ran them would need nothing else for minutes. So they are in shares,
and before its first test a worker forks a process for each of its shares (a companion), which runs them one after the
other, and keeps their reports. A worker that comes to such a test only hands on its report, if need be at its end.

  BS1  A companion begins when nothing has been set up: it shares no server, no fixture and no directory with others.
  BS2  It is no child of its worker, whose tests look at their children.
  BS3  Tests that a companion has not reported when it ends are run by the workers as always.
  BS4  The end of its worker kills it: the kernel sends the signal when nobody has the other end of its pipe any more.
  BS5  A worker waits for no report while it could run a test.
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
    ("tests/engines/",),
    tuple(f"tests/cli/test_{letter}" for letter in "abcdefghijk"),
    (
        *("tests/conformance/test_kit", "tests/docs/test_pages.py"),
        *(f"tests/process/test_{name}.py" for name in ("acquire_all", "asyncio", "silence")),
        *(f"tests/unit/test_{name}.py" for name in ("aio", "face_sema", "face_semats", "follow", "lock", "tracing")),
    ),
    (
        *("tests/process/test_foreign_", "tests/process/test_many_locks.py"),
        *(f"tests/process/test_{name}.py" for name in ("fencing", "fork", "heartbeat", "waiting")),
        *(f"tests/unit/test_{name}.py" for name in ("apart", "cancel", "events", "lease", "reaper", "rivals")),
    ),
    ("tests/cli/",),
)
"""Tests that wait. Those that start the same servers are in one share."""
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
        self._began = time.monotonic()
        self._alive = -1
        self._awaited: list[tuple[pytest.Item, int]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        yield
        items.sort(key=lambda item: _share(item) is not None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[object]:
        self._reports.mkdir(parents=True, exist_ok=True)
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # who asks first makes it anew
        ours, self._alive = os.pipe()
        for share in range(self._number, len(SHARES), self._count):
            self._begin(ours, share, [item for item in session.items if _share(item) == share])
        os.close(ours)
        result = yield
        for item, index in self._awaited:
            self._interactor.item_index = index
            if not session.shouldstop and not self._hand_on(item):
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return result

    @property
    def _interactor(self) -> Any:
        """xdist's part of a worker, which sends the reports of the current item."""
        return next(plugin for plugin in self._config.pluginmanager.get_plugins() if hasattr(plugin, "item_index"))

    def _begin(self, ours: int, share: int, items: list[pytest.Item]) -> None:
        with open(self._lock(share), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # for as long as the companion has it open
            if (child := os.fork()) == 0:
                if os.fork() == 0:
                    _end_with_the_last_writer(ours, self._alive)
                    self._accompany(items)
                os._exit(0)
            os.waitpid(child, 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if (share := _share(item)) is None:
            return None
        if self._report(item).exists():
            self._hand_on(item)
        elif self._begins_or_runs(share):
            self._awaited.append((item, self._interactor.item_index))  # BS5
        else:
            return None  # BS3
        item.session._setupstate.teardown_exact(nextitem)  # of the test before
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not session.shouldstop:
            for share in range(self._number, len(SHARES), self._count):
                while self._runs(share):  # another worker may want its report
                    time.sleep(0.01)
        os.close(self._alive)

    # -- what has been reported ----------------------------------------------------------------------------------------

    def _lock(self, share: int) -> Path:
        return self._reports / f"lock-{share}"

    def _report(self, item: pytest.Item) -> Path:
        return self._reports / blake2b(item.nodeid.encode(), digest_size=16).hexdigest()

    def _hand_on(self, item: pytest.Item) -> bool:
        """Hand on the reports of an item as soon as there are any; False if there will be none (BS3)."""
        path, share = self._report(item), _share(item)
        assert share is not None
        while not path.exists() and self._begins_or_runs(share):
            time.sleep(0.01)
        if not path.exists():
            return False
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in pickle.loads(path.read_bytes()):
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _begins_or_runs(self, share: int) -> bool:
        began = self._lock(share).exists()
        return self._runs(share) if began else time.monotonic() < self._began + _BEGINS_WITHIN

    def _runs(self, share: int) -> bool:
        try:
            with open(self._lock(share)) as lock:
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
    """Kill this process when nobody has the other end of the pipe any more (BS4)."""
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
