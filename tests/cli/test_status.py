"""`holdfast status` in full: the evidence in words, the queue, and what others would do (status.py, scan.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cli.support import HOLDFAST, World, eventually
from holdfast._admin.scan import _CONDITIONS_OF_OTHERS as CONDITIONS
from holdfast._admin.scan import Staleness, staleness_text
from holdfast._platform import environment
from process.support import Peer

NOW = int(time.time())


def of(world: World, *words: object) -> dict[str, Any]:
    done = world.do("status", "-j", *words)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_only_a_living_holder_is_said_to_refresh_its_lock(world: World, path: Path) -> None:
    """A dead holder's lock counts as held with --stale never, or on a filesystem that is read-only."""
    holder = Peer("Lock(path).acquire(); say('held'); hear()", [path], env={"HOLDFAST_OS": "", "HOLDFAST_WITHOUT": ""})
    try:
        holder.expect("held")
        assert "its holder refreshes the timestamp every" in world.do("status", path).stdout
        holder.kill()
        holder.wait()
        done = world.do("status", "--stale", "never", path)
    finally:
        holder.destroy()
    assert done.returncode == 1
    assert "liveness  dead: " in done.stdout
    assert "refreshes the timestamp" not in done.stdout


@pytest.mark.skipif(not environment().fifos, reason="waiters have no places here")
def test_a_stopped_holder_and_a_stopped_waiter_are_said_to_be_stopped(world: World, path: Path, held: int) -> None:
    waiter = world.start([*HOLDFAST, "run", path, "--", "true"])
    eventually(lambda: [one for one in of(world, path)["waiters"] if one["position"]], what="a waiter")
    assert not of(world, path)["holder"]["stopped"]
    assert "kill -CONT" not in world.do("status", path).stdout
    for pid in (held, waiter.pid):
        os.kill(pid, signal.SIGSTOP)
    eventually(
        lambda: all(environment().inspect(pid).stopped for pid in (held, waiter.pid)), what="two stopped processes"
    )
    seen = of(world, path)
    assert (seen["holder"]["stopped"], seen["waiters"][0]["stopped"]) == (True, True)
    text = world.do("status", path).stdout
    for pid in (held, waiter.pid):
        assert f"stopped (kill -CONT {pid} continues it)" in text
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not of(world, path)["holder"]["stopped"], what="a holder that goes on")


def test_the_holder_of_the_kernel_lock_and_the_waiters_are_shown(world: World, path: Path, held: int) -> None:
    waiter = world.start([*HOLDFAST, "run", "-t", "next in line", path, "--", "true"])
    deadline = time.monotonic() + 20
    while not (waiters := of(world, path)["waiters"]) or waiters[0]["position"] is None:
        assert time.monotonic() < deadline
    found = of(world, path)
    assert (found["condition"], found["uid"], found["heartbeat"]) == ("held", os.getuid(), 1200.0)
    assert held in [one["pid"] for one in found["kernel_lock"]]
    assert [one["implementation"] for one in found["stale_for"]] == ["sema", "semats"]
    assert f"process {held}" in found["next"]
    text = world.do("status", path).stdout
    assert f"alive: the kernel lock on its file is held by it (process {held})" in text or (
        "alive: the kernel lock on its file is held by process" in text
    )
    assert f"1. process {waiter.pid}" in text
    assert "'next in line'" in text
    assert "sema would call it stale at" in text
    assert "every 20 min" in text
    assert "never robs" in text


def test_the_advice_can_be_pasted_for_any_file_name(world: World, tmp_path: Path) -> None:
    name = os.fsdecode(b"it's\\ \xc3\xa4 \xff\x1b[31m\n1.lock")
    (tmp_path / name).write_text("garbage")
    text = world.do("status", tmp_path / name).stdout
    [command] = re.findall(r"\((holdfast break .*)\)", text)
    assert command.isprintable()
    shell = ["bash", "-c", f'holdfast() {{ printf "%s\\0" "$@"; }}; {command}']
    words = subprocess.run(shell, capture_output=True, check=True).stdout.split(b"\0")
    assert words[-2] == os.fsencode(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "protocol", "wanted"),
    [
        ("l", "pid=999999999\ntimestamp=17\n", "sema", "sema calls it stale since"),
        ("l", "protocol=flock\npid=1\ntimestamp=1\n", "flock", "free"),
        ("l.lock", '{"pid": 1, "host": "farm", "createdAt": "2020-01-01T00:00:00.000Z"}', "sidecar", "fs-safe calls"),
        (".exclusive-lock", "{}", "beads", "malformed"),
        ("l", "something else", "sema", "nothing in it names its protocol"),
    ],
)
def test_the_protocol_need_not_be_given(
    world: World, tmp_path: Path, name: str, content: str, protocol: str, wanted: str
) -> None:
    (tmp_path / name).write_text(content)
    named = {"l": ["l"], "l.lock": ["l.lock", "l"], ".exclusive-lock": [".exclusive-lock", "."]}[name]
    for given in named:
        found = of(world, given)
        assert (os.path.basename(found["path"]), found["protocol"]) == (name, protocol)
        assert wanted in world.do("status", given).stdout
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_protocol_that_is_given_is_not_overruled_by_the_content(world: World, tmp_path: Path) -> None:
    (tmp_path / "l.lock").write_text(f"pid=1\ntimestamp={NOW}\n")
    done = world.do("status", "-p", "sidecar", "l")
    assert done.returncode == world.do("run", "-p", "sidecar", "l", "--", "true").returncode == 3
    assert "holds a record of the sema protocol" in done.stdout
    found = of(world, "-p", "sidecar", "l")
    assert (found["protocol"], found["content_protocol"]) == ("sidecar", "sema")
    assert "note" not in world.do("status", "-p", "semats", "l.lock").stdout


def test_acquiring_does_not_take_the_protocol_from_the_content(world: World, tmp_path: Path) -> None:
    (tmp_path / ".exclusive-lock").write_text(
        '{"holder":"x","pid":1,"hostname":"h","started_at":"2026-01-01T00:00:00Z","version":""}'
    )
    done = world.do("try", "-q", ".exclusive-lock")
    assert done.returncode == 3
    assert "beads" in done.stderr


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (Staleness("sema", 1000.0 + 2460, ""), "sema would call it stale at "),
        (Staleness("sema", 1000.0 + 2460, ""), ", in 41 min"),
        (Staleness("sema", 900.0, ""), "sema calls it stale since "),
        (Staleness("semats", 900.0, "if its process has ended by then"), "ended by now"),
        (Staleness("beads", None, "as soon as its process has ended"), "beads calls it stale as soon as"),
        (Staleness("sema", 1.8e19, ""), "in "),
        (Staleness("fs-safe", 1000.0 + 30, CONDITIONS["fs-safe"]), "in 30 s, and removes it only if its caller has"),
    ],
)
def test_a_time_is_put_into_words(one: Staleness, wanted: str) -> None:
    assert wanted in staleness_text(one, 1000.0)


def elsewhere(acquired: float | None) -> str:
    """A record of another machine, refreshed a moment ago."""
    version, moment = ("1", "") if acquired is None else ("2", f"{acquired:.3f} ")
    return f"pid=7\ntimestamp={int(time.time())}\nholdfast={version} g b 1 n t1 {moment}far\n"


def test_the_age_is_that_of_the_acquisition_in_each_view(world: World, tmp_path: Path) -> None:
    acquired = time.time() - 5000
    (tmp_path / "a.lock").write_text(f"pid=7\ntimestamp={NOW - 100}\n")
    (tmp_path / "b.lock").write_text(elsewhere(acquired))
    assert abs(of(world, tmp_path / "b.lock")["age"] - 5000) < 100
    assert of(world, tmp_path / "b.lock")["record_age"] < 100
    assert "(83 min ago)" in world.do("status", tmp_path / "b.lock").stdout
    for command in (["ls", "--sort", "age"], ["top", "--sort", "held"]):
        lines = [json.loads(line) for line in world.do(*command, "-j", tmp_path).stdout.splitlines()]
        assert [os.path.basename(one["path"]) for one in lines] == ["b.lock", "a.lock"], command
        assert lines[0]["holder"]["since"] == round(acquired, 3)
    watched = world.start([*HOLDFAST, "watch", tmp_path])
    first = [json.loads(watched.hear('{"kind": "held"')) for _ in range(2)]
    assert sorted(one["time"] for one in first) == [round(acquired, 3), NOW - 100]


def test_a_heartbeat_of_version_1_is_not_called_the_acquisition(world: World, tmp_path: Path) -> None:
    (tmp_path / "l").write_text(elsewhere(None))
    found = of(world, tmp_path / "l")
    assert (found["holder"]["since"], found["age"]) == (None, None)
    assert found["record_age"] < 100
    text = world.do("status", tmp_path / "l").stdout
    assert re.search(r"refreshed \d+ s ago", text)
    assert "since  " not in text
    assert " since " not in world.do("run", "-n", tmp_path / "l", "--", "true").stderr


def test_verbose_shows_the_content_escaped_and_shortened(world: World, path: Path) -> None:
    path.write_bytes(b"pid=1\nx\x1b[31m\xff\n" + b"line\n" * 100)
    lines = world.do("status", "-v", path).stdout.splitlines()
    at = lines.index("content   pid=1")
    assert lines[at + 1] == r"          x\x1b[31m\xff"
    assert lines[-1].strip() == "…"
    assert len(lines) - at == 51
    path.write_bytes(b"")
    assert world.do("status", "-v", path).stdout.splitlines()[-1] == "content   (nothing)"
    path.unlink()
    assert "\ncontent" not in world.do("status", "-v", path).stdout


def test_verbose_shows_the_content_of_each_slot(world: World, path: Path) -> None:
    slot = path.with_name("gpu.1.lock")
    slot.write_bytes(b"pid=1\ntimestamp=1\n")
    assert "content 1 pid=1\n          timestamp=1\n" in world.do("status", "-v", slot.with_name("gpu")).stdout


def test_a_stale_sidecar_lock_is_not_promised_to_contenders(world: World, tmp_path: Path) -> None:
    """V5 (policy.py): no holdfast contender takes it over."""
    record = {"pid": 4194304, "createdAt": "2020-01-01T00:00:00.000Z"}
    (tmp_path / "j.lock").write_text(json.dumps(record))
    shown = world.do("status", "-p", "sidecar", tmp_path / "j")
    assert shown.returncode == 1
    assert "holdfast does not take it over by itself" in shown.stdout
    assert "as soon as it is old enough" not in shown.stdout
    refused = world.do("run", "-n", "-p", "sidecar", tmp_path / "j", "--", "true")
    assert refused.returncode == 3
