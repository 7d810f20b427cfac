"""`run` is as transparent as if the command had been called without it, and holds the lock meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.support import HOLDFAST, NAMELESS, World, dormant, ended, eventually, guardian
from holdfast import Lock

CHATTY = """
import os, signal, sys
{ignore}
print("child", os.getpid(), flush=True)
sys.stdin.readline()
"""


def child_of(line: str) -> int:
    return int(line.split()[1])


# -- exit status -------------------------------------------------------------------------------------------------------


EACH = """
import os, sys
import holdfast._platform.inotify, holdfast.cli.run, holdfast.cli.options

holdfast.Lock(sys.argv[1]).acquire().release()  # imports the rest
for code in map(int, sys.argv[2:]):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            holdfast.cli.main(["run", f"{sys.argv[1]}-{code}", "--", "sh", "-c", f"exit {code}"])
        except SystemExit as end:
            os._exit(end.code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Each is a process of its own, forked from one that has imported all: starting Python for each takes half a minute."""
CODES = (*range(10), 31, 32, 63, 64, 74, 75, 76, *range(124, 132), 137, 143, 192, 254, 255)
"""Those that mean something to holdfast, to a shell or to the kernel, and their neighbours."""


def test_no_exit_status_is_changed(world: World, path: Path) -> None:
    each = world.start([sys.executable, "-c", EACH, path, *CODES])
    assert each.rest(60.0).split() == [str(code) for code in CODES]
    assert each.wait() == 0
    assert [*path.parent.iterdir()] == []


@pytest.mark.parametrize("code", [0, 1, 2, 75, 126, 127, 128, 143, 255])
def test_an_exit_status_is_passed_on(world: World, path: Path, code: int) -> None:
    assert world.do("run", path, "--", "sh", "-c", f"exit {code}").returncode == code
    assert not path.exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV", "SIGINT", "SIGPIPE"])
def test_death_by_a_signal_is_passed_on(world: World, path: Path, name: str) -> None:
    number = signal.Signals[name]
    done = world.do("run", path, "--", "sh", "-c", f"kill -{number:d} $$")
    assert done.returncode == -number
    assert done.stderr == ""
    assert not path.exists()


def test_a_shell_sees_128_and_the_signal(world: World, path: Path) -> None:
    done = world.shell(
        "$H run \"$1\" -- sh -c 'kill -KILL $$'; echo $?; $H run \"$1\" -- sh -c 'kill $$'; echo $?", path
    )
    assert done.stdout.split() == ["137", "143"]


def test_a_signal_without_a_name_is_passed_through(world: World, path: Path) -> None:
    assert world.do("run", path, "--", "sh", "-c", "kill -40 $$").returncode == -40


@pytest.mark.parametrize(
    ("command", "status"), [("no-such-command", 127), ("./plain", 126), ("./", 126), ("plain/x", 126)]
)
def test_a_command_that_cannot_run_leaves_no_lock(world: World, path: Path, command: str, status: int) -> None:
    (path.parent / "plain").write_text("no program")
    done = world.do("run", path, "--", command)
    assert done.returncode == status
    assert done.stderr.startswith(f"holdfast: {command}: ")
    assert len(done.stderr.splitlines()) == 1
    assert not path.exists()


@pytest.mark.parametrize("name", ["./script", "script", "-script"])
def test_a_script_without_an_interpreter_is_run_by_the_shell(world: World, path: Path, name: str) -> None:
    """As by flock, env, timeout and nice: execvp(3). A directory or a plain file earlier on PATH is passed over."""
    places = [path.parent / one for one in ("first", "second", "-third")]
    for place in places:
        place.mkdir()
    (places[0] / name).mkdir()
    (places[1] / name).write_text("exit 1\n")
    script = path.parent / name if "/" in name else places[2] / name
    script.write_text('echo "$0" "$@" "$HOLDFAST_LOCK"; exit 3\n')
    script.chmod(0o755)
    found = name if "/" in name else f"./-third/{name}"
    search = ":".join(["first", "second", "-third", os.environ["PATH"]])
    done = world.do("run", path, "--", name, "a b", "c", env={"PATH": search})
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{found} a b c {path}\n", "")
    assert not path.exists()


def test_a_shell_line_given_as_a_command_gets_a_hint(world: World, path: Path) -> None:
    done = world.do("run", path, "--", "echo hi | cat")
    assert (done.returncode, "; a line for a shell takes -c: holdfast run LOCK -c" in done.stderr) == (127, True)


def test_a_script_whose_interpreter_is_missing_is_not_called_missing_itself(world: World, path: Path) -> None:
    script = path.with_name("script")
    script.write_text("#!/no/such/program\n")
    script.chmod(0o755)
    done = world.do("run", path, "--", "./script")
    assert (done.returncode, "the file is there, but not the interpreter that it names" in done.stderr) == (127, True)


# -- the command's environment -----------------------------------------------------------------------------------------


def test_the_environment_names_the_lock_and_no_earlier_takeover(world: World, path: Path) -> None:
    env = {"HOLDFAST_RECOVERED": "12", "HOLDFAST_LOCK": "another"}
    done = world.do("run", path.name, "--", "sh", "-c", 'echo "$HOLDFAST_LOCK ${HOLDFAST_RECOVERED-unset}"', env=env)
    assert done.stdout == f"{path} unset\n"


def test_an_entry_of_the_environment_without_a_name_keeps_no_command_from_starting(world: World, path: Path) -> None:
    words = ["run", path, "--", "/bin/sh", "-c", "echo $NAMED; exit 7"]
    done = world.start([sys.executable, "-c", NAMELESS, *HOLDFAST, *words], env={"NAMED": "value"})
    assert (done.rest(), done.wait()) == ("value\n", 7)


def test_the_command_has_no_signal_blocked_caught_or_newly_ignored(world: World, path: Path) -> None:
    command = ["cat", "/proc/self/status"]
    plain = world.start(command).rest()
    wrapped = world.do("run", path, "--", *command).stdout
    assert signals_of(wrapped) == signals_of(plain)
    assert signals_of(wrapped)["SigBlk"] == 0
    assert not signals_of(wrapped)["SigIgn"] & 1 << (signal.SIGPIPE - 1)


def signals_of(status: str) -> dict[str, int]:
    internal = 3 << 31  # 32 and 33, which the C library reserves, and ignores while it starts a process
    rows = (line.partition(":") for line in status.splitlines() if line.startswith("Sig"))
    return {name: int(value, 16) & ~internal for name, _, value in rows if name in ("SigBlk", "SigIgn", "SigCgt")}


def test_a_blocked_signal_stays_blocked_as_it_was_inherited(world: World, path: Path) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})

    done = world.do("run", path, "--", "cat", "/proc/self/status", preexec_fn=block)
    assert signals_of(done.stdout)["SigBlk"] == 1 << (signal.SIGWINCH - 1)


def test_a_hangup_that_nohup_ignores_stays_ignored(world: World, path: Path) -> None:
    done = world.shell('nohup $H run "$1" -- cat /proc/self/status', path)
    assert signals_of(done.stdout)["SigIgn"] & 1 << (signal.SIGHUP - 1)


def test_the_command_ignores_the_callers_ignored_signals_except_those_that_python_hides(
    world: World, path: Path
) -> None:
    """Python itself ignores SIGPIPE and SIGXFSZ from its start, and forgets how it found them."""
    done = world.shell('trap "" PIPE XFSZ INT USR1 TSTP; $H run "$1" -- cat /proc/self/status', path)
    wanted = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGUSR1, signal.SIGTSTP)
    ignored = [number for number in wanted if signals_of(done.stdout)["SigIgn"] & 1 << (number - 1)]
    assert ignored == [signal.SIGINT, signal.SIGUSR1, signal.SIGTSTP]


def test_an_ignored_signal_does_not_end_the_wrapper(world: World, path: Path) -> None:
    started = world.sh('trap "" HUP INT; exec $H run "$1" -- sh -c \'echo ready; read line; echo bye\'', path, stdin=-1)
    started.hear("ready")
    started.signal(signal.SIGHUP)
    started.signal(signal.SIGINT)
    started.process.stdin.write(b"\n")
    started.hear("bye")
    assert started.wait() == 0


def test_an_inherited_ignored_sigchld_does_not_hide_the_end(world: World, path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert world.do("run", path, "--", "sh", "-c", "exit 7", preexec_fn=ignore).returncode == 7


def test_binary_input_and_output_pass_untouched(world: World, path: Path) -> None:
    data = bytes(range(256)) * 4096
    started = world.start([*HOLDFAST, "run", path, "--", "sh", "-c", "tee /dev/stderr"], stdin=subprocess.PIPE)
    out, complaint = started.process.communicate(data, timeout=20)
    assert out == data
    assert complaint == data


def test_no_descriptor_but_the_guard_leaks_into_the_command(world: World, path: Path) -> None:
    code = "import os\nfor n in range(3, 50):\n  try: os.fstat(n); print(os.fstat(n).st_ino)\n  except OSError: pass"
    lock_first = "import os; print(os.stat(os.environ['HOLDFAST_LOCK']).st_ino)\n"
    done = world.do("run", path, "--", sys.executable, "-c", lock_first + code)
    lock, *others = done.stdout.split()
    assert others == [lock]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_descriptors_stay_closed_and_never_become_the_lock_file(world: World, path: Path, closed: str) -> None:
    script = """
        for n in 0 1 2; do [ -e /proc/$$/fd/$n ] && echo $n $(readlink /proc/$$/fd/$n) >>found; done
        echo garbage; echo garbage >&2; exit 5
    """
    done = world.shell(f'$H run "$1" -- sh -c "$2" {closed}; echo $? >status', path, script)
    assert (path.parent / "status").read_text() == "5\n", done.stderr
    found = (path.parent / "found").read_text() if (path.parent / "found").exists() else ""
    assert str(path.parent) not in found
    for number, mark in enumerate(("<&-", " >&-", "2>&-")):
        if mark.strip() in closed.split():
            assert f"{number} " not in found
    assert not path.exists()


# -- holding -----------------------------------------------------------------------------------------------------------


def test_a_command_that_ignores_term_keeps_the_lock(world: World, path: Path) -> None:
    code = CHATTY.format(ignore="signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'term\\n'))")
    started = world.run(path, code, stdin=-1)
    started.hear("child")
    started.signal(signal.SIGTERM)
    started.hear("term")
    assert world.do("try", path).returncode == 1
    assert started.process.poll() is None
    started.process.stdin.write(b"\n")
    assert started.wait() == 0
    assert not path.exists()


def test_killing_the_wrapper_does_not_free_a_lock_whose_work_goes_on(world: World, path: Path) -> None:
    started = world.run(path, CHATTY.format(ignore=""), stdin=-1)
    child = child_of(started.hear("child"))
    started.signal(signal.SIGKILL)
    started.wait()
    assert world.do("try", path).returncode == 1
    status = json.loads(world.do("status", "-j", path).stdout)
    assert (status["state"], status["liveness"], status["evidence"]["source"]) == ("held", "alive", "guard")

    heir = world.start([*HOLDFAST, "run", "-v", path, "--", "sh", "-c", "echo recovered $HOLDFAST_RECOVERED"])
    eventually(lambda: dormant(heir.pid), what="the heir waiting")
    assert not ended(child)
    started.process.stdin.write(b"\n")
    heir.hear(f"recovered {started.pid}", within=8.0)  # sooner than it would look anyway
    assert heir.wait() == 0
    assert f"left behind by process {started.pid}" in heir.complaint()
    assert ended(child)
    assert not path.exists()


def test_a_daemonised_grandchild_does_not_keep_the_lock(world: World, path: Path) -> None:
    code = """
import os, sys
detached, closed_when_it_is = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.close(0), os.close(1), os.close(2)
    os.close(closed_when_it_is)
    import time
    while True: time.sleep(60)
os.close(closed_when_it_is)
os.read(detached, 1)  # until then it may be taken for what the command has left at work
print("daemon", flush=True)
"""
    done = world.do("run", path, "--", sys.executable, "-c", code)
    assert done.returncode == 0
    assert not path.exists()
    assert world.mine(), "the daemon is there"
    assert world.do("run", "-n", path, "--", "true").returncode == 0


@pytest.mark.parametrize("how", ["removed", "replaced", "overwritten"])
def test_a_lost_lock_ends_the_command_and_is_reported(world: World, path: Path, how: str) -> None:
    started = world.run(path, CHATTY.format(ignore=""), stdin=-1)
    child = child_of(started.hear("child"))
    if how == "removed":
        path.unlink()
    elif how == "replaced":
        other = path.with_name("other")
        other.write_text("pid=1\ntimestamp=1\n")
        other.rename(path)
    else:
        path.write_text("pid=1\ntimestamp=1\n")
    assert started.wait() == 4
    complaint = started.complaint()
    assert str(path) in complaint
    assert "removed, replaced, written over or closed" in complaint
    assert "Sending TERM to the command" in complaint
    assert "the command ended with signal SIGTERM" in complaint
    assert ended(child)
    assert path.exists() == (how != "removed"), "the other's file is left alone"


def test_a_lock_lost_by_the_command_itself_is_reported_at_the_end(world: World, path: Path) -> None:
    done = world.do("run", path, "--", "sh", "-c", "rm $HOLDFAST_LOCK")
    assert done.returncode == 4
    assert "removed, replaced, written over or closed" in done.stderr


# -- a lock that is not acquired ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["-w", "0.2"], 75),
        (["-n"], 75),
        (["-n", "-E", "9"], 9),
        (["-w", "0", "-E", "0"], 0),
        (["-n", "-E", "255"], 255),
    ],
)
def test_a_held_lock_has_its_own_exit_status(
    world: World, path: Path, held: int, options: list[str], status: int
) -> None:
    done = world.do("run", *options, path, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (status, "")
    assert f"process {held}" in done.stderr
    assert str(path) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert world.do("run", *options, "-q", path, "--", "echo", "ran").stderr == ""


@pytest.mark.parametrize("value", ["300", "256", "x", "-1", "", "0000999", "٣", "1.0"])
def test_an_impossible_exit_status_is_refused(world: World, path: Path, value: str) -> None:
    done = world.do(
        "run", f"-E{value}" if value == "-1" else "-E", *([] if value == "-1" else [value]), path, "--", "true"
    )
    assert done.returncode == 2
    assert "exit status from 0 to 255" in done.stderr


@pytest.mark.parametrize("value", ["-1", "nan", "soon", ""])
def test_an_impossible_timeout_is_refused(world: World, path: Path, value: str) -> None:
    assert world.do("run", f"--timeout={value}", path, "--", "true").returncode == 2


def test_a_long_wait_is_announced_once_on_stderr(world: World, path: Path, held: int) -> None:
    """Six waits at a time, as each takes more than a second."""
    waiting = {}
    for command in ("run", "acquire", "wait"):
        tail = ["--", "echo", "ran"] if command == "run" else []
        waiting[command] = [
            world.start([*HOLDFAST, command, *quiet, "-w", "2.5", path, *tail]) for quiet in ((), ("-q",))
        ]
    for command, (loud, quiet) in waiting.items():
        assert loud.wait() == quiet.wait() == (75 if command == "run" else 1)
        notice, refusal = loud.complaint().splitlines()
        assert notice.startswith(f"holdfast: waiting for {path}: held by process {held} (")
        assert str(held) in refusal
        assert quiet.complaint() == ""
        assert loud.rest() == quiet.rest() == ""


def test_a_short_wait_is_not_announced(world: World, path: Path, held: int) -> None:
    waiter = world.start([*HOLDFAST, "run", path, "--", "true"])
    eventually(lambda: dormant(waiter.pid), what="the contender waiting")
    os.kill(held, signal.SIGTERM)
    assert waiter.wait() == 0
    assert waiter.complaint() == ""


# -- the command line --------------------------------------------------------------------------------------------------


def test_the_command_needs_no_dashes_after_a_single_lock(world: World, path: Path) -> None:
    done = world.do("run", "-w", "5m", path, "printf", "%s.", "-n", "-q", "--no-such")
    assert (done.returncode, done.stdout, done.stderr) == (0, "-n.-q.--no-such.", "")


def test_a_line_of_the_shell_is_run_by_it(world: World, path: Path) -> None:
    done = world.do("run", path, "-c", 'test -e "$HOLDFAST_LOCK" && echo held | tr a-z A-Z; exit 7')
    assert (done.returncode, done.stdout) == (7, "HELD\n")


# -- conflicts ---------------------------------------------------------------------------------------------------------

CONFLICT = 'printf "%s\\n" "$HOLDFAST_LOCK" "$HOLDFAST_HOLDER" "$HOLDFAST_REASON"; trap; exit 9'


def test_a_conflict_command_is_run_when_the_lock_is_held(world: World, path: Path, held: int) -> None:
    done = world.do("run", "-n", "-E", "11", "--on-conflict", CONFLICT, path, "--", "echo", "ran")
    assert done.returncode == 11
    where, holder, reason = done.stdout.splitlines()
    assert (where, holder) == (str(path), str(held))
    assert f"holdfast: {reason}\n" in done.stderr
    assert "--on-conflict ended with status 9" in done.stderr
    done = world.do("run", "--on-conflict", "echo conflict", f"{path}.other", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_a_conflict_command_does_not_inherit_the_lock_of_an_outer_run(world: World, path: Path, held: int) -> None:
    inner = f'$H run -qn --on-conflict "echo [\\$HOLDFAST_LOCK \\$HOLDFAST_TOKEN \\$HOLDFAST_SLOT]" "{path}" true'
    done = world.shell(f"$H run --fencing --slots 2 '{path}.outer' -- sh -c '{inner}'")
    assert (done.returncode, done.stdout) == (75, f"[{path} ]\n")


def test_a_conflict_command_can_be_interrupted(world: World, path: Path, held: int) -> None:
    """No lock is held then, so signals that `run` would otherwise receive in order have their usual effect."""
    run = world.start([*HOLDFAST, "run", "-qn", "--on-conflict", "echo $$; exec sleep 600", path, "--", "true"])
    pid = int(run.hear(""))
    assert "SigBlk:\t0000000000000000" in Path(f"/proc/{pid}/status").read_text()
    run.signal(signal.SIGINT)
    assert run.wait() == -signal.SIGINT
    os.kill(pid, signal.SIGTERM)


# -- the wait ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("events")
def test_a_waiter_is_told_its_place_in_the_queue_and_when_that_changes(world: World, path: Path, held: int) -> None:
    first = world.start([*HOLDFAST, "run", "-q", path, "--", "true"])
    eventually(lambda: dormant(first.pid) and len(Lock(path).status().waiters) == 1)
    second = world.start([*HOLDFAST, "run", path, "--", "true"], stderr=subprocess.STDOUT)
    assert second.hear(f"holdfast: waiting for {path}: held by process {held} ").endswith(
        "; number 2 of 2 in the queue"
    )
    first.signal(signal.SIGTERM)
    assert second.hear(f"holdfast: waiting for {path}: held by process {held} ").endswith(
        "; number 1 of 1 in the queue"
    )


ANCESTOR = (
    "which holds it, is an ancestor of this process. If it waits for this one to end, as `holdfast run` does, it "
    "cannot release the lock before that. End this command, or call it without the lock"
)


@pytest.mark.needs("proc")
def test_a_run_that_waits_for_its_own_ancestor_gets_one_hint(world: World, path: Path) -> None:
    """All cases run side by side, as each takes more than a second."""
    started = {}
    for protocol in ("sema", "semats", "sidecar", "flock", "ofd", "beads"):
        lock = path.parent / protocol
        if protocol == "beads":
            lock.mkdir()
        inner = [*HOLDFAST, "run", "-w", "2.5", "-p", protocol, lock, "--", "true"]
        started[protocol] = world.start([*HOLDFAST, "run", "-p", protocol, lock, "--", *inner])
    one = [path.parent / "one", path.parent / "two"]
    inner = [*HOLDFAST, "run", "-w", "2.5", *one, "--", "true"]
    started["several"] = world.start([*HOLDFAST, "run", *one, "--", "sh", "-c", '"$@"; exit', "sh", *inner])
    slot = ["--slots", "1", path.parent / "slots"]
    inner = [*HOLDFAST, "run", "-w", "2.5", *slot, "--", "true"]
    started["slots"] = world.start([*HOLDFAST, "run", *slot, "--", *inner])
    for name, run in started.items():
        assert run.wait() == 75, name
        notice, hint, refusal = run.complaint().splitlines()
        assert notice.startswith("holdfast: waiting for ")
        assert hint == f"holdfast: process {run.pid}, {ANCESTOR}", name
        assert refusal.startswith("holdfast: could not get "), name


@pytest.mark.needs("proc")
def test_a_wait_for_an_ancestor_lasts_until_the_ancestor_gives_up(world: World, path: Path) -> None:
    run = world.start(
        [*HOLDFAST, "run", path, "--", "sh", "-c", '"$@"; echo "$?"', "sh", *HOLDFAST, "run", path, "--", "true"],
        stderr=subprocess.STDOUT,
    )
    run.hear(f"holdfast: process {run.pid}, {ANCESTOR}")
    (inner,) = (waiter.pid for waiter in Lock(path).status().waiters)
    os.kill(inner, signal.SIGTERM)
    assert run.hear("143")
    assert run.wait() == 0


@pytest.mark.needs("proc")
@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_nonblocking_run_for_its_ancestors_lock_gets_a_hint(world: World, path: Path, quiet: tuple[str, ...]) -> None:
    inner = [*HOLDFAST, "run", "-n", *quiet, path, "--", "true"]
    done = world.start([*HOLDFAST, "run", path, "--", *inner])
    assert done.wait() == 75
    told = [f"holdfast: process {done.pid}, {ANCESTOR}"]
    assert done.complaint().splitlines()[1:] == ([] if quiet else told)


@pytest.mark.needs("proc")
def test_a_slot_of_an_ancestor_causes_no_hint_while_others_may_come_free(world: World, path: Path) -> None:
    other = world.start([*HOLDFAST, "run", "--slots", "2", path, "--", "sleep", "600"])
    eventually((path.parent / f"{path.name}.0.lock").exists)
    inner = [*HOLDFAST, "run", "-w", "2.5", "--slots", "2", path, "--", "true"]
    done = world.do("run", "--slots", "2", path, "--", *inner)
    assert done.returncode == 75
    assert "is an ancestor" not in done.stderr
    other.signal(signal.SIGTERM)
    other.wait()


# -- limits ------------------------------------------------------------------------------------------------------------


def test_the_limit_ends_the_whole_tree_and_is_reported(world: World, path: Path) -> None:
    code = "(setsid sleep 600 & echo left $!; wait) & trap '' TERM; echo child $$; sleep 600; sleep 600"
    words = ["--limit", "200ms", "--kill-after", "100ms", "-E", "19", path, "--", "sh", "-c", code]
    done = world.do("run", *words)
    assert done.returncode == 19
    assert f"{path}: held for 0.2 s, which is the limit. Sending TERM to the command, and to all" in done.stderr
    assert "the command ended with signal SIGKILL" in done.stderr
    assert all(ended(child_of(line)) for line in done.stdout.splitlines())
    assert not path.exists()
    assert world.mine() == []


def test_the_limit_also_ends_a_run_that_is_stopped(world: World, path: Path) -> None:
    """Ctrl-Z, for one, stops the command as well."""
    script = "echo child $$; exec sleep 600"
    stopped = world.start([*HOLDFAST, "run", "-q", "--limit", "1s", path, "--", "sh", "-c", script])
    child = child_of(stopped.hear("child"))
    guardian(stopped.pid)  # has left the group by then
    os.killpg(stopped.pid, signal.SIGSTOP)
    assert stopped.wait() == 75
    assert ended(child)
    assert not path.exists()


def test_a_command_that_ends_in_time_knows_no_limit(world: World, path: Path) -> None:
    done = world.do("run", "--limit", "1h", path, "--", "sh", "-c", "exit 6")
    assert (done.returncode, done.stderr) == (6, "")


def test_the_limit_also_ends_background_jobs_and_a_command_that_outlives_run(world: World, path: Path) -> None:
    """G3."""
    other = path.with_name("other.lock")
    left = world.start([*HOLDFAST, "run", "-q", "--limit", "2s", path, "--", "sh", "-c", "sleep 600 > /dev/null &"])
    killed = world.start([*HOLDFAST, "run", "--limit", "2s", other, "--", "sh", "-c", "echo child $$; exec sleep 600"])
    child = child_of(killed.hear("child"))
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert left.wait() == 0
    assert world.do("wait", "-w", "20s", path).returncode == 0
    assert world.do("run", "-w", "20s", other, "--", "true").returncode == 0
    assert ended(child)
    eventually(lambda: world.mine() == [])
