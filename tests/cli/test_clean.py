"""`holdfast clean`: shows by default, removes with --yes, and says why (clean.py)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cli.support import Started, World, ended, eventually
from process.support import Peer
from unit.stepping import sema_record

PLAIN = {"HOLDFAST_OS": "", "HOLDFAST_WITHOUT": ""}
"""As the world's environment: what kills itself here is judged there."""


def dead_lock(path: Path, **options: object) -> None:
    """Leave the lock of a killed process."""
    holder = Peer("Lock(path, **eval(sys.argv[2])).acquire(); say('held'); hear()", [path, options], env=PLAIN)
    try:
        holder.expect("held")
        holder.kill()
        holder.wait()
    finally:
        holder.destroy()


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_dry_run_removes_nothing(world: World, path: Path) -> None:
    dead_lock(path, tag="the tag")
    done = world.do("clean")
    assert done.returncode == 1
    assert done.stdout.startswith(f"would remove sema lock {path}: its holder is proven dead")
    assert "--yes" in done.stderr
    assert path.exists()
    assert world.do("clean", "--yes").returncode == 0
    assert not path.exists()


def test_nothing_to_do_prints_nothing(world: World, tmp_path: Path) -> None:
    for words in ([], ["--yes"], ["-r"], [tmp_path, "-q"], ["--json"]):
        done = world.do("clean", *words)
        assert (done.returncode, done.stdout) == (0, "")


def test_clean_keeps_an_unproven_dead_lock_and_says_that_its_rule_does_not_call_it_stale(
    world: World, path: Path
) -> None:
    """The end of a foreign holder proves nothing: its pid may belong to another host or container."""
    gone = world.sh("exit 0")
    gone.wait()
    path.write_text(f"pid={gone.pid}\ntimestamp={int(time.time())}\n")
    for words in ([], ["--yes", "--approve-stale"]):
        done = world.do("clean", *words)
        assert done.returncode == 0
        assert done.stdout == (
            f"kept sema lock {path}: there is no process {gone.pid}, but the sema rule does not call it stale yet "
            "(holdfast break removes it)\n"
        )
    assert path.exists()
    assert world.do("break", "--yes", path).returncode == 0
    assert not path.exists()


def test_a_living_holders_lock_stays(world: World, held: int, path: Path) -> None:
    assert world.do("clean", "--yes", "--approve-stale").returncode == 0
    assert path.exists()
    assert not ended(held)


def test_json_and_text_report_the_same_locks(world: World, tmp_path: Path) -> None:
    dead_lock(tmp_path / "a\x1b[31m\n.lock", tag='x","result":"removed')
    (tmp_path / "s.lock").write_text('{"createdAt": "2020-01-01T00:00:00.000Z"}')
    done = world.do("clean", "--json")
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["result"], one["kind"], one["protocol"]) for one in found] == [
        ("would remove", "lock", "sema"),
        ("kept", "lock", "sidecar"),
    ]
    assert found[0]["path"] == str(tmp_path / "a\x1b[31m\n.lock")
    text = world.do("clean").stdout
    assert "\x1b" not in text
    dead, kept = text.splitlines()
    assert "would remove" in dead
    assert "s.lock" in kept
    assert "--approve-stale" in kept


def test_a_thousand_locks_settle_together(world: World, tmp_path: Path) -> None:
    """Each foreign stale lock has to settle: they do so together, not one after the other."""
    pid = Peer("say('x')")
    pid.finish()
    pid.destroy()
    for number in range(1000):
        (tmp_path / f"{number}.lock").write_bytes(sema_record(pid.pid, 1000, f"tag {number}"))
    done = world.do("clean", "--yes", "-q")
    assert (done.returncode, done.stdout) == (0, "")
    assert files(tmp_path) == []


def test_directories_below_are_looked_into_only_when_asked(world: World, tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "link").symlink_to(below)
    dead_lock(below / "l.lock")
    assert world.do("clean", "--yes").returncode == 0
    assert world.do("clean").returncode == 0
    assert world.do("clean", "-r").returncode == 1
    assert world.do("clean", "-r", "--yes").returncode == 0
    assert files(below) == []


def test_a_single_lock_file_can_be_cleaned(world: World, tmp_path: Path, path: Path) -> None:
    dead_lock(path)
    dead_lock(tmp_path / "other.lock")
    assert world.do("clean", "--yes", path).returncode == 0
    assert files(tmp_path) == ["other.lock"]
    (tmp_path / "x").write_text("thesis")
    done = world.do("clean", "--yes", tmp_path / "x")
    assert done.returncode == 0
    assert "is not a lock file" in done.stderr
    assert (tmp_path / "x").exists()


def test_a_missing_directory_is_an_error(world: World, tmp_path: Path) -> None:
    done = world.do("clean", tmp_path / "missing")
    assert done.returncode == 3
    assert "missing" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="acts as another user, which only root may")
def test_a_lock_that_may_not_be_removed_is_reported(disk: Path) -> None:
    """In another user's directory. The command runs in this process, as nobody may not read this Python."""
    dead_lock(disk / "l.lock")
    other = Peer(
        """
        from holdfast import cli
        def clean(*words):
            try:
                cli.main(["clean", "-q", path, *words])
            except SystemExit as end:
                say("ended", end.code)
        clean()
        become(65534)
        clean("--yes")
        """,
        [disk],
        env=PLAIN,
    )
    try:
        other.expect("ended 1")
        other.expect("ended 1")
        other.wait()
        assert "could not be removed" in other.complaint()
    finally:
        other.destroy()
    assert (disk / "l.lock").exists()


def test_a_lock_that_a_contender_takes_over_meanwhile_stays(world: World, path: Path) -> None:
    """Cleaners run beside contenders that are killed: no cleaner removes a holder's lock."""
    contend = """if True:
        import os, sys
        from holdfast import Lock
        for _ in range(60):
            hold = Lock(sys.argv[1]).acquire(timeout=20)
            hold.ensure_held()
            os.sched_yield()
            hold.release()
        print("done", flush=True)
        Lock(sys.argv[1]).acquire()
        os.kill(os.getpid(), 9)
    """
    clean = """if True:
        from holdfast.cli import main
        while True:
            try:
                main(["clean", "--yes", "-q"])
            except SystemExit as end:
                assert end.code == 0, end.code
    """
    working: list[Started] = [world.start([sys.executable, "-c", contend, path]) for _ in range(2)]
    cleaning = world.start([sys.executable, "-c", clean])
    for one in working:
        one.hear("done")
    for one in working:
        assert one.wait() == -signal.SIGKILL, one.complaint()
    eventually(lambda: not path.exists(), what="the lock of the killed is cleaned")
    assert cleaning.process.poll() is None, cleaning.complaint()
