"""The keeper process: it holds the lock for as long as its owner lives, whatever is killed, and leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.support import HOLDFAST, PATIENCE, Started, World, comm, dormant, ended, eventually, guardian
from holdfast.cli.owner import KEEPER
from process.support import descriptors

SHELLS = [pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed"))
          for name in ("sh", "bash", "zsh")]  # fmt: skip


def keepers(world: World) -> list[int]:
    """The living keepers of this test."""
    return [pid for pid in world.mine() if comm(pid) == KEEPER and not ended(pid)]


def status(world: World, path: Path) -> dict[str, object]:
    found = json.loads(world.do("status", "-j", path).stdout)
    assert isinstance(found, dict)
    return found


def nothing_left(world: World, path: Path) -> None:
    """Check that neither a process nor a file is left."""
    eventually(lambda: keepers(world) == [], what="the keepers to end")
    # A keeper that has just been started does not have its name yet.
    eventually(lambda: os.listdir(path.parent) == [], what="the files to go")
    eventually(lambda: keepers(world) == [], what="the keepers to end")


def holding(world: World, path: Path, *options: str) -> tuple[Started, int]:
    """A shell that holds the lock, and its keeper. The shell ends when its stdin does."""
    shell = world.sh(f'$H try {" ".join(options)} "$1" && echo held; read line', path, stdin=subprocess.PIPE)
    shell.hear("held")
    (keeper,) = keepers(world)
    return shell, keeper


# -- the keeper process ------------------------------------------------------------------------------------------------


@pytest.mark.unmeasured("it counts the memory of a process")
def test_a_keeper_inherits_nothing_of_its_caller(world: World, path: Path) -> None:
    """Its own session without a terminal, no descriptor of the caller's, no busy directory, little memory."""
    shell = world.sh('exec 7>"$2"; $H try "$1" && echo held; read line', path, path.with_name("other"), stdin=-1)
    shell.hear("held")
    (keeper,) = keepers(world)
    eventually(lambda: dormant(keeper), what="the keeper, which still imports what it watches with")
    found = descriptors(keeper)
    assert [found[fd] for fd in range(3)] == ["/dev/null"] * 3
    files = [fd for fd, target in found.items() if fd > 2 and target.partition(":")[0] not in ("pipe", "anon_inode")]
    assert [os.stat(f"/proc/{keeper}/fd/{fd}").st_ino for fd in files] == [path.stat().st_ino], found
    own = {target for target in found.values() if target.startswith("pipe:")}
    assert not own.intersection(descriptors(shell.pid).values())
    fields = Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()
    session, terminal = int(fields[3]), int(fields[4])
    assert (session, terminal) == (keeper, 0)
    assert os.readlink(f"/proc/{keeper}/cwd") == "/"
    memory = Path(f"/proc/{keeper}/status").read_text().partition("VmRSS:")[2].split()[0]
    assert int(memory) <= 15 * 1024
    path.with_name("other").unlink()
    shell.process.stdin.close()
    shell.wait()
    nothing_left(world, path)


def test_the_holder_of_a_shells_lock_can_be_seen(world: World, path: Path) -> None:
    shell, keeper = holding(world, path, "-t", "why")
    words = Path(f"/proc/{keeper}/cmdline").read_bytes().rstrip(b"\0").decode().replace("\0", " ")
    assert words.startswith(f"{KEEPER} for process {shell.pid} (sh)")
    found = status(world, path)
    assert (found["state"], found["liveness"], found["waiters"]) == ("held", "alive", [])
    assert found["evidence"]["source"] == "guard"
    assert (found["holder"]["pid"], found["holder"]["tag"]) == (shell.pid, "why")
    told = world.do("status", path).stdout
    assert f"process {shell.pid}" in told
    assert f"process {keeper}" in told, told


@pytest.mark.parametrize("command", ["try", "acquire"])
def test_the_keeper_of_a_new_lock_is_not_called_its_waiter(world: World, path: Path, command: str) -> None:
    """While the command reports the lock, the kernel's table names the command, and the keeper watches the file."""
    shell = world.sh(f'$H {command} -j "$1"; read line', path, stdin=subprocess.PIPE)
    told = json.loads(shell.hear("{"))
    assert (told["result"], told["waiters"], [told["keeper_pid"]]) == ("acquired", [], keepers(world))


def test_a_long_hold_of_a_shell_is_not_called_stale(world: World, path: Path) -> None:
    """The keeper refreshes the record every third of the age at which others may reclaim it."""
    _, _ = holding(world, path, "--stale-after", "0.9")
    first = path.read_bytes()
    eventually(lambda: path.read_bytes() != first, what="a heartbeat")
    done = world.do("try", "-q", "--stale", "protocol", "--stale-after", "0.9", path)
    assert done.returncode == 1


# -- ends of owners and keepers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=["kill", "term", "exit"])
def test_a_lock_ends_with_its_shell(world: World, path: Path, how: int | None, record_property: object) -> None:
    """The lock is free as soon as the owner ends; the delay is reported with the result."""
    shell, _ = holding(world, path)
    waiter = world.start([*HOLDFAST, "wait", path])
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    began = time.monotonic()
    if how is None:
        shell.process.stdin.close()
    else:
        shell.signal(how)
    while path.exists():
        assert time.monotonic() < began + PATIENCE
    took = time.monotonic() - began
    record_property("milliseconds_from_death_to_gone", round(took * 1000, 2))
    assert took < PATIENCE / 4
    assert waiter.wait() == 0
    shell.wait()
    nothing_left(world, path)


def test_without_pidfds_a_lock_ends_with_its_shell(world: World, path: Path) -> None:
    """The keeper then checks its owner ten times a second."""
    plain = (
        "import os, errno, sys\n"
        "def none(*_): raise OSError(errno.ENOSYS, 'no such call')\n"
        "os.pidfd_open = none\n"
        "from holdfast.cli import main\n"
        "main(['try', sys.argv[1]])\n"
    )
    shell = world.start(["sh", "-c", '"$1" -c "$2" "$3" && echo held; read line', "sh", sys.executable, plain, path],
                        stdin=subprocess.PIPE)  # fmt: skip
    shell.hear("held")
    (keeper,) = keepers(world)
    eventually(lambda: dormant(keeper), what="the keeper")
    assert "anon_inode:[pidfd]" not in descriptors(keeper).values()
    shell.signal(signal.SIGKILL)
    shell.wait()
    nothing_left(world, path)


def test_a_killed_keeper_leaves_a_lock_proven_dead(world: World, path: Path) -> None:
    """Although its owner lives. `release` reports it, and any contender may take over."""
    shell, keeper = holding(world, path)
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: ended(keeper), what="the keeper to end")
    found = status(world, path)
    assert (found["state"], found["liveness"], found["evidence"]["proven"]) == ("stale", "dead", True)
    done = world.do("release", "--owner-pid", shell.pid, path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "its keeper had ended before, so anybody could have taken it over since; nobody has" in done.stderr
    nothing_left(world, path)


def test_a_lock_that_was_taken_over_is_not_released_by_its_first_owner(world: World, path: Path) -> None:
    shell, keeper = holding(world, path)
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: ended(keeper), what="the keeper to end")
    holder = world.hold(path)
    holder.hear("held")
    done = world.do("release", "--owner-pid", shell.pid, path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"process {holder.pid} holds it itself" in done.stderr
    assert path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_keeper_that_is_told_to_end_releases_its_lock(world: World, path: Path, number: int) -> None:
    _, keeper = holding(world, path)
    os.kill(keeper, number)
    nothing_left(world, path)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE])
def test_a_stray_signal_does_not_free_the_lock_of_a_living_shell(world: World, path: Path, number: int) -> None:
    _, keeper = holding(world, path)
    os.kill(keeper, number)
    os.kill(keeper, number)
    assert world.do("try", "-q", path).returncode == 1  # later than the signals: they have been acted upon
    assert keepers(world) == [keeper]


def test_a_keeper_ends_with_its_lock(world: World, path: Path) -> None:
    """A lock removed by force is lost, so the keeper has nothing left to keep."""
    _, keeper = holding(world, path)
    path.unlink()
    eventually(lambda: ended(keeper), what="the keeper to end")
    nothing_left(world, path)


def test_a_keeper_leaves_a_lock_that_replaced_its_own(world: World, path: Path) -> None:
    shell, keeper = holding(world, path)
    os.kill(keeper, signal.SIGSTOP)
    other = path.with_name("other")
    other.write_bytes(b"pid=1\ntimestamp=1\n")
    other.rename(path)  # as no protocol does
    os.kill(keeper, signal.SIGCONT)
    shell.signal(signal.SIGKILL)
    eventually(lambda: ended(keeper), what="the keeper to end")
    assert path.read_bytes() == b"pid=1\ntimestamp=1\n"


# -- release -----------------------------------------------------------------------------------------------------------


def test_release_leaves_neither_the_keeper_nor_the_file(world: World, path: Path) -> None:
    script = '$H try -q "$1"; $H release -v "$1"; echo $?; $H status -q "$1"; echo $?'
    done = world.shell(script, path)
    assert (done.stdout.split(), done.stderr) == (["0", "0"], f"holdfast: {path}: released\n")
    nothing_left(world, path)


def test_release_works_while_the_keeper_is_stopped(world: World, path: Path) -> None:
    shell, keeper = holding(world, path)
    os.kill(keeper, signal.SIGSTOP)
    done = world.do("release", "--owner-pid", shell.pid, path)
    assert (done.returncode, done.stderr) == (0, "")
    nothing_left(world, path)


def test_release_by_another_shell_leaves_the_keeper(world: World, path: Path) -> None:
    shell, keeper = holding(world, path)
    done = world.do("release", path, real=True)  # for its parent: this process
    assert done.returncode == 1
    assert f"acquired for process {shell.pid}, not for process {os.getpid()}" in done.stderr
    assert keepers(world) == [keeper]
    assert world.do("break", "--force", "--yes", path).returncode == 0
    nothing_left(world, path)


def test_release_leaves_the_lock_of_a_newcomer(world: World, path: Path) -> None:
    """A waiter gets the lock as soon as the keeper releases it; by then `release` has done its work."""
    shell, _ = holding(world, path)
    waiter = world.hold(path)
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    done = world.do("release", "-j", "--owner-pid", shell.pid, path)
    assert (done.returncode, json.loads(done.stdout)["result"], done.stderr) == (0, "released", "")
    waiter.hear("held")
    waiter.process.stdin.close()
    assert waiter.wait() == 0
    nothing_left(world, path)


# -- killed in the middle of the hand-over -----------------------------------------------------------------------------

HOLD_UP = """
import os, sys, time
from holdfast.cli import keeper as k
where, mark = sys.argv[1:3]

def stop():
    with open(mark, "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(60)

def held_up(original, here):
    def call(*arguments):
        if where == here + "-before":
            stop()
        result = original(*arguments)
        if result == 0 and here == "fork":
            return result  # the keeper goes on
        if where == here + "-after":
            stop()
        return result
    return call

k._fork = held_up(k._fork, "fork")
k.detach = held_up(k.detach, "settle")
k.take = held_up(k.take, "take")
k.Keeper.__init__ = held_up(k.Keeper.__init__, "start")
k.Keeper.go = held_up(k.Keeper.go, "go")
from holdfast.cli import main
main(["try", sys.argv[3]])
"""
"""Runs `try`, and stops for ever where it is told to, in either process; the file at `mark` then says in which."""


def held_up(world: World, path: Path, where: str) -> tuple[Started, int, int]:
    """The shell, the command, and the process that stopped at that point."""
    mark = path.with_name("mark")
    shell = world.start(
        ["sh", "-c", '"$@"; echo status $?; read line', "sh", sys.executable, "-c", HOLD_UP, where, mark, path],
        stdin=subprocess.PIPE,
    )
    eventually(lambda: mark.exists() and mark.read_text() != "", what=f"the stop {where}")
    pid = int(mark.read_text())
    mark.unlink()
    children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
    return shell, int(children[0]), pid


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("fork-before", "file"), ("fork-after", ""), ("settle-before", ""), ("take-before", ""), ("take-after", ""),
        ("start-after", ""), ("go-before", ""), ("go-after", "kept"),
    ],
)  # fmt: skip
def test_a_killed_command_leaves_only_a_lock_that_it_reported(world: World, path: Path, where: str, left: str) -> None:
    """S2: before the fork the file is a dead holder's; up to `go` the keeper releases; then the shell has it."""
    shell, command, stopped = held_up(world, path, where)
    os.kill(command, signal.SIGKILL)
    if stopped != command:
        os.kill(stopped, signal.SIGKILL)  # the keeper would stay stopped; both are dead, as before the fork
        left = "file"
    shell.hear("status 137")
    if left == "kept":
        assert world.do("try", "-q", path).returncode == 1
        shell.process.stdin.close()
    elif left == "file":
        eventually(lambda: keepers(world) == [], what="the keeper to end")
        assert status(world, path)["evidence"]["proven"] is True
        assert world.do("run", "-n", path, "--", "true").returncode == 0
    nothing_left(world, path)


@pytest.mark.parametrize("where", ["settle-before", "take-before", "take-after", "start-after", "go-before"])
def test_the_command_reports_a_keeper_that_is_killed_during_the_hand_over(world: World, path: Path, where: str) -> None:
    """As long as the command waits for it: then it releases the lock itself, and reports a failure."""
    shell, command, stopped = held_up(world, path, where)
    keeper = stopped
    if stopped == command:
        (keeper,) = [int(pid) for pid in Path(f"/proc/{command}/task/{command}/children").read_text().split()]
    os.kill(keeper, signal.SIGKILL)
    if stopped == command:  # it would stay stopped
        os.kill(command, signal.SIGKILL)
        shell.hear("status 137")
        eventually(lambda: status(world, path)["state"] in ("stale", "free"), what="the end of the keeper")
        return
    shell.hear("status 3")
    nothing_left(world, path)


@pytest.mark.parametrize("option", ["--verbose", "--no-keeper"])
def test_a_command_whose_reader_has_gone_leaves_no_lock(world: World, path: Path, option: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = world.start([*HOLDFAST, "try", "-j", option, path], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert command.wait() == -signal.SIGPIPE
    nothing_left(world, path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("option", ["--verbose", "--no-keeper"])
def test_a_command_interrupted_while_it_reports_leaves_no_lock(
    world: World, path: Path, number: int, option: str
) -> None:
    """S2: nobody reads its result, and it is ended while it writes: the lock is released."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        while True:
            try:
                os.write(write, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(write, True)
        command = world.start([*HOLDFAST, "try", "-j", option, path], stdout=write, stderr=subprocess.PIPE)
        has_keeper = option != "--no-keeper"
        eventually(lambda: (keepers(world) != []) is has_keeper and "pipe" in _wchan(command.pid), what="the report")
        command.signal(number)
        assert command.wait() == -number
    finally:
        os.close(read)
        os.close(write)
    nothing_left(world, path)


def _wchan(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_an_owner_that_ends_during_the_hand_over_gets_no_lock(world: World, path: Path) -> None:
    owner = world.start(["sleep", "60"])
    code = HOLD_UP.replace("stop()\n        return result", "finish()\n        return result").replace(
        'main(["try"', 'main(["try", "--owner-pid", sys.argv[4]'
    )
    finish = "import signal\ndef finish():\n    os.kill(int(sys.argv[4]), signal.SIGKILL)\n    time.sleep(0.2)\n"
    done = world.start([sys.executable, "-c", finish + code, "start-after", path.with_name("mark"), path, owner.pid])
    assert done.wait() == 3
    assert f"process {owner.pid} has ended" in done.complaint()
    nothing_left(world, path)


def test_without_a_keeper_process_there_is_no_lock(world: World, path: Path) -> None:
    code = (
        "import os, errno, sys\n"
        "def none(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "os.fork = none\n"
        "from holdfast.cli import main\n"
        "main(['try', '--owner-pid', str(os.getppid()), sys.argv[1]])\n"
    )
    done = world.start([sys.executable, "-c", code, path])
    assert done.wait() == 3
    complaint = done.complaint()
    assert "keeper process" in complaint
    assert "--no-keeper" in complaint
    nothing_left(world, path)


# -- shells ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "script",
    [
        'x=$($H try -j "$1"); case $x in *acquired*) ;; *) exit 9;; esac',
        '( $H try "$1" )',
        '$H try "$1" | cat',
        'echo | $H try "$1"',
        'set -e; $H try "$1"',
        'if ! $H try "$1"; then exit 9; fi',
        'nohup $H try "$1" >/dev/null 2>&1',
        "trap '' TERM INT HUP CHLD; $H try \"$1\"",
        '$H try "$1" 5>&1 6<&0',
        '$H try "$1" <&- >&- 2>&-',
        "umask 777; $H try \"$1\"",
    ],
    ids=["substitution", "subshell", "left", "right", "set-e", "if", "nohup", "ignored", "descriptors", "closed",
         "umask"],
)  # fmt: skip
def test_every_form_of_call_binds_the_lock_to_the_scripts_shell(
    world: World, path: Path, shell: str, script: str
) -> None:
    """The owner is always the script's own shell, and no process waits for the keeper."""
    if (shell, "|" in script) == ("zsh", True) and script.startswith("echo"):
        script = f"{{ {script.replace('echo |', 'true;')}; }}"  # the right end of a pipeline is zsh itself
    script = script.replace("$H", "${=H}") if shell == "zsh" else script
    started = world.start(
        [shell, "-c", f"{script}\necho $$ $?; read line", shell, path],
        env={"H": " ".join(HOLDFAST)},
        stdin=subprocess.PIPE,
    )
    pid, code = map(int, started.hear("").split())
    assert code == 0
    path.chmod(0o600)  # with that umask, not even its owner may read it
    assert path.read_text().startswith(f"pid={pid}\n")
    assert pid == started.pid
    assert len(keepers(world)) == 1
    started.process.stdin.close()
    assert started.rest() is not None  # its end: no keeper keeps the pipe open
    started.wait()
    nothing_left(world, path)


def test_a_subshell_that_goes_on_owns_the_lock(world: World, path: Path) -> None:
    """The subshell is the caller, so the lock ends with it; `--owner-pid $$` binds to the script's shell."""
    script = """
        ( $H try "$1"; true ); $H wait "$1"; echo $?
        ( $H try --owner-pid $$ "$1"; true ); $H status -q "$1"; echo $?
    """
    done = world.shell(script, path)
    assert done.stdout.split() == ["0", "1"]
    nothing_left(world, path)


def test_a_program_that_a_shell_becomes_keeps_the_lock(world: World, path: Path) -> None:
    """After `exec`, the process is the same."""
    shell = world.sh('$H try "$1" && echo held; exec sleep 60', path)
    shell.hear("held")
    eventually(lambda: comm(shell.pid) == "sleep", what="the shell to become another program")
    assert world.do("try", "-q", path).returncode == 1
    shell.signal(signal.SIGKILL)
    shell.wait()
    nothing_left(world, path)


def test_a_failed_try_ends_a_script_with_set_e(world: World, path: Path, held: int) -> None:
    done = world.shell('set -e; $H try -q "$1"; echo went on', path)
    assert (done.returncode, done.stdout) == (1, "")
    assert keepers(world) == []


def test_one_keeper_leaves_another_lock_of_the_same_shell(world: World, path: Path) -> None:
    other = path.with_name("second.lock")
    shell = world.sh(
        '$H try "$1"; $H try "$2"; echo both; read line; $H release "$1"; echo one; read line', path, other, stdin=-1
    )
    shell.hear("both")
    assert len(keepers(world)) == 2
    shell.process.stdin.write(b"\n")
    shell.hear("one")
    assert (path.exists(), other.exists()) == (False, True)
    assert len(keepers(world)) == 1
    assert world.do("try", "-q", other).returncode == 1
    shell.process.stdin.close()
    shell.wait()
    nothing_left(world, path)


def test_a_terminal_that_hangs_up_leaves_the_lock_of_a_living_owner(world: World, path: Path) -> None:
    """The keeper has no terminal. It ends with its owner, which here outlives the terminal."""
    script = "trap '' HUP; $H try \"$1\"; echo held; while :; do sleep 0.05; done"
    shell = world.terminal(["sh", "-c", script, "sh", path], env={"H": " ".join(HOLDFAST)})
    shell.hear("held")
    (keeper,) = keepers(world)
    world.hang_up(shell)
    assert world.do("try", "-q", path).returncode == 1
    assert keepers(world) == [keeper]
    shell.signal(signal.SIGKILL)
    shell.wait()
    nothing_left(world, path)


def test_a_terminal_that_is_closed_ends_the_lock_of_its_shell(world: World, path: Path) -> None:
    shell = world.terminal(["sh", "-c", '$H try "$1"; echo held; read line', "sh", path], env={"H": " ".join(HOLDFAST)})
    shell.hear("held")
    world.hang_up(shell)
    shell.wait()
    nothing_left(world, path)


def test_ctrl_c_at_the_prompt_leaves_the_lock(world: World, path: Path) -> None:
    script = "trap 'echo caught' INT; $H try \"$1\"; echo held; while :; do sleep 0.05; done"
    shell = world.terminal(["sh", "-c", script, "sh", path], env={"H": " ".join(HOLDFAST)})
    shell.hear("held")
    shell.type(b"\x03")
    shell.hear("caught")
    assert world.do("try", "-q", path).returncode == 1


def test_many_shells_at_once_get_in_one_after_the_other(world: World, path: Path) -> None:
    """Twenty shells; a file created exclusively shows if two are inside."""
    script = """
        $H acquire -w 60 "$1" || exit 8
        mkdir "$1.inside" || exit 9
        rmdir "$1.inside"
        [ "$2" = exit ] || $H release "$1" || exit 7
    """
    started = [world.sh(script, path, "exit" if number % 2 else "release") for number in range(20)]
    assert [one.wait(60.0) for one in started] == [0] * 20
    nothing_left(world, path)


# -- a full disk, a directory that goes away ---------------------------------------------------------------------------


@pytest.fixture
def small(path: Path) -> Callable[[], None]:
    if os.getuid() != 0:
        pytest.skip("mounting takes root")
    place = path.parent / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("mounting is not possible here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def _fill(place: Path) -> None:
    with open(place / "ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def test_a_full_disk_leaves_neither_a_keeper_nor_half_a_record(world: World, small: Path) -> None:
    _fill(small)
    done = world.do("try", small / "a.lock")
    assert done.returncode == 3
    assert "No space left" in done.stderr
    assert sorted(os.listdir(small)) == ["ballast"]
    assert keepers(world) == []


def test_a_disk_that_fills_up_does_not_end_the_heartbeat(world: World, small: Path) -> None:
    lock = small / "a.lock"
    shell, _ = holding(world, lock, "--stale-after", "0.9")
    _fill(small)
    first = lock.read_bytes()
    eventually(lambda: lock.read_bytes() != first, what="a heartbeat")
    shell.signal(signal.SIGKILL)
    shell.wait()
    eventually(lambda: not lock.exists(), what="the keeper to release")


@pytest.mark.parametrize("protocol", ["semats", "sidecar", "beads"])
def test_a_keeper_holds_a_lock_of_every_protocol(world: World, path: Path, protocol: str) -> None:
    target = path.parent / "target"
    target.mkdir()
    shell = world.sh('$H try -p "$2" "$1" && echo held; read line; $H release -p "$2" "$1"; echo $?; read line',
                     target if protocol == "beads" else target / "x", protocol, stdin=subprocess.PIPE)  # fmt: skip
    shell.hear("held")
    assert len(keepers(world)) == 1
    (name,) = os.listdir(target)
    assert b"2 g " in (target / name).read_bytes()
    shell.process.stdin.write(b"\n")
    shell.hear("0")
    assert os.listdir(target) == []
    eventually(lambda: keepers(world) == [], what="the keeper to end")


NOWHERE = """
import os, sys
os.devnull = "/nowhere/null"
from holdfast.cli import main
main(sys.argv[1:])
"""
"""The command in a chroot that has no `/dev/null`."""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="has nothing in place of /dev/null")
def test_without_dev_null_a_lock_has_its_keeper_and_its_guardian(world: World, path: Path) -> None:
    nowhere = [sys.executable, "-c", NOWHERE]
    assert world.start([*nowhere, "try", "--owner-pid", os.getpid(), path]).wait() == 0
    assert world.do("run", "-n", path, "--", "true").returncode == 75
    assert world.start([*nowhere, "release", "--owner-pid", os.getpid(), path]).wait() == 0
    assert not path.exists()
    run = world.start([*nowhere, "run", path, "--", "cat"], stdin=subprocess.PIPE)
    assert guardian(run.pid)
    assert run.process.stdin is not None
    run.process.stdin.close()
    assert run.wait() == 0


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="has nothing in place of /dev/null")
def test_without_dev_null_standard_descriptors_may_be_closed(world: World, path: Path) -> None:
    script = '"$@" 0<&- 1>&- 2>&-; echo $?'
    words = [sys.executable, "-c", NOWHERE, "run", path, "--", "sh", "-c", "exit 7"]
    done = world.start(["sh", "-c", script, "sh", *words])
    assert done.hear("7") == "7"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="takes a mount namespace")
def test_without_proc_a_shell_can_release_its_lock(world: World, path: Path) -> None:
    """Neither the shell nor the holder of the kernel lock can be seen there."""
    script = 'umount -l /proc && $H acquire "$1" && $H release "$1"; echo $?'
    done = world.start(["unshare", "--mount", "sh", "-c", script, "sh", path], env={"H": " ".join(HOLDFAST)})
    done.hear("0")
    assert not path.exists()
