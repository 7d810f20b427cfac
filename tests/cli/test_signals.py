"""Signals reach the command exactly once, however they arrive, and leave nothing behind at any moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cli.support import HOLDFAST, PATIENCE, RECORDER, World, dormant, ended, eventually, state

FORWARDED = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


def heard(text: str) -> list[str]:
    return [line.split()[1] for line in text.replace("\r", "").splitlines() if line.startswith("got ")]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pid_in(line: str) -> int:
    return int(line.split()[1])


def pending(pid: int) -> set[int]:
    """The signals that are pending for the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("\nShdPnd:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_to_the_wrapper_reaches_the_command_once(world: World, path: Path, name: str) -> None:
    started = world.run(path, RECORDER)
    child = pid_in(started.hear("ready"))
    started.signal(signal.Signals[name])
    started.hear(f"got {name}")
    os.kill(child, signal.SIGALRM)
    assert started.wait() == 0
    assert heard(started.rest()) == [name, "SIGALRM"]


def test_a_signal_during_the_start_is_not_lost(world: World, path: Path) -> None:
    """Between the acquisition and the command's start: the lock file exists, and the command does not."""
    for _ in range(10):
        started = world.start([*HOLDFAST, "run", path, "--", "sleep", "60"])
        eventually(path.exists, what="the lock")
        started.signal(signal.SIGTERM)
        assert started.wait() == -signal.SIGTERM
        assert not path.exists()


EARLY = """
    import os, signal, sys
    from holdfast.cli import main, run

    def then(number, handler):
        original(number, handler)
        if number == signal.SIGTERM:
            os.kill(os.getpid(), number)

    original, run.signal.signal = run.signal.signal, then
    main(["run", sys.argv[1], "--", "echo", "ran"])
"""


def test_a_signal_during_the_installation_of_the_handlers_causes_no_traceback(world: World, path: Path) -> None:
    """C1: it arrives when the first handler is installed, and the others are not."""
    started = world.start([sys.executable, "-c", textwrap.dedent(EARLY), path])
    assert (started.wait(), started.rest(), started.complaint()) == (-signal.SIGTERM, "", "")
    assert not path.exists()


DROPPED = """
    import os, signal, sys, weakref
    from holdfast._drivers import sync
    from holdfast import cli
    from holdfast._drivers.background import Keeper

    class Thing: pass

    def drop():
        def callback(_):
            os.kill(os.getpid(), signal.SIGTERM if sys.argv[1] != "begun" else signal.SIGINT)
            sum(range(10))

        thing = Thing()
        about = weakref.ref(thing, callback)
        del thing

    def then(original):
        return lambda *given: (drop(), original(*given))[1]

    where, name = {"begun": (cli, "parse"), "acquired": (Keeper, "keep"), "waiting": (sync, "wait_for")}[sys.argv[1]]
    setattr(where, name, then(getattr(where, name)))
    cli.main(sys.argv[2:])
"""


@pytest.mark.parametrize("moment", ["acquired", "waiting"])
def test_a_signal_whose_exception_python_drops_is_heeded(
    world: World, path: Path, moment: str, request: pytest.FixtureRequest
) -> None:
    """C1: it arrives while an import cleans up, during the acquisition or before the wait."""
    if moment == "waiting":
        request.getfixturevalue("held")
    words = ["run", path, "--", "sleep", "60"]
    started = world.start([sys.executable, "-c", textwrap.dedent(DROPPED), moment, *words])
    assert started.wait() == -signal.SIGTERM
    assert started.complaint() == ""
    assert path.exists() == (moment == "waiting")


@pytest.mark.parametrize("command", ["wait", "acquire --owner-pid 1", "sema acquire", "reap"])
@pytest.mark.usefixtures("held")
def test_a_signal_whose_exception_python_drops_ends_any_command_that_waits(
    world: World, path: Path, command: str
) -> None:
    where = path.parent if command == "reap" else path
    started = world.start([sys.executable, "-c", textwrap.dedent(DROPPED), "waiting", *command.split(), where])
    assert started.wait() == -signal.SIGTERM
    assert "Exception ignored" not in started.complaint()


def test_a_key_whose_exception_python_drops_keeps_the_command_from_starting(world: World, path: Path) -> None:
    """Before `run` has handlers of its own, it is KeyboardInterrupt."""
    words = ["run", path, "--", "echo", "ran"]
    started = world.start([sys.executable, "-c", textwrap.dedent(DROPPED), "begun", *words])
    assert (started.wait(), started.rest(), started.complaint()) == (-signal.SIGINT, "", "")
    assert not path.exists()


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_a_key_in_a_terminal_reaches_the_command_once(world: World, path: Path, key: bytes, name: str) -> None:
    started = world.terminal([*HOLDFAST, "run", path, "--", sys.executable, "-c", RECORDER])
    child = pid_in(started.hear("ready"))
    # The wrapper must not act before the command has taken the signal: two pending at once would become one.
    started.signal(signal.SIGSTOP)
    eventually(lambda: state(started.pid) == "T", what="the wrapper stopped")
    started.type(key)
    started.hear(f"got {name}")
    started.signal(signal.SIGUSR1)  # taken after the key's signal, which has the lower number
    started.signal(signal.SIGCONT)
    started.hear("got SIGUSR1")
    os.kill(child, signal.SIGALRM)
    assert started.wait() == 0
    assert heard(started.rest()) == [name, "SIGUSR1", "SIGALRM"]


def test_a_key_reaches_a_command_in_a_process_group_of_its_own_once(world: World, path: Path) -> None:
    """C3: the terminal does not send it there."""
    script = f"import os\nos.setpgid(0, 0)\n{RECORDER}"
    started = world.terminal([*HOLDFAST, "run", path, "--", sys.executable, "-c", script])
    child = pid_in(started.hear("ready"))
    started.type(b"\x03")
    started.hear("got SIGINT")
    os.kill(child, signal.SIGALRM)
    assert started.wait() == 0
    assert heard(started.rest()) == ["SIGINT", "SIGALRM"]


BEFORE_COMMAND = """
    import signal, sys, time
    from holdfast.cli import guardian, main, run

    where, name = {"acquired": (run, "Guardian"), "forked": (guardian, "readable")}[sys.argv[1]]
    step = getattr(where, name)

    def awaited(*given):
        setattr(where, name, step)
        print("now", flush=True)
        while signal.SIGINT not in signal.sigpending():
            time.sleep(0.001)
        return step(*given)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the command begins like that, and so loses none
    setattr(where, name, awaited)
    main(["run", *sys.argv[2:]])
"""


@pytest.mark.parametrize("moment", ["acquired", "forked"])
def test_a_key_between_the_acquisition_and_the_start_of_the_command_reaches_it_once(
    world: World, path: Path, moment: str
) -> None:
    """C3: before there is a guardian, or when that has not started the command yet."""
    command = [sys.executable, "-c", RECORDER]
    started = world.terminal([sys.executable, "-c", textwrap.dedent(BEFORE_COMMAND), moment, path, "--", *command])
    started.hear("now")
    started.type(b"\x03")
    child = pid_in(started.hear("ready"))
    started.hear("got SIGINT")
    os.kill(child, signal.SIGALRM)
    assert started.wait() == 0
    assert heard(started.rest()) == ["SIGINT", "SIGALRM"]


@pytest.mark.parametrize(("key", "number"), [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)])
def test_a_command_killed_from_the_keyboard_takes_the_wrapper_along(
    world: World, path: Path, key: bytes, number: int
) -> None:
    # exec: a shell that is told just before it starts a program may wait for that program, which was not told.
    started = world.terminal([*HOLDFAST, "run", path, "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 60"])
    started.hear("ready")
    started.type(key)
    assert started.wait() == -number
    assert not path.exists()


def test_a_lost_terminal_is_reported_to_the_command(world: World, path: Path) -> None:
    """The kernel notifies only the session's leader: the wrapper, under `ssh -t host holdfast run …`."""
    script = "trap 'echo hup >>heard; exit 3' HUP; echo ready; while :; do sleep 0.01; done"
    started = world.terminal([*HOLDFAST, "run", path, "--", "sh", "-c", script])
    started.hear("ready")
    world.hang_up(started)
    assert started.wait() == 3
    assert (path.parent / "heard").read_text() == "hup\n"
    assert not path.exists()


def test_a_job_stopped_from_the_keyboard_keeps_the_lock_and_goes_on(world: World, path: Path) -> None:
    """With job control, the wrapper and its command are one job."""
    started = world.terminal(["bash", "--norc", "--noprofile", "-i"], env={"PS1": "", "H": " ".join(HOLDFAST)})
    code = "echo child $$; read line; echo read $line"
    started.type(f"$H run {path} -- sh -c '{code}'\n".encode())
    child = pid_in(started.hear("child "))
    wrapper = parent(parent(child))  # the guardian is in between, and not part of the job
    started.type(b"\x1a")
    eventually(lambda: state(child) == state(wrapper) == "T", what="the job stopped")
    started.type(b"$H try " + bytes(path) + b"; echo status $?\n")
    started.hear("status 1")
    started.type(b"fg\n")
    eventually(lambda: state(child) == "S" and state(wrapper) == "S", what="the job continued")
    started.type(b"hello\n")
    started.hear("read hello")
    started.type(b"echo status $?\n")
    started.hear("status 0")
    assert not path.exists()
    started.type(b"exit\n")
    assert started.wait() == 0


@pytest.mark.parametrize("goes_on", ["fg", "CONT", "KILL"])
def test_a_command_that_stops_itself_gives_the_terminal_back_to_the_shell(
    world: World, path: Path, goes_on: str
) -> None:
    """C6, G9: the wrapper is the shell's job, and stops with its command. Both continue, or the command is ended."""
    started = world.terminal(["bash", "--norc", "--noprofile", "-i"], env={"PS1": "", "H": " ".join(HOLDFAST)})
    then = "read line; exit 5" if goes_on == "fg" else "exit 5"
    started.type(f"$H run {path} -- sh -c 'echo child $$; kill -STOP $$; echo went on; {then}'\n".encode())
    child = pid_in(started.hear("child "))
    wrapper = parent(parent(child))
    started.type(b"echo the shell has it\n")
    started.hear("the shell has it")
    assert state(child) == state(wrapper) == "T"
    if goes_on == "fg":
        started.type(b"fg\n")
        started.hear("went on")
        started.type(b"hello\necho status $?\n")
        started.hear("status 5")
    else:
        os.kill(child, getattr(signal, f"SIG{goes_on}"))
        eventually(lambda: ended(wrapper), what="the wrapper's end")
    eventually(lambda: not path.exists(), what="the release")
    started.type(b"exit\nexit\n")
    started.wait()


@pytest.mark.skipif(shutil.which("bash") is None, reason="takes bash")
def test_a_suspended_shell_has_the_terminal_back_when_it_goes_on(world: World, path: Path) -> None:
    """C6: it had made a process group of its own, which had the terminal."""
    quiet = ["bash", "--norc", "--noprofile", "-i"]
    started = world.terminal(quiet, env={"PS1": "", "H": " ".join(HOLDFAST)})
    started.type(f"$H run {path} -- {' '.join(quiet)}\n".encode())
    started.type(b"echo inner $$\n")
    inner = int(started.hear("inner ").split()[1])
    started.type(b"suspend\n")
    eventually(lambda: state(inner) == state(parent(parent(inner))) == "T", what="both have stopped")
    started.type(b"echo outer has it\n")
    started.hear("outer has it")
    started.type(b"fg\n")
    eventually(lambda: state(inner) == "S", what="it goes on")
    started.type(b"echo inner has it; exit 5\n")
    started.hear("inner has it")
    started.type(b"echo status $?\n")
    started.hear("status 5")
    started.type(b"exit\n")
    assert started.wait() == 0
    assert not path.exists()


def test_a_stopped_command_does_not_stop_a_wrapper_that_leads_the_session(world: World, path: Path) -> None:
    """C6: nobody would continue the wrapper."""
    started = world.terminal([*HOLDFAST, "run", path, "--", "sh", "-c", "echo child $$; kill -STOP $$; echo went on"])
    child = pid_in(started.hear("child "))
    eventually(lambda: state(child) == "T", what="the command stopped")
    started.signal(signal.SIGUSR1)
    eventually(lambda: pending(child) == {signal.SIGUSR1}, what="the wrapper passed it on")
    os.kill(child, signal.SIGCONT)
    assert started.wait() == -signal.SIGUSR1


@pytest.mark.parametrize("command", ["run", "acquire", "wait"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_the_wait_and_leaves_nothing(
    world: World, path: Path, held: int, command: str, number: int
) -> None:
    before = path.read_bytes()
    tail = ["--", "true"] if command == "run" else []
    waiter = world.start([*HOLDFAST, command, path, *tail])
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    waiter.signal(number)
    assert waiter.wait() == -number
    assert waiter.complaint() == ""
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]
    assert held


def test_ctrl_c_ends_the_wait_in_a_terminal(world: World, path: Path, held: int) -> None:
    waiter = world.terminal([*HOLDFAST, "run", path, "--", "true"])
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    waiter.type(b"\x03")
    assert waiter.wait() == -signal.SIGINT
    assert "Traceback" not in waiter.rest()
    assert held


def test_two_signals_at_once_end_the_wait_without_a_traceback(world: World, path: Path, held: int) -> None:
    waiter = world.start([*HOLDFAST, "run", path, "--", "true"])
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    waiter.signal(signal.SIGSTOP)
    eventually(lambda: state(waiter.pid) == "T", what="it stopped")
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1)
    for number in numbers:
        waiter.signal(number)
    waiter.signal(signal.SIGCONT)
    assert -waiter.wait() in numbers
    assert waiter.complaint() == ""
    assert held


@pytest.mark.parametrize(("real", "rounds"), [(True, 15), (False, 60)], ids=["a start", "no imports"])
def test_term_at_any_moment_leaves_no_held_lock_and_no_command(
    world: World, path: Path, real: bool, rounds: int
) -> None:
    world.do("status", path)
    chance = random.Random(20240607)
    met = set()
    command = [*HOLDFAST, "run", path, "--", "sh", "-c", "echo child $$; exec sleep 60"]
    usual = float("inf")
    for _ in range(3):  # a single one may have been delayed, and all delays would then be too long
        begun = time.monotonic()
        started = world.start(command, real=real)
        started.hear("child ")
        usual = min(usual, time.monotonic() - begun)
        started.signal(signal.SIGTERM)
        assert started.wait() == -signal.SIGTERM
    delays = [(number + chance.random()) / rounds * usual * 1.5 for number in range(rounds)]
    while delays:
        started = world.start(command, real=real)
        # Whenever it arrives, the same must hold.
        time.sleep(delay := delays.pop(0))
        started.signal(signal.SIGTERM)
        assert started.wait() == -signal.SIGTERM
        said, complaint = started.rest(), started.complaint()
        assert complaint == ""
        met.add(bool(said))
        if said:
            assert ended(pid_in(said))
        assert [*path.parent.iterdir()] == []
        if not delays and len(met) < 2 and 0.0001 < delay < PATIENCE:
            # They have missed one case: before the command runs, or while it does.
            delays = [delay * 2] if True not in met else [delay / 2]
    assert met == {True, False}
    assert world.mine() == []
