"""`holdfast break`: breaks one lock, and only the one that was meant (breaking.py)."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from cli.dropin import ran
from cli.support import HOLDFAST, World
from holdfast import AcquireTimeout, Lock
from holdfast.cli import main
from process.support import Peer
from unit.elsewhere import NOBODY, elsewhere, needs_root

PLAIN = {"HOLDFAST_OS": "", "HOLDFAST_WITHOUT": ""}
"""As the world's environment."""


def id_of(world: World, path: Path) -> str:
    found: str = json.loads(world.do("status", "-j", path).stdout)["id"]
    assert len(found) == 12
    return found


@pytest.fixture
def foreign(path: Path) -> Path:
    """A lock of an unknown program."""
    path.write_text("pid=4294967295\ntimestamp=9999999999\ntag=foreign\n")
    return path


def test_without_a_terminal_a_lock_is_broken_only_by_its_id(world: World, foreign: Path) -> None:
    done = world.do("break", foreign)
    assert done.returncode == 2
    assert id_of(world, foreign) in done.stderr
    assert "foreign" in done.stderr
    assert foreign.exists()


def test_ls_and_status_show_the_same_ids(world: World, foreign: Path) -> None:
    listed = json.loads(world.do("ls", "-j").stdout)["id"]
    assert listed == id_of(world, foreign)
    assert listed in world.do("status", foreign).stdout


def test_the_lock_with_the_given_id_is_broken(world: World, foreign: Path) -> None:
    done = world.do("break", foreign, "--id", id_of(world, foreign).upper())
    assert (done.returncode, foreign.exists()) == (0, False)
    done = world.do("break", foreign, "--id", "000000000000")
    assert (done.returncode, "not held" in done.stderr) == (0, True)


def test_an_older_id_does_not_break_a_later_acquisition(world: World, foreign: Path) -> None:
    old = id_of(world, foreign)
    text = foreign.read_text()
    foreign.unlink()
    foreign.write_text(text)  # the same bytes, but another acquisition
    done = world.do("break", foreign, "--id", old, "-j")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["result"], told["id"]) == ("refused", id_of(world, foreign))
    assert foreign.exists()


def test_a_living_holders_lock_is_broken_only_with_force(world: World, held: int, path: Path) -> None:
    id_ = id_of(world, path)
    done = world.do("break", path, "--id", id_)
    assert done.returncode == 1
    assert "--force" in done.stderr
    assert str(held) in done.stderr
    assert path.exists()
    assert world.do("break", path, "--id", id_, "--force").returncode == 0
    assert not path.exists()


def test_yes_does_not_break_a_living_holders_lock_without_force(world: World, held: int, path: Path) -> None:
    done = world.do("break", "--yes", path)
    assert done.returncode == 1
    assert f"held by process {held}" in done.stderr
    assert path.exists()
    assert world.do("break", "-q", "--yes", "--force", path).returncode == 0
    assert not path.exists()
    assert world.do("break", "-q", "--yes", path).returncode == 0


def test_a_dead_holders_lock_needs_no_force(world: World, path: Path) -> None:
    holder = Peer("Lock(path).acquire(); say('held'); hear()", [path], env=PLAIN)
    try:
        holder.expect("held")
        id_ = id_of(world, path)
        holder.kill()
        holder.wait()
        done = world.do("break", path, "--id", id_)
    finally:
        holder.destroy()
    assert done.returncode == 0, done.stderr
    assert not path.exists()


@pytest.mark.parametrize(("typed", "goes"), [(b"break\n", True), (b"yes\n", False), (b"\n", False), (b"\x04", False)])
def test_a_person_at_a_terminal_is_asked_and_the_answer_is_heeded(
    typed: bytes, *, goes: bool, world: World, foreign: Path
) -> None:
    one = world.terminal([*HOLDFAST, "break", foreign])
    one.hear("id ")
    one.type(typed)
    shown = one.rest()
    assert one.wait() == (0 if goes else 1)
    assert "foreign" in shown
    assert ("remove it: \r\n" in shown) is (typed == b"\x04")  # nothing is echoed here; a typed line ends by itself
    assert foreign.exists() != goes


def test_without_a_terminal_a_living_holders_lock_is_said_to_need_force_as_well(
    world: World, held: int, path: Path
) -> None:
    done = world.do("break", path)
    assert done.returncode == 2
    assert f"held by process {held}" in done.stderr
    assert "--force" in done.stderr
    assert id_of(world, path) in done.stderr


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_user_who_may_not_break_a_lock_is_told_whose_it_is(mode: int, disk: Path) -> None:
    inner = disk / "inner"
    inner.mkdir()
    path = inner / "l"
    path.write_text("pid=4294967295\ntimestamp=9999999999\n")
    inner.chmod(mode)

    def command(words: list[str]) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["break", *words])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    code, _, complaint = elsewhere(lambda: ran(command, "--yes", str(path)), user=NOBODY)
    assert (code, "the lock is user root's, and its directory user root's" in complaint) == (3, True)
    assert path.exists()


def test_a_lock_that_needs_force_is_refused_without_a_question(world: World, held: int, path: Path) -> None:
    one = world.terminal([*HOLDFAST, "break", path])
    shown = one.rest()
    assert one.wait() == 1
    assert "--force" in shown
    assert "Type" not in shown
    assert path.exists()


def test_a_held_kernel_lock_cannot_be_broken(world: World, path: Path) -> None:
    holder = Peer("Lock(path, protocol='flock').acquire(); say('held'); hear()", [path], env=PLAIN)
    try:
        holder.expect("held")
        for words in ([], ["-p", "flock"], ["--force", "--id", "000000000000"]):
            done = world.do("break", path, *words)
            assert done.returncode == 1
            assert "the kernel's" in done.stderr
    finally:
        holder.destroy()
    assert path.exists()
    assert world.do("break", "-p", "flock", path).returncode == 0


@pytest.mark.parametrize("protocol", ["semats", "sidecar", "beads"])
def test_the_protocol_need_not_be_named(protocol: str, world: World, tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.mkdir() if protocol == "beads" else None
    world.do("acquire", "--no-keeper", "-p", protocol, "--owner-pid", os.getpid(), target)
    listed = json.loads(world.do("ls", "-j", "-r").stdout)
    assert listed["protocol"] == protocol
    done = world.do("break", listed["path"], "--id", listed["id"])
    assert done.returncode == 0, done.stderr
    assert not Path(listed["path"]).exists()


@pytest.mark.parametrize("content", [b"", b"pid=x\n", b"pid=1\ntimestamp=2\nholdfast=1 g torn\n"])
def test_a_malformed_record_can_be_broken(content: bytes, world: World, path: Path) -> None:
    path.write_bytes(content)
    listed = json.loads(world.do("ls", "-j").stdout)
    done = world.do("break", path, "--id", listed["id"])
    assert done.returncode == 0, done.stderr
    assert not path.exists()


def test_an_old_empty_file_can_be_broken(world: World, path: Path) -> None:
    """It counts as a record that was never written, whatever `ls` calls it."""
    path.touch()
    os.utime(path, (1000, 1000))
    assert world.do("status", path).returncode == 1
    assert "flock(1)" in world.do("status", path).stdout
    assert world.do("status", "-p", "sema", path).returncode == 1
    done = world.do("break", path)
    assert done.returncode == 2
    assert world.do("clean", path.parent).returncode == 0
    assert path.exists()
    done = world.do("break", path, "--id", done.stderr.split()[-1])
    assert done.returncode == 0, done.stderr
    assert not path.exists()


def test_a_file_that_is_no_lock_stays(world: World, path: Path) -> None:
    path.with_name("thesis").write_text("my thesis\n")
    done = world.do("break", "thesis", "--id", "000000000000", "--force")
    assert done.returncode == 3
    assert "not a lock file" in done.stderr
    assert path.with_name("thesis").exists()


def test_a_hostile_tag_does_not_reach_the_terminal(world: World, path: Path) -> None:
    path.write_text("pid=4294967295\ntimestamp=9999999999\ntag=\x1b]0;owned\x07\x1b[2J\n")
    one = world.terminal([*HOLDFAST, "break", path])
    one.hear("id ")
    one.type(b"no\n")
    assert "\x1b" not in one.rest()
    assert "\x1b" not in world.do("break", path).stderr
    assert path.exists()


def recommended(said: str) -> list[str]:
    """The words of the recommended command, as a shell splits them."""
    found = re.search(r"\(holdfast (break .*?)\)(?:\.|$)", said.replace("\n", " ").strip())
    assert found is not None, said
    assert "break_lock()" not in said
    return shlex.split(found[1])


@pytest.mark.parametrize(
    "command", [("run", "-n"), ("try",), ("acquire", "-w", "0.01"), ("wait", "-w", "0.01"), ("status",)]
)
@pytest.mark.parametrize(
    "content", ["pid=4294967295\ntimestamp=9999999999\ntag=foreign\n", "pid=x\n"], ids=["foreign", "torn"]
)
def test_a_refusal_recommends_a_command_that_works(
    command: tuple[str, ...], content: str, world: World, tmp_path: Path
) -> None:
    """The path has to be quoted, and a file that cannot be read needs its protocol."""
    path = tmp_path / "it's the lock"
    path.write_text(content)
    more = {"run": ["--", "true"], "status": []}.get(command[0], ["--owner-pid", os.getpid()])
    if command[0] == "wait":
        more = []
    done = world.do(command[0], *command[1:], path, *more)
    words = recommended(done.stdout + done.stderr)
    assert world.do(*words, "--id", id_of(world, path)).returncode == 0
    assert not path.exists()


def test_a_recommended_command_names_the_file_of_the_lock(world: World, tmp_path: Path) -> None:
    """With -p, LOCK is the path from which the protocol makes the lock file's."""
    tmp_path.joinpath("-data.json.lock").write_text("prose")
    done = world.do("run", "-n", "-p", "sidecar", "./-data.json", "--", "true")
    assert recommended(done.stderr) == ["break", "-p", "sidecar", "./-data.json"]
    base = tmp_path / "gpu"
    slot = tmp_path / "gpu.0.lock"
    slot.write_text("pid=4294967295\ntimestamp=9999999999\n")
    done = world.do("run", "-n", "--slots", "1", base, "--", "true")
    assert recommended(done.stderr) == ["break", str(slot)]
    assert world.do("break", slot, "--id", id_of(world, slot)).returncode == 0


def test_a_recommended_command_breaks_the_lock_that_status_was_given_by_its_file(world: World, tmp_path: Path) -> None:
    """`status LOCKFILE` finds out the protocol; `break -p` with that would make a further path from it."""
    database = tmp_path / "db"
    database.mkdir()
    damaged, dated = database / ".exclusive-lock", tmp_path / "data.json.lock"
    damaged.write_text("prose")
    dated.write_text('{"createdAt": "2020-01-01T00:00:00Z"}')
    for path in (damaged, dated):
        words = recommended(world.do("status", path).stdout)
        assert world.do(*words, "--id", id_of(world, path)).returncode == 0
        assert not path.exists()


def test_a_recommended_command_names_the_lock_that_is_held_among_several(world: World, tmp_path: Path) -> None:
    tmp_path.joinpath("b.lock").write_text("prose")
    for command in (("run", "-n", "-p", "sidecar", "a", "b", "--", "true"), ("wait", "-n", "-p", "sidecar", "a", "b")):
        assert recommended(world.do(*command).stderr.replace(" It was one", "")) == ["break", "-p", "sidecar", "b"]


@pytest.mark.parametrize(
    ("given", "name", "option"), [("data", "data.lock", "-p sidecar"), ("gpu", "gpu.0.lock", "--slots N")]
)
def test_a_lock_that_is_not_at_the_path_itself_is_not_called_gone(
    given: str, name: str, option: str, world: World, tmp_path: Path
) -> None:
    """`status` shows that lock, and its id."""
    path = tmp_path / name
    path.write_text('{"createdAt": "2020-01-01T00:00:00Z"}' if "sidecar" in option else "pid=1\ntimestamp=1\n")
    done = world.do("break", given, "--id", id_of(world, path))
    assert (done.returncode, f"but {path} is a " in done.stderr) == (1, True)
    for command in (("wait", "-n", given), ("release", "--owner-pid", os.getpid(), given)):
        done = world.do(*command)
        assert (done.returncode, f"but {path} is a " in done.stderr, option in done.stderr) == (0, True, True)
    assert path.exists()
    path.unlink()
    assert world.do("wait", "-n", given).stderr == ""
    done = world.do("break", given)
    assert (done.returncode, done.stderr.endswith("not held\n")) == (0, True)


def test_a_command_run_in_this_process_does_not_change_the_librarys_messages(path: Path) -> None:
    path.write_text("pid=4294967295\ntimestamp=9999999999\n")
    with pytest.raises(SystemExit):
        main(["status", "-q", str(path)])
    with pytest.raises(AcquireTimeout, match=r"break the lock \(Lock\.break_lock\(\)\)"):
        Lock(path).acquire(timeout=0)
