"""A forked process (warm.py) behaves like one that was started, and does not outlive its purpose."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warm
from process.support import eventually, state

TELL = """
import json, os, resource, signal, sys

def file(name):
    with open(f"/proc/self/{name}", "rb") as one:
        return one.read().decode("utf-8", "surrogateescape")

def stream(one):
    if one is None:
        return None
    raw = getattr(one.buffer, "raw", one.buffer)
    return [one.name, one.mode, one.encoding, one.errors, one.line_buffering, one.write_through, type(raw).__name__,
            type(one.buffer).__name__, one.closed, one.fileno(), one.isatty(), one.newlines]

status = dict(line.split(":", 1) for line in file("status").splitlines())
try:
    terminal = os.open("/dev/tty", os.O_RDWR)
    tty = [os.tcgetpgrp(terminal) == os.getpid(), terminal]
except OSError as error:
    tty = str(error)
descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
names = {name: repr(value) for name, value in globals().items() if name.startswith("__")}
report = {
    "argv": [sys.argv, sys.orig_argv, file("cmdline"), file("comm")],
    "environment": [dict(os.environ), file("environ")],
    "descriptors": descriptors,
    "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), tty],
    "status": [status[name] for name in ("SigIgn", "SigCgt", "SigBlk", "Umask", "Uid", "Groups", "CapEff", "Threads")],
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "streams": [stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "again": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "flags": repr(sys.flags),
    "path": sys.path,
    "directory": os.getcwd(),
    "names": names,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "signals": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)],
    "time": __import__("time").tzname,
}
with open(os.environ["REPORT"], "w") as told:
    json.dump(report, told)
"""
ADDRESS = re.compile("0x[0-9a-f]+")
ODD = b"odd \xff\n word"


@pytest.fixture(autouse=True)
def server() -> None:
    if warm._server_of_this_process() is None:
        pytest.skip("this kernel cannot tell a process's words and environment, or HOLDFAST_TEST_WARM=no")


def told(real: bool, tmp_path: Path, *words: Any, **options: Any) -> dict[str, Any]:
    report = tmp_path / "report"
    env = {
        **os.environ,
        "REPORT": str(report),
        "ODD": "\udcff",
        "EMPTY": "",
        "TZ": "Asia/Tokyo",
        **options.pop("env", {}),
    }
    process = warm.popen(
        [sys.executable, *words],
        real=real,
        start_new_session=True,
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        **options,
    )
    assert isinstance(process, warm._Forked) != real
    assert process.communicate(timeout=20)[-1] == b""
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(ADDRESS.sub("0x…", report.read_text()))
    return found


@pytest.fixture
def terminal() -> Iterator[int]:
    ours, theirs = os.openpty()
    yield theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("way", ["code", "module", "script"])
def test_a_forked_process_has_the_state_of_a_started_one(tmp_path: Path, way: str) -> None:
    """W1"""
    (tmp_path / "told.py").write_text(TELL)
    words = {"code": ["-c", TELL, ODD, "x"], "module": ["-m", "told", ODD], "script": [tmp_path / "told.py", ODD]}[way]
    (tmp_path / "__pycache__").mkdir()  # otherwise the first process would make it
    started, forked = (told(real, tmp_path, *words, stdin=subprocess.DEVNULL) for real in (True, False))
    assert forked == started


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_forked_process_is_on_its_terminal_like_a_started_one(tmp_path: Path, terminal: int, unbuffered: str) -> None:
    started, forked = (
        told(
            real,
            tmp_path,
            "-c",
            TELL,
            stdin=terminal,
            stdout=terminal,
            terminal=True,
            env={"PYTHONUNBUFFERED": unbuffered},
        )
        for real in (True, False)
    )
    assert forked == started


def test_a_forked_process_has_the_descriptors_of_a_started_one(tmp_path: Path) -> None:
    """W1: those that it was given, under their numbers, though the server has others there."""
    given = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    high = os.dup2(given[0], 700)
    try:
        passed = (given[2], high)
        started, forked = (told(real, tmp_path, "-c", TELL, pass_fds=passed) for real in (True, False))
        assert {*passed} < {*started["descriptors"]}
        assert forked == started
    finally:
        for fd in (*given, high):
            os.close(fd)


ENDINGS = {
    "nothing": "pass",
    "status": "sys.exit(3)",
    "large status": "sys.exit(256 + 5)",
    "text": "sys.exit('a reason')",
    "object": "sys.exit([1])",
    "exception": "def f(): raise ValueError('x')\nf()",
    "syntax": "1 +",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "os.kill(os.getpid(), signal.SIGTERM)",
    "at once": "print('lost', end=''); os._exit(4)",
    "at exit": "atexit.register(print, 'ended'); print('first'); sys.exit(2)",
    "at exit after an exception": "atexit.register(print, 'ended'); 1 / 0",
    "failure at exit": "atexit.register(lambda: 1 / 0)",
    "thread": "threading.Thread(target=lambda: (threading.main_thread().join(), print('waited for'))).start()",
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('x')",
    "closed stdout": "print('x'); sys.stdout.close()",
    "none": "sys.stdout = sys.stderr = None",
    "fork": "if os.fork() == 0:\n    sys.exit(7)\nprint(os.wait()[1] >> 8)",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_forked_process_ends_like_a_started_one(ending: str) -> None:
    """W3"""
    code = f"import atexit, os, signal, sys, threading\n{ending}"
    ends = []
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for real in (True, False):
        process = warm.popen(
            [sys.executable, "-c", code],
            real=real,
            start_new_session=True,
            stdout=-1,
            stderr=-1,
            stdin=-1,
            text=True,
            env=env,
        )
        out, complaint = process.communicate(timeout=20)
        ends.append((process.returncode, out, ADDRESS.sub("0x…", complaint)))
    assert ends[0] == ends[1]


def test_the_pid_of_a_forked_process_is_free_only_after_the_wait_for_it() -> None:
    """W2"""
    process = warm.popen([sys.executable, "-c", ""], start_new_session=True)
    eventually(lambda: state(process.pid) == "Z")
    with pytest.raises(AssertionError):
        eventually(lambda: state(process.pid) != "Z", within=0.05)
    process.send_signal(signal.SIGKILL)  # send_signal looks, and finds that it has ended
    assert process.returncode == 0
    assert state(process.pid) == ""


def test_a_wait_ends_in_time() -> None:
    process = warm.popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(20) == -signal.SIGKILL


ASK = """
import os, sys, warm
child = warm.popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, warm._server.process.pid, flush=True)
{then}
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "then",
    [
        "",
        "os.fork() or sys.stdin.read()",
        "warm.popen([sys.executable, '-c', 'while True: pass'], start_new_session=True)",
    ],
)
def test_the_server_ends_with_its_killed_client(then: str) -> None:
    """W4: with all that it has forked, even if a fork of the client goes on, or one of its own is busy."""
    env = {**os.environ, "PYTHONPATH": str(Path(warm.__file__).parent)}
    command = [sys.executable, "-c", ASK.format(then=then)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=env, text=True) as asking:
        assert asking.stdout is not None
        pids = [*map(int, asking.stdout.readline().split())]
        asking.kill()
        for pid in pids:
            eventually(lambda pid=pid: state(pid) in ("", "Z"), what=f"the end of {pid}")


def test_an_abandoned_request_does_not_affect_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """W5"""

    def give_up(_connection: object) -> bytes:
        raise AssertionError("too late")

    with monkeypatch.context() as patched:
        patched.setattr(warm, "_message", give_up)
        for _ in range(3):
            with pytest.raises(AssertionError):
                warm.popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    process = warm.popen([sys.executable, "-c", "print('other')"], start_new_session=True, stdout=-1)
    assert process.communicate(timeout=20)[0] == b"other\n"


def test_a_failed_fork_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        warm.popen([sys.executable, "-c", ""], start_new_session=True, cwd=tmp_path / "missing")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-c", ""], {"start_new_session": False}),
        (["-c", ""], {"preexec_fn": lambda: None}),
        (["-c", ""], {"env": {**os.environ, "PYTHONHASHSEED": "1"}}),
        (["-c", ""], {"env": {**os.environ, "LC_ALL": "POSIX"}}),
        (["-I", "-c", ""], {}),
        (["--version"], {"stdout": subprocess.DEVNULL}),
    ],
)
def test_a_process_that_a_fork_cannot_imitate_is_started(words: list[str], options: dict[str, Any]) -> None:
    process = warm.popen([sys.executable, *words], **{"start_new_session": True, **options})
    assert not isinstance(process, warm._Forked)
    assert process.wait(20) == 0
