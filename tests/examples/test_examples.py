"""The programs in examples/: they print what their page shows, and keep their promises when they are killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import abilities
from holdfast import Lock
from process.support import PATIENCE, eventually

pytestmark = pytest.mark.unmeasured("a daemon thread that is traced can end an interpreter that ends by SIGSEGV")

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = dict(
    re.findall(
        r"^\$ python examples/(\w+\.py)\n(.*?)^```", (EXAMPLES / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
)
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(disk: Path) -> Iterator[Start]:
    """Starts a program as a user does; all its processes end with the test."""
    started: list[subprocess.Popen[str]] = []

    def popen(*command: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "TMPDIR": str(disk)}
        process = subprocess.Popen(
            [*map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def blurred(text: str) -> str:
    """The text without what differs between runs: numbers, and how many had to wait."""
    return re.sub(r"\d[\d.:]*", "N", text)


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_every_example_prints_the_output_shown_on_its_page(name: str, start: Start, disk: Path) -> None:
    if name == "polyglot.py":
        need_node()
    if name in ("pool.py", "leader.py", "fencing.py"):
        abilities.need("flock")  # a killed worker's slot is free at once, and a stopped one is reported as alive
    process = start(sys.executable, "-X", "dev", EXAMPLES / name)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert blurred(said) == blurred(SHOWN[name])
    assert not list(disk.iterdir())


def test_every_example_is_on_the_page() -> None:
    page = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert {name for name in names if f"({name})" not in page} == {"README.md"}


def need_node() -> str:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")
    return node


# -- singleton.py ------------------------------------------------------------------------------------------------------


def running(start: Start, lock: Path) -> tuple[subprocess.Popen[str], str]:
    daemon = start(sys.executable, EXAMPLES / "singleton.py", lock)
    assert daemon.stdout is not None
    return daemon, daemon.stdout.readline()


@pytest.mark.needs("flock")
def test_a_killed_daemon_does_not_keep_the_next_one_out(start: Start, disk: Path) -> None:
    lock = disk / "daemon.lock"
    for _ in range(3):
        first, said = running(start, lock)
        assert said == f"process {first.pid} runs\n"
        second, said = running(start, lock)
        assert f"it runs already: process {first.pid}, since" in said
        assert second.wait(PATIENCE) == 1
        first.kill()
        first.wait(PATIENCE)
        third, said = running(start, lock)
        assert said == f"process {third.pid} takes over from process {first.pid}, which died\n"
        third.terminate()
        assert third.wait(PATIENCE) == 0
        assert not lock.exists()


@pytest.mark.needs("events")
def test_a_daemon_ends_when_its_lock_file_is_removed(start: Start, disk: Path) -> None:
    lock = disk / "daemon.lock"
    daemon, _ = running(start, lock)
    lock.unlink()
    said, _ = daemon.communicate(timeout=PATIENCE)
    assert f"{lock} was removed" in said
    assert daemon.returncode == 1


# -- build_cache.py ----------------------------------------------------------------------------------------------------


@pytest.mark.needs("flock")
def test_no_half_artifact_is_published_when_its_builder_is_killed(start: Start, disk: Path) -> None:
    """The file that is being built is a pipe, so that the builder blocks in the middle of it."""
    unfinished = disk / "lib.a.unfinished"
    os.mkfifo(unfinished)

    def fetching() -> subprocess.Popen[str]:
        return start(sys.executable, EXAMPLES / "build_cache.py", disk, "lib.a")

    builder = fetching()
    with unfinished.open() as pipe:
        assert pipe.readline() == "part 0\n"
        builder.send_signal(signal.SIGSTOP)
        others = [fetching() for _ in range(3)]
        lock = Lock(disk / "lib.a.lock")
        eventually(lambda: len(lock.status().waiters) == 3)
        assert not (disk / "lib.a").exists()
        unfinished.unlink()
        builder.kill()
        builder.wait(PATIENCE)
    told = [other.communicate(timeout=PATIENCE)[0] for other in others]
    again = f"{disk}/lib.a built after process {builder.pid} had died\n"
    assert sorted(told) == sorted([again, f"{disk}/lib.a waited\n", f"{disk}/lib.a waited\n"])
    assert len((disk / "lib.a").read_text().splitlines()) == 10
    assert sorted(path.name for path in disk.iterdir()) == ["lib.a"]


# -- polyglot.py -------------------------------------------------------------------------------------------------------


def commands() -> dict[str, list[object]]:
    return {
        "sh": ["sh", EXAMPLES / "polyglot.sh"],
        "node": [need_node(), EXAMPLES / "polyglot.mjs"],
        "python": [sys.executable, EXAMPLES / "polyglot.py"],
    }


@pytest.mark.needs("flock")
def test_a_killed_holder_does_not_stop_other_languages_for_ever(start: Start, disk: Path) -> None:
    counter, lock = disk / "counter", disk / "counter.lock"
    counter.write_text("0\n")
    holder, _ = running(start, lock)
    plain = [start(*commands()[name], counter, lock, 20) for name in ("sh", "node")]
    for process in plain:
        eventually(lambda process=process: is_asleep(process.pid), what="its wait for the lock")
    holder.kill()
    for process in [start(*commands()["python"], counter, lock, 100), *plain]:
        said, _ = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")
    assert counter.read_text() == "140\n"
    assert not lock.exists()


@pytest.mark.parametrize("name", ["sh", "node"])
def test_every_language_counts_with_the_lock(name: str, start: Start, disk: Path) -> None:
    """It waits while Python holds the lock, and names itself while it holds it: the counter is a pipe."""
    counter, path = disk / "counter", disk / "counter.lock"
    os.mkfifo(counter)
    lock = Lock(path)
    with lock:
        process = start(*commands()[name], counter, path, 1)
        eventually(lambda: is_asleep(process.pid), what="its wait for the lock")
        record = lock.status().record
        assert record is not None
        assert record.pid == os.getpid()
    record = eventually(lambda: path.exists() and lock.status().record)
    assert (record.pid, record.tag) == (process.pid, f"counting in {name.replace('node', 'Node')}")
    counter.write_text("41\n")
    assert counter.read_text() == "42\n"
    assert process.wait(PATIENCE) == 0
    assert not path.exists()


def is_asleep(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_SLEEPING
