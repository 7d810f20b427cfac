"""Proofs of `doctor` between two mounts of a directory, and between two machines that share it (peer.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast._admin.doctor import GOOD, NOTE, UNUSABLE, WEAKER, Finding
from holdfast._admin.peer import Silent, View, listen, of_machines, of_mounts
from holdfast._core.wait import Wait
from holdfast._drivers.sync import drive
from holdfast._platform.storage import storage_of
from unit.elsewhere import elsewhere, mount, needs_root
from unit.stepping import KINDS, Stepped

Environments = Callable[..., Stepped]
Steps = Generator[Wait, None, list[Finding]]
_BIND = 4096


def levels(findings: list[Finding]) -> dict[str, str]:
    return {one.name: one.level for one in findings}


ALL_GOOD = dict.fromkeys(
    ("between", "creation between", "links between", "guard between", "freshness between"), GOOD
)  # fmt: skip


# -- two mounts of one machine -----------------------------------------------------------------------------------------


def test_one_directory_under_two_names_is_proven_good(disk: Path, environments: Environments) -> None:
    """DP1."""
    (disk / "place").mkdir()
    (disk / "other").symlink_to(disk / "place")
    assert levels(drive(of_mounts(environments(), str(disk / "place"), str(disk / "other")))) == ALL_GOOD
    assert os.listdir(disk / "place") == []


def test_two_mounts_of_a_shared_filesystem_prove_nothing_of_two_machines(
    disk: Path, environments: Environments
) -> None:
    env = environments()
    env.instead["storage"] = lambda _path: storage_of("nfs4", {"local_lock": "none"})
    found = drive(of_mounts(env, str(disk), str(disk)))
    assert (found[0].level, "--listen" in found[0].means) == (NOTE, True)
    assert levels(found[1:]) == ALL_GOOD


@needs_root
def test_a_bind_mount_of_a_directory_is_proven_good(disk: Path) -> None:
    for name in ("place", "again"):
        (disk / name).mkdir()

    def look() -> dict[str, str]:
        return levels(drive(of_mounts(KINDS["linux"](), str(disk / "place"), str(disk / "again"))))

    def bind() -> None:
        mount(str(disk / "place"), str(disk / "again"), None, _BIND)

    assert elsewhere(look, mounts=bind) == ALL_GOOD
    assert os.listdir(disk / "place") == []


@needs_root
def test_an_overlay_and_its_upper_directory_are_found_not_to_share_guards(disk: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (disk / name).mkdir()

    def look() -> list[Finding]:
        return drive(of_mounts(KINDS["linux"](), str(disk / "merged"), str(disk / "upper")))

    def overlay() -> None:
        options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        mount("overlay", str(disk / "merged"), "overlay", 0, options)

    found = levels(elsewhere(look, mounts=overlay))
    assert (found["between"], found["creation between"], found["guard between"]) == (GOOD, GOOD, WEAKER)
    assert os.listdir(disk / "upper") == []


def test_two_directories_are_not_taken_for_one(disk: Path, environments: Environments) -> None:
    for name in ("one", "two"):
        (disk / name).mkdir()
    found = drive(of_mounts(environments(), str(disk / "one"), str(disk / "two")))
    assert [(one.name, one.level) for one in found] == [("between", UNUSABLE)]
    assert "different directories" in found[0].means
    found = drive(of_mounts(environments(), str(disk / "one"), str(disk / "missing")))
    assert found[0].level == UNUSABLE
    assert "cannot both create a file" in found[0].text
    assert os.listdir(disk / "one") == os.listdir(disk / "two") == []


def twice(env: Stepped) -> None:
    """Creation is not exclusive."""

    def open_new(path: str, mode: int, **_more: object) -> Any:
        try:
            return env.real.open_new(path, mode)
        except FileExistsError:
            return env.real.open_existing(path, write=True)

    env.instead["open_new"] = open_new


def both(env: Stepped) -> None:
    env.instead["link"] = lambda _existing, _path: None


def no_links(env: Stepped) -> None:
    def link(existing: str, _path: str) -> None:
        raise OSError(1, "Operation not permitted", existing)

    env.instead["link"] = link


def unseen(env: Stepped) -> None:
    env.instead["guarded"] = lambda _fd: False


def for_ever(env: Stepped) -> None:
    env.instead["guarded"] = lambda _fd: True


def no_guard(env: Stepped) -> None:
    env.instead["guard"] = lambda _fd: None


def old_content(env: Stepped) -> None:
    env.instead["read"] = lambda _fd, _size: b"1"


def no_content(env: Stepped) -> None:
    def write(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(5, "Input/output error")

    env.instead["write"] = write


@pytest.mark.parametrize(
    ("lack", "name", "level"),
    [
        (twice, "creation between", UNUSABLE),
        (both, "links between", UNUSABLE),
        (no_links, "links between", NOTE),
        (unseen, "guard between", WEAKER),
        (for_ever, "guard between", WEAKER),
        (no_guard, "guard between", WEAKER),
        (old_content, "freshness between", WEAKER),
        (no_content, "freshness between", WEAKER),
    ],
)
def test_an_ability_missing_between_two_mounts_is_found(
    lack: Callable[[Stepped], None], name: str, level: str, disk: Path, environments: Environments
) -> None:
    env = environments()
    lack(env)
    found = drive(of_mounts(env, str(disk), str(disk)))
    assert levels(found) == {**ALL_GOOD, name: level}
    assert all(one.means for one in found if one.level != GOOD)
    assert os.listdir(disk) == []


# -- two machines ------------------------------------------------------------------------------------------------------


def conversation(listening: Steps, asking: Steps) -> tuple[list[Finding], list[Finding]]:
    """Run both to their ends in turns, without waiting; the results of each."""
    results: dict[int, list[Finding]] = {}
    while len(results) < 2:
        for number, side in enumerate((listening, asking)):
            if number not in results:
                try:
                    next(side)
                except StopIteration as done:
                    results[number] = done.value
    return results[0], results[1]


def named(env: Stepped, host: str, boot: str) -> Stepped:
    """A process that appears to be of another machine."""
    env.instead["identity"] = lambda: env.real.identity().replaced(host=host, boot=boot)
    return env


@pytest.fixture
def machines(environments: Environments) -> tuple[Stepped, Stepped]:
    return named(environments(), "Alpha", "boot-1"), named(environments(), "beta", "boot-2")


def test_two_machines_find_out_the_same_and_leave_nothing(disk: Path, machines: tuple[Stepped, Stepped]) -> None:
    """DP1, DP3."""
    (disk / "a.lock").write_text("a lock's")
    heard, said = conversation(listen(machines[0], str(disk), 60), of_machines(machines[1], str(disk), "alpha", 60))
    assert levels(said) == ALL_GOOD
    assert heard == said
    assert "beta and Alpha" in said[0].text
    assert os.listdir(disk) == ["a.lock"]
    assert (disk / "a.lock").read_text() == "a lock's"


def test_two_processes_of_one_machine_prove_nothing_of_two(disk: Path, environments: Environments) -> None:
    one, two = environments(), environments()
    host = one.identity().host
    said = conversation(listen(one, str(disk), 60), of_machines(two, str(disk), host, 60))[1]
    assert (said[0].level, said[0].text) == (NOTE, f"{host} and {host} are one machine")


def test_a_guard_that_the_other_machine_does_not_see_is_found(disk: Path, machines: tuple[Stepped, Stepped]) -> None:
    unseen(machines[0])
    heard, said = conversation(listen(machines[0], str(disk), 60), of_machines(machines[1], str(disk), "alpha", 60))
    assert levels(said) == {**ALL_GOOD, "guard between": WEAKER}
    assert heard == said


@pytest.mark.parametrize("which", [0, 1])
def test_mount_options_that_permit_old_content_outweigh_one_fresh_read(
    which: int, disk: Path, machines: tuple[Stepped, Stepped]
) -> None:
    """DP3: the read may be fresh because each message is preceded by a change of the directory."""
    machines[which].instead["storage"] = lambda _path: storage_of("nfs4", {"local_lock": "none", "nocto": ""})
    heard, said = conversation(listen(machines[0], str(disk), 60), of_machines(machines[1], str(disk), "alpha", 60))
    assert heard == said
    assert levels(said) == {**ALL_GOOD, "freshness between": WEAKER}
    assert "by the mount options" in said[-1].text


def test_only_the_host_that_is_named_answers(
    disk: Path, machines: tuple[Stepped, Stepped], clocked: Environments, clock: Any
) -> None:
    """DP4."""
    listening = listen(machines[0], str(disk), 60)
    next(listening)
    asking = of_machines(clocked(), str(disk), "gamma", 60)
    next(asking)
    clock.now += 61
    with pytest.raises(Silent, match=r"gamma does not listen here; there are Alpha\. Start"):
        next(asking)
    listening.close()
    assert os.listdir(disk) == []


def test_a_listener_without_a_peer_ends(disk: Path, clocked: Environments, clock: Any) -> None:
    """DP4."""
    listening = listen(clocked(), str(disk), 60)
    next(listening)
    next(listening)
    assert len(os.listdir(disk)) == 1
    clock.now += 61
    with pytest.raises(Silent, match="no other machine came within 60 s"):
        next(listening)
    assert os.listdir(disk) == []


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("first", ["listening", "asking"])
def test_an_interrupted_side_leaves_nothing_and_the_other_ends(
    turns: int, first: str, disk: Path, machines: tuple[Stepped, Stepped]
) -> None:
    """DP1, DP4."""
    listening, asking = listen(machines[0], str(disk), 60), of_machines(machines[1], str(disk), "alpha", 60)
    for _ in range(turns):
        next(listening)
        next(asking)
    ended, other = (listening, asking) if first == "listening" else (asking, listening)
    ended.close()
    if first == "listening" or turns > 1:
        with pytest.raises(Silent, match="ended"):
            drive(other)
    other.close()
    assert os.listdir(disk) == []


def test_a_missing_answer_is_not_waited_for_for_ever(
    disk: Path, machines: tuple[Stepped, Stepped], clocked: Environments, clock: Any
) -> None:
    """DP4."""
    listening, asking = listen(machines[0], str(disk), 60), of_machines(clocked(), str(disk), "alpha", 60)
    next(listening)
    next(asking)
    clock.now += 61
    with pytest.raises(Silent, match="has not answered within 60 s"):
        next(asking)
    listening.close()
    assert os.listdir(disk) == []


@pytest.mark.parametrize(
    "message",
    [
        {"step": "create", "words": ["../x"]},
        {"step": "create", "words": ["a.lock"]},
        {"step": "write", "words": [1, 2]},
        {"step": "end", "words": []},
        {"step": "guard", "words": ["x" * 1000]},
        {"findings": [["a", "splendid", "b", "c"]]},
        {"findings": [["a", "good", 1, "c"]]},
        {"findings": 1},
        {"words": []},
        ["step"],
        7,
    ],
    ids=str,
)
def test_a_message_that_makes_no_sense_ends_the_listener(
    message: object, disk: Path, machines: tuple[Stepped, Stepped]
) -> None:
    """DP2: nothing outside the conversation is touched."""
    (disk / "a.lock").write_text("a lock's")
    listening = listen(machines[0], str(disk), 60)
    next(listening)
    hello = next(name for name in os.listdir(disk) if name.endswith("-listen.tmp"))
    asked = disk / f".holdfast-00000000-1-{hello.split('-')[3]}-mab.tmp"
    asked.write_text(json.dumps(message) + "\n")
    with pytest.raises(Silent, match="makes no sense"):
        next(listening)
    asked.unlink()
    assert os.listdir(disk) == ["a.lock"]


def test_only_own_files_are_written_locked_or_linked(disk: Path, environments: Environments) -> None:
    """DP2: another's file under such a name is only read."""
    view, other = View(environments(), str(disk), "0" * 16, "a"), View(environments(), str(disk), "0" * 16, "b")
    assert other.do("create", (other.name("new"),)) is True
    name = other.name("new")
    assert [view.do(step, (name,)) for step in ("guard", "unguard")] == [None, None]
    assert view.do("write", (name, "x")) is None
    assert view.do("link", (name, view.name("link"))) is None
    assert view.do("reads", (name, "")) is True
    os.symlink("/etc/passwd", disk / view.name("way"))
    assert view.do("reads", (view.name("way"), "")) is None
    os.mkfifo(disk / view.name("pipe"))
    assert view.do("guarded", (view.name("pipe"),)) is None
    (disk / view.name("dir")).mkdir()
    assert view.do("reads", (view.name("dir"), "")) is False
    view.end()
    other.end()
    for left in disk.iterdir():
        left.rmdir() if left.is_dir() else left.unlink()


def test_a_message_that_is_not_whole_yet_is_waited_for(disk: Path, environments: Environments) -> None:
    """DP3: also one that is listed but cannot be read yet."""
    view = View(environments(), str(disk), "0" * 16, "a")
    for content in ("", '{"answer": tr', '{"answer": true}', "[" * 60000 + "\n"):
        (disk / "message").write_text(content)
        assert view.message("message") is None, "it is looked at again"
    (disk / "message").write_text('{"answer": true}\n')
    assert view.message("message") == {"answer": True}
    (disk / "message").unlink()
    assert view.message("message") is None
