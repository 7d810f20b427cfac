"""Locks in Python for Windows: under Wine here, or on Windows itself. What each scene does: scenes.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCENES = Path(__file__).parent / "scenes.py"
SUITE = SCENES.with_name("suite.py")
QUICK = ("acquire", "takeover", "hold", "kernel", "slots", "liveness", "asyncio_drive", "second_failures")
"""Of the unit tests, what takes half a minute in all: `make windows-suite` runs the rest."""
PROTOCOLS = ("sema", "semats", "sidecar", "beads", "flock")
Play = Callable[..., str]
KILLED = 1
"""The status with which a process under Wine now and then ends without a word. A scene that fails says why."""


@pytest.fixture(scope="module")
def windows() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run a program in Python for Windows."""
    if sys.platform == "win32":
        yield lambda *words, limit=300: subprocess.run(
            [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=limit
        )
        return
    from platforms import wine

    try:
        wine.setup()
    except wine.Missing as why:
        pytest.skip(str(why))

    def run(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
        return wine.run(*[wine.named(word) if isinstance(word, Path) else word for word in words], **more)

    with wine.kept_running():
        yield run


@pytest.fixture
def play(windows: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> Play:
    """Play a scene in a directory of its own; returns its output."""

    def run(scene: str, *words: object, **more: Any) -> str:
        for place in tmp_path / "locks", tmp_path / "again":
            place.mkdir()
            done = windows(SCENES, scene, *words, place, **more)
            if done.returncode != KILLED or done.stdout or done.stderr:
                break
        assert (done.returncode, done.stdout.rstrip()[-4:]) == (0, "done"), done.stdout + done.stderr
        return done.stdout

    return run


def test_the_environment_is_that_of_windows(play: Play) -> None:
    """WI7: all processes see the same boot, and different start times."""
    play("environment")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lock_that_is_held_is_refused_and_goes_to_the_waiter_when_released(play: Play, protocol: str) -> None:
    """WI2: other processes see the guard, and can still read who holds the lock."""
    play("exclusion", protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_holder_is_replaced(play: Play, protocol: str) -> None:
    """WI2: the guard ends with its process."""
    play("death", protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_increment_of_four_processes_counts(play: Play, protocol: str) -> None:
    play("increments", protocol)


@pytest.mark.skipif(sys.platform == "win32", reason="there it runs in the version that runs this")
@pytest.mark.parametrize("version", ["3.12", "3.13"])
@pytest.mark.parametrize("scene", ["environment", "exclusion sema", "death flock", "increments sema", "order", "run"])
def test_other_versions_of_python_do_the_same(play: Play, scene: str, version: str) -> None:
    play(*scene.split(), version=version)


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_threads_exclude_each_other(play: Play, protocol: str) -> None:
    play("threads", protocol)


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_tasks_exclude_each_other_on_both_event_loops(play: Play, protocol: str) -> None:
    play("tasks", protocol)


def test_a_task_whose_steps_run_in_threads_sleeps_until_its_lock_changes(play: Play) -> None:
    """WI10."""
    play("steps_in_threads")


def test_waiters_of_several_processes_have_an_order(play: Play) -> None:
    """WI6."""
    play("order")


def test_a_semaphore_lets_in_as_many_as_it_has_slots_and_several_locks_are_taken_together(play: Play) -> None:
    play("semaphore")


def test_readers_share_a_kernel_lock(play: Play) -> None:
    play("sharing")


def test_a_hold_notices_that_its_file_was_removed(play: Play) -> None:
    """WI1: others can rename and remove files that we have open."""
    play("loss")


def test_all_names_of_a_file_are_one_lock(play: Play) -> None:
    play("names")


def test_a_share_has_the_locks_of_the_directory_behind_it(play: Play, tmp_path: Path) -> None:
    place = tmp_path / "locks"
    if sys.platform == "win32":
        share = f"\\\\localhost\\{place.drive[0]}${str(place)[2:]}"
        if not os.path.exists(share):
            pytest.skip("needs the administrator's share of the drive")
        play("shares", share)
        return
    from platforms import wine

    with wine.shared(place) as share:
        play("shares", share)


def test_a_waiter_gets_the_lock_that_another_program_removes(play: Play) -> None:
    """WI5: a waiter has nothing open that would keep the name."""
    play("foreign_removal")


def test_a_program_that_has_the_lock_file_open_does_not_prevent_its_removal(play: Play) -> None:
    """WI4."""
    play("open_elsewhere")


def test_a_program_that_opens_every_new_file_breaks_neither_exclusion_nor_order(play: Play) -> None:
    """WI4."""
    play("opened_in_between")


def test_a_program_that_has_a_directory_for_itself_keeps_nobody_from_listing_it(play: Play) -> None:
    """WI4: as the removal of a directory under Wine does. A waiter that sees nothing there would lose its place."""
    play("unshared_directory")


def test_control_c_at_any_step_of_a_removal_leaves_neither_a_file_nor_a_handle(play: Play) -> None:
    """An open handle would keep the name of a removed file."""
    play("interrupted_removal")


def test_leftovers_of_a_killed_process_are_removed_by_the_next(play: Play) -> None:
    """WI3."""
    play("leftovers")


def test_an_interruption_ends_a_wait(play: Play) -> None:
    play("interruption")


def test_control_c_ends_waits_and_is_otherwise_the_commands(play: Play) -> None:
    """JG4: nor does it reach the guardian."""
    play("control_c")


def test_control_break_ends_the_wait_of_a_command(play: Play) -> None:
    play("control_break")


def test_control_c_before_the_command_is_started_ends_run(play: Play) -> None:
    """JG8."""
    play("control_c_before_the_command")


def test_run_holds_the_lock_while_its_command_runs(play: Play) -> None:
    play("run")


@pytest.mark.parametrize("protocol", [one for one in PROTOCOLS if one != "flock"])
def test_the_lock_of_a_killed_run_is_held_until_its_command_has_ended(play: Play, protocol: str) -> None:
    """WI8, WI9, JG1, JG2, JG5: there is no moment at which another contender gets it."""
    play("killed_run", protocol)


def test_an_error_of_run_does_not_free_the_lock_of_a_command_at_work(play: Play) -> None:
    """JG5."""
    play("failed_run")


def test_a_run_goes_on_without_its_guardian_and_its_command_ends_with_it(play: Play) -> None:
    """JG1, JG3."""
    play("killed_guardian")


def test_a_run_goes_on_without_a_guardian_that_hangs(play: Play) -> None:
    """JG7."""
    play("hung_guardian")


def test_the_guardian_of_a_killed_run_ends_the_command_when_the_lock_is_lost(play: Play) -> None:
    """JG5."""
    play("robbed_guardian")


def test_without_a_thread_a_loss_ends_the_command_all_the_same(play: Play) -> None:
    """K10, of `run` and of the guardian of a killed one."""
    play("run_without_threads")


def test_several_locks_are_held_until_the_command_of_a_killed_run_has_ended(play: Play) -> None:
    """JG1, JG3, JG5."""
    play("run_several")


def test_run_accepts_a_line_of_cmd_a_limit_and_a_conflict_command(play: Play) -> None:
    play("run_line")


def test_the_command_of_a_killed_run_ends_with_it_where_the_lock_cannot_be_handed_over(play: Play) -> None:
    """JG3."""
    play("killed_flock")


def test_try_binds_the_lock_to_the_calling_shell(play: Play) -> None:
    play("shell")


def test_the_other_commands_work_or_say_that_they_cannot(play: Play) -> None:
    play("commands")


def test_watch_and_top_report_events(play: Play) -> None:
    play("following")


def test_events_are_recorded_line_by_line(play: Play) -> None:
    play("recording")


@pytest.mark.parametrize("scene", ["top_is_drawn", "top_ends", "top_without_output", "top_on_what_is_no_screen"])
def test_top_uses_the_whole_console_and_restores_it(play: Play, scene: str) -> None:
    """In a console of its own, which under Wine reports what was written to it, but obeys nothing."""
    play("in_a_console", scene)


def test_reap_removes_the_lock_of_a_killed_holder(play: Play) -> None:
    play("reaping")


def test_the_unit_tests_of_the_engine_pass_on_windows(
    windows: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = windows(SUITE, "-q", *[f"tests/unit/test_{name}.py" for name in QUICK], limit=900)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("library", ["filelock", "portalocker"])
def test_kernel_locks_exclude_those_of_other_libraries(play: Play, library: str) -> None:
    play("peer", library)


@pytest.mark.skipif(sys.platform == "win32", reason="fs-safe and its Node are fetched for Wine")
@pytest.mark.parametrize("scene", ["fs_safe", "fs_safe_increments"])
def test_fs_safe_and_our_sidecar_locks_exclude_each_other(play: Play, scene: str) -> None:
    from process.foreign import node

    try:
        theirs = (Path(node.node_for_windows()), Path(node.fs_safe(node.VERSIONS[-1])))
    except node.Missing as why:
        pytest.skip(str(why))
    print(play(scene, *theirs))


@pytest.mark.parametrize("protocols", ["sema,semats", "sidecar", "beads", "flock"])
def test_contenders_that_are_killed_lose_no_increment(play: Play, protocols: str) -> None:
    """`HOLDFAST_STORM_SECONDS` is for all of them together."""
    seconds = float(os.environ.get("HOLDFAST_STORM_SECONDS", "10")) / 4
    print(play("storm", seconds, protocols, limit=seconds * 2 + 300))


@pytest.mark.skipif(sys.platform == "win32", reason="needs the servers that Debian packs")
@pytest.mark.parametrize("scheme", ["etcd", "postgresql"])
def test_locks_on_servers_are_acquired_handed_on_and_freed_by_a_death(play: Play, scheme: str) -> None:
    from engines.etcd.servers import nodes
    from engines.postgresql.server import Postgres, removed

    if scheme == "etcd":
        with nodes() as (node,):
            play("server", f"etcd://{node.host}/lock?ttl=2")
        return
    from holdfast.engines.postgresql import init

    with removed(Postgres()) as server:
        init(server.url())
        play("server", server.url("lock"))
