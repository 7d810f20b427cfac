"""Values made once for all workers of a test session (holdfast/pytest.py); tests/packaging has a session with
workers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import AcquireTimeout, Lock
from holdfast.pytest import OncePerSession

pytestmark = pytest.mark.needs("flock")
Worker = Callable[..., OncePerSession]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker of the session with this directory; it ends with the test."""
    with ExitStack() as ends:

        def begin(name: str, directory: Path | None = tmp_path) -> OncePerSession:
            one = OncePerSession(directory, name)
            ends.callback(one.close)
            return one

        yield begin


def test_the_first_worker_makes_the_value_and_the_others_get_it(worker: Worker) -> None:
    """OP2: workers that come meanwhile wait for it."""
    calls: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def make() -> dict[str, int]:
        calls.append("made")
        begun.set()
        assert go_on.wait(20)
        return {"port": 4711}

    results: list[dict[str, int]] = []
    workers = [worker(f"gw{number}") for number in range(3)]
    threads = [threading.Thread(target=lambda w=w: results.append(w("db", make, timeout=20))) for w in workers]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    with pytest.raises(AcquireTimeout, match="once_per_session: db"):
        worker("gw3")("db", make, timeout=0)
    go_on.set()
    for thread in threads:
        thread.join()
    assert (calls, results) == (["made"], [{"port": 4711}] * 3)
    assert workers[0]("db", make) is workers[0]("db", make)
    assert worker("gw0")("another", lambda: 1) == 1


def test_a_worker_that_died_while_it_wrote_leaves_no_result(worker: Worker, tmp_path: Path) -> None:
    """OP1."""
    code = """
import os, sys, pathlib, holdfast.pytest as plugin
plugin.os.replace = lambda *paths: os._exit(9)
plugin.OncePerSession(pathlib.Path(sys.argv[1]), "gw0")("db", lambda: "half")
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == 9
    assert worker("gw1")("db", lambda: "whole", timeout=20) == "whole"
    assert worker("gw2")("db", lambda: "again", timeout=20) == "whole"
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_failure_is_reported_to_the_others_and_not_repeated(worker: Worker) -> None:
    """OP3."""
    with pytest.raises(ZeroDivisionError):
        worker("gw0")("db", lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="'db' could not be made by the worker gw0: ZeroDivisionError: integer div"):
        worker("gw1")("db", lambda: 1)


@pytest.mark.parametrize("end", [pytest.skip, pytest.fail])
def test_a_skip_or_failure_by_pytest_is_not_repeated(end: Callable[[str], object], worker: Worker) -> None:
    """OP3: both are no `Exception`."""
    calls: list[str] = []

    def make() -> None:
        calls.append("made")
        end("no database here")

    with pytest.raises(end.Exception, match="no database here"):  # type: ignore[attr-defined]
        worker("gw0")("db", make)
    told = pytest.skip.Exception if end is pytest.skip else RuntimeError
    with pytest.raises(told, match="no database here"):
        worker("gw1")("db", make)
    assert calls == ["made"]


@pytest.mark.parametrize("end", [pytest.skip, pytest.fail, int])
def test_without_workers_a_failure_is_not_repeated(end: Callable[[str], object], worker: Worker) -> None:
    """OP3: the function is called once all the same."""
    calls: list[str] = []
    once = worker("", None)

    def make() -> None:
        calls.append("made")
        end("no database here")

    raised = []
    for _ in range(3):
        with pytest.raises((ValueError, pytest.skip.Exception, pytest.fail.Exception), match="no database") as caught:
            once("db", make)
        raised.append((caught.value, len(caught.traceback)))
    assert calls == ["made"]
    assert len({error for error, _ in raised}) == 1
    assert raised[1] == raised[2]


def test_a_value_that_cannot_be_pickled_is_torn_down_and_not_made_again(worker: Worker) -> None:
    """OP3: whatever its pickling raises."""

    class Connection:
        def __reduce__(self) -> str:
            raise ValueError("it is open")

    torn: list[Connection] = []
    one = worker("gw0")
    with pytest.raises(TypeError, match="other workers cannot get 'db': it cannot be pickled"):
        one("db", Connection, teardown=torn.append)
    with pytest.raises(RuntimeError, match=r"could not be made by the worker gw0: .*cannot be pickled"):
        worker("gw1")("db", Connection, teardown=torn.append)
    one.close()
    assert len(torn) == 1


def test_an_interruption_is_no_failure(worker: Worker) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker("gw0")("db", interrupted)
    assert worker("gw1")("db", lambda: 1) == 1


def test_a_value_that_cannot_be_pickled_is_refused_only_with_workers(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="other workers cannot get 'db': it cannot be pickled"):
        worker("gw0")("db", lambda: lambda: 1)
    made = worker("", None)("db", lambda: lambda: 1)
    assert made() == 1
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".lock"] == []
    assert not Lock(tmp_path / "x").status().locked


# -- teardown ----------------------------------------------------------------------------------------------------------


def test_the_last_worker_with_the_value_tears_it_down(worker: Worker) -> None:
    """OP4, OP5: once; a worker that comes later makes it anew."""
    torn: list[str] = []
    made = iter(["first", "second"])
    workers = [worker(f"gw{number}") for number in range(3)]
    for one in workers:
        assert one("db", made.__next__, teardown=torn.append) == "first"
    for one in workers[:2]:
        one.close()
        assert torn == []
    workers[2].close()
    assert torn == ["first"]
    again = worker("gw3")
    assert again("db", made.__next__, teardown=torn.append) == "second"
    again.close()
    again.close()
    assert torn == ["first", "second"]


def test_a_killed_worker_does_not_prevent_the_teardown(worker: Worker, tmp_path: Path) -> None:
    """OP4: nor is the value torn down while that worker has it."""
    code = """
import sys, pathlib, holdfast.pytest as plugin
plugin.OncePerSession(pathlib.Path(sys.argv[1]), "gw0")("db", lambda: "value", teardown=print)
print("ready", flush=True)
sys.stdin.read()
"""
    torn: list[str] = []
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=-1, stdout=-1) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        for name in ("gw1", "gw2"):
            one = worker(name)
            assert one("db", lambda: "another", teardown=torn.append) == "value"
            if name == "gw2":
                other.kill()
                other.wait()
            one.close()
            assert torn == (["value"] if name == "gw2" else [])


@pytest.mark.parametrize("name", ["gw0", ""])
def test_all_values_are_torn_down_in_reverse_order_whatever_fails(worker: Worker, tmp_path: Path, name: str) -> None:
    """OP5: a value whose teardown failed is made anew."""
    torn: list[int] = []

    def teardown(value: int) -> None:
        torn.append(value)
        assert value != 2, "cannot be torn down"

    directory = tmp_path if name else None
    one = worker(name, directory)
    for value in (1, 2, 3):
        one(f"number {value}", lambda value=value: value, teardown=teardown)
    with pytest.raises(AssertionError, match="cannot be torn down"):
        one.close()
    assert torn == [3, 2, 1]
    assert worker("gw1", directory)("number 2", lambda: 22) == 22


def test_no_worker_gets_a_value_during_its_teardown(worker: Worker) -> None:
    """OP4."""

    def teardown(_value: str) -> None:
        with pytest.raises(AcquireTimeout, match="teardown of once_per_session: db"):
            worker("gw1")("db", lambda: "another", timeout=0)

    one = worker("gw0")
    one("db", lambda: "value", teardown=teardown)
    one.close()


def test_the_plugin_is_offered_and_loads_no_more_than_the_locks(tmp_path: Path) -> None:
    code = "import sys, pytest, holdfast.pytest; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    heavy = {"holdfast.cli", "holdfast.aio", "holdfast.engines.etcd", "holdfast.engines.postgresql"}
    assert not heavy.intersection(done.stdout.split())
