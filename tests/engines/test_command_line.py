"""The command line on URLs of real servers: whatever works for lock files works there, and no password is shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from cli.support import HOLDFAST, Started, World, command, ended, eventually
from engines.postgresql.server import Postgres

WORK = "import sys; print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    yield one
    one.close()


@pytest.fixture(scope="module")
def _etcd() -> Iterator[str]:
    from engines.etcd.servers import nodes

    with nodes() as made:
        yield f"etcd://{made[0].host}/command/"


@pytest.fixture(params=["postgresql", "etcd"])
def url(request: pytest.FixtureRequest) -> str:
    """The prefix of URLs for locks that no other test uses."""
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgresql_prefix")
        return found
    return f"{request.getfixturevalue('_etcd')}{abs(hash(request.node.name)):x}/"


def holding(world: World, url: str, *options: str) -> Started:
    started = world.run(url, WORK, *options, stdin=-1)
    started.hear("held")
    return started


def test_the_command_of_a_killed_run_is_ended(world: World, url: str) -> None:
    """G3: the server has freed the lock, so it is lost."""
    lock = f"{url}a" + ("?ttl=2" if url.startswith("etcd:") else "")  # etcd frees it when the lease ends
    holder = holding(world, lock)
    work = command(holder.pid)
    holder.signal(signal.SIGKILL)
    eventually(lambda: ended(work), what="the end of the command")
    assert world.do("run", "-w", 20, lock, "--", "true").returncode == 0


def test_a_holder_is_shown_and_can_be_ended(world: World, url: str) -> None:
    holder = holding(world, f"{url}a", "-t", "nightly")
    seen = json.loads(world.do("status", "-j", f"{url}a").stdout)
    assert (seen["result"], seen["holder"]["pid"], seen["holder"]["tag"]) == ("held", holder.pid, "nightly")
    assert seen["evidence"]["source"] == "server"
    shown = world.do("status", "-v", f"{url}a").stdout
    stored = shown.partition("\ncontent ")[2]
    assert "nightly" in stored if url.startswith("etcd") else not stored  # in PostgreSQL, a lock has no record
    listed = [json.loads(line) for line in world.do("ls", "-j", url).stdout.splitlines()]
    assert [(one["path"], one["id"]) for one in listed] == [(seen["path"], seen["id"])]
    assert "nightly" in world.do("ls", url).stdout
    refused = world.do("run", "-n", f"{url}a", "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert f"process {holder.pid}" in refused.stderr
    assert world.do("wait", "-w", "0.1", f"{url}a").returncode == 1
    another = world.do("break", "--id", "0123456789ab", "--force", f"{url}a")
    assert (another.returncode, "Check its status, and decide again" in another.stderr) == (1, True)
    assert world.do("break", "--id", seen["id"], "--force", f"{url}a").returncode == 0
    assert holder.wait() == 4
    assert "was lost while it was held here" in holder.complaint()
    assert world.do("status", f"{url}a").returncode == 0


def test_each_command_has_a_higher_token(world: World, url: str) -> None:
    words = ["run", f"{url}a", "--", "sh", "-c", "echo $HOLDFAST_TOKEN"]
    first, second = int(world.do(*words).stdout), int(world.do(*words, env={"HOLDFAST_TOKEN": "x"}).stdout)
    assert first < second


def test_the_example_refuses_the_late_writer(world: World, url: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "fencing.py"
    said = world.start([sys.executable, example, f"{url}a"]).rest()
    assert "and is refused: token" in said
    assert said.endswith("the report is 'by the second'\n")


def test_a_waiter_is_woken_by_a_release_or_ended_by_a_signal(world: World, url: str) -> None:
    holder = holding(world, f"{url}a")
    lock = holdfast.Lock(f"{url}a")
    waiter = world.start([*HOLDFAST, "run", f"{url}a", "--", "echo", "mine"])
    eventually(lambda: lock.status().waiters)
    gone = world.start([*HOLDFAST, "run", f"{url}a", "--", "echo", "never"])
    eventually(lambda: len(lock.status().waiters) == 2)
    gone.signal(signal.SIGTERM)
    assert gone.wait() == -signal.SIGTERM
    eventually(lambda: len(lock.status().waiters) == 1)
    assert holder.process.stdin is not None
    holder.process.stdin.close()
    assert waiter.hear("mine") == "mine"
    assert (holder.wait(), waiter.wait()) == (0, 0)


def test_a_shells_lock_ends_with_it_and_is_not_released_for_another(world: World, url: str) -> None:
    """S7, S9: a keeper has the connection."""
    shell = world.sh('$H acquire -j "$1" && read line; $H release "$1"; echo done; read line', f"{url}a", stdin=-1)
    told = json.loads(shell.hear("{"))
    assert told["result"] == "acquired"
    assert told["owner_pid"] == shell.pid
    assert isinstance(told["token"], int)
    other = world.shell('$H release "$1"', f"{url}a")
    assert other.returncode == 1
    assert f"for process {shell.pid}" in other.stderr
    assert world.do("try", f"{url}a").returncode == 1
    assert shell.process.stdin is not None
    os.write(shell.process.stdin.fileno(), b"\n")
    shell.hear("done")
    eventually(lambda: ended(told["keeper_pid"]))
    assert not holdfast.Lock(f"{url}a").status().locked

    killed = world.sh('$H try -j "$1"; read line', f"{url}b", stdin=-1)
    keeper = json.loads(killed.hear("{"))["keeper_pid"]
    killed.signal(signal.SIGKILL)
    eventually(lambda: ended(keeper))
    assert not holdfast.Lock(f"{url}b").status().locked


def test_a_killed_command_leaves_no_waiting_keeper(world: World, url: str) -> None:
    """S7, S8."""
    lock = holdfast.Lock(f"{url}a")
    numbers = (signal.SIGTERM, signal.SIGKILL)
    with lock:
        waiters = [world.start([*HOLDFAST, "acquire", f"{url}a"]) for _ in numbers]
        eventually(lambda: len(lock.status().waiters) == len(waiters))
        for waiter, number in zip(waiters, numbers, strict=True):
            waiter.signal(number)
            assert waiter.wait() == -number
        eventually(lambda: not lock.status().waiters)
    eventually(lambda: not world.mine())


def test_a_keeper_keeps_no_descriptor_of_its_shell(world: World, url: str) -> None:
    """Otherwise a flock of the shell would last as long as the keeper."""
    words = 'exec 9>"$2"; flock 9; $H try "$1"; exec 9>&-; flock -n "$2" echo free'
    shell = world.shell(words, f"{url}a", world.directory / "mine")
    assert (shell.returncode, shell.stdout) == (0, "free\n")
    eventually(lambda: not holdfast.Lock(f"{url}a").status().locked)


def test_an_owner_that_ends_during_the_wait_gets_no_lock(world: World, url: str) -> None:
    owner, holder = world.start(["sleep", "600"]), holding(world, url + "owner")
    waiting = world.start([*HOLDFAST, "acquire", "-j", "--owner-pid", owner.pid, url + "owner"])
    eventually(lambda: holdfast.Lock(url + "owner").status().waiters, what="a wait")
    owner.signal(signal.SIGKILL)
    owner.wait()
    assert holder.process.stdin is not None
    holder.process.stdin.close()
    assert waiting.wait() == 3
    assert json.loads(waiting.rest())["result"] == "failed"
    assert f"process {owner.pid} has ended" in waiting.complaint()
    eventually(lambda: not holdfast.Lock(url + "owner").status().locked, what="a free lock")


def test_events_are_reported(world: World, url: str) -> None:
    lock = holdfast.Lock(f"{url}a", tag="mine")
    with lock:
        watch = world.start([*HOLDFAST, "watch", url])
        first = json.loads(watch.hear("{"))
        assert (first["kind"], first["first_look"], first["pid"]) == ("held", True, os.getpid())
        waiter = world.start([*HOLDFAST, "run", f"{url}a", "--", "cat"], stdin=-1)
        assert json.loads(watch.hear("{"))["kind"] == "waiting"
    events = [json.loads(watch.hear("{")) for _ in range(2)]
    assert [(one["kind"], one["pid"]) for one in events] == [("released", os.getpid()), ("acquired", waiter.pid)]
    assert waiter.process.stdin is not None
    waiter.process.stdin.close()
    assert json.loads(watch.hear("{"))["kind"] == "released"


def test_doctor_tries_the_server_a_lock_and_fencing(world: World, url: str) -> None:
    done = world.do("doctor", "-j", url)
    assert done.returncode == 0
    seen = json.loads(done.stdout)
    assert [one["name"] for one in seen["findings"]] == ["server", "lock", "fencing"]


@pytest.mark.parametrize("options", [["-p", "sema"], ["--parents"], ["--durable"], ["--mode", "600"]])
def test_an_option_for_files_is_refused(world: World, options: list[str]) -> None:
    for url in ("postgresql://127.0.0.1:1/db#name", "etcd://127.0.0.1:1/name"):
        done = world.do("run", *options, url, "--", "true")
        assert done.returncode == 2
        flag = {"-p": "--protocol"}.get(options[0], options[0])
        assert f"({flag}) has no meaning for a lock on" in done.stderr


EVERY = """
import os, sys
from holdfast.cli import main
for url in sys.argv[1:]:
    for command in ("run", "try", "acquire", "release", "wait", "status", "ls", "break", "doctor"):
        limit = ["-w", "1"] if command in ("run", "acquire", "wait") else []
        limit += ["--owner-pid", str(os.getppid())] if command in ("try", "acquire") else []
        for words in ([*limit, url, *(["--", "true"] if command == "run" else [])], ["--nonsense", url, "x"]):
            print("begins", flush=True)
            try:
                main([command, *words])
            except SystemExit as end:
                print("ends", command, end.code, flush=True)
"""


def test_a_password_is_not_printed(world: World) -> None:
    """By any command: neither if a server cannot be reached, nor in the message about a mistake."""
    urls = ("postgresql://me:SECRET@127.0.0.1:1/db#name", "etcd://me:SECRET@127.0.0.1:1/name")
    started = [world.start([sys.executable, "-c", EVERY, url], stderr=subprocess.STDOUT) for url in urls]
    said = "".join(done.rest() for done in started)
    assert "SECRET" not in said
    assert said.count("127.0.0.1") >= 18
    ends = [line.split()[2] for line in said.splitlines() if line.startswith("ends")]
    assert ends == ["3", "2"] * 18


def test_a_password_is_not_shown_in_the_list_of_processes(world: World, postgresql_prefix: str) -> None:
    secret = postgresql_prefix.replace("://postgres@", "://postgres:SECRET@")
    assert secret != postgresql_prefix
    with holdfast.Lock(f"{postgresql_prefix}a"):
        started = world.start([*HOLDFAST, "watch", secret])
        started.hear("{")
        assert b"SECRET" not in _words(started.pid)
        assert b"watch" in _words(started.pid)


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_schema_is_made_once(world: World, request: pytest.FixtureRequest) -> None:
    base = request.getfixturevalue("postgresql_prefix").partition("#")[0]
    url = f"{base}?schema=other#a"
    missing = world.do("run", url, "--", "true")
    assert missing.returncode == 3
    assert "holdfast postgresql init" in missing.stderr
    for _ in range(2):
        done = world.do("postgresql", "init", base, "--schema", "other")
        assert (done.returncode, done.stdout) == (0, "")
        assert "is ready for locks: all is in its schema other" in done.stderr
    assert world.do("run", url, "--", "echo", "in").stdout == "in\n"
    assert world.do("postgresql", "init", "etcd://127.0.0.1/x").returncode == 2
    assert world.do("postgresql", "init", base, "--grant", "").returncode == 2
    assert world.do("postgresql", "drop", base).returncode == 2


def test_a_role_that_was_granted_locks_may_use_them(world: World, postgres: Postgres) -> None:
    """Whoever made the schema, and whatever the role's name. The SQL of --print does the same, without a server."""
    name, schema = 'an "ordinary" role', "granted"
    quoted = '"' + name.replace('"', '""') + '"'
    base, user = postgres.url(), name.replace('"', "%22").replace(" ", "%20")
    url = postgres.url("a", user=user, more=f"?schema={schema}")
    words = ["postgresql", "init", base, "--schema", schema]
    postgres.ask(f"create role {quoted} login")
    try:
        assert world.do(*words).returncode == 0
        assert "GRANT" in world.do("run", url, "--", "true").stderr
        assert world.do(*words, "--grant", name).returncode == 0
        assert world.do("run", url, "--", "echo", "in").stdout == "in\n"
        postgres.ask(f"drop schema {schema} cascade")
        nowhere = ["postgresql", "init", f"postgresql://127.0.0.1:1/db?schema={schema}", "--print"]
        said = world.do(*nowhere, "--grant", name, "--grant", "public")
        assert (said.returncode, said.stderr) == (0, "")
        assert world.do(*nowhere).stdout == said.stdout.partition("grant ")[0]
        for statement in said.stdout.split(";\n")[:-1]:
            postgres.ask(statement)
        assert world.do("run", url, "--", "echo", "in").stdout == "in\n"
        refused = world.do("postgresql", "init", postgres.url(user=user), "--schema", "of_mine", "--grant", name)
        assert refused.returncode == 3
        assert "run what `holdfast postgresql init --print` prints" in refused.stderr
    finally:
        postgres.ask(f"drop schema {schema} cascade")
        postgres.ask(f"drop role {quoted}")


def test_a_waiter_is_told_its_place_in_the_queue_and_when_that_changes(world: World, url: str) -> None:
    lock = f"{url}queue"
    holder = holding(world, lock)
    first = world.start([*HOLDFAST, "run", "-q", lock, "--", "true"])
    eventually(lambda: len(holdfast.Lock(lock).status().waiters) == 1)
    second = world.start([*HOLDFAST, "run", lock, "--", "true"], stderr=subprocess.STDOUT)
    assert second.hear("holdfast: waiting for ").endswith("; number 2 of 2 in the queue")
    first.signal(signal.SIGTERM)
    assert second.hear("holdfast: waiting for ").endswith("; number 1 of 1 in the queue")
    assert holder.process.stdin is not None
    holder.process.stdin.close()
    assert (first.wait(), holder.wait(), second.wait()) == (-signal.SIGTERM, 0, 0)
