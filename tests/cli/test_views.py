"""The layout of the operator's commands: narrow terminals, pipes, hostile names and tags, no locks at all."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from cli.support import World
from cli.test_errors import HOSTILE
from cli.test_ls import on_terminal

NOW = int(time.time())
DEAD = 999_999_999 % 4_000_000
"""A number that no process has."""
STYLE = re.compile("\x1b\\[[0-9;]*m")


@pytest.mark.parametrize("width", [40, 80])
def test_a_long_row_is_folded_between_words_beside_the_names(world: World, path: Path, width: int) -> None:
    tag = " ".join(f"word{number}" for number in range(30))
    path.write_text(f"pid={os.getpid()}\ntimestamp={NOW}\ntag={tag}\n")
    whole = world.do("status", path).stdout
    assert f"tag       {tag}\n" in whole
    assert whole.startswith(f"lock      {path} (sema)\n")
    folded = on_terminal(world, width, "status", path).rest().splitlines()
    # A path stays whole, and so does a command that is to be copied.
    assert all(len(line) <= width for line in folded[1:] if " " in line[10:] and "holdfast break" not in line)
    fits = len(f"lock      {path} (sema)") <= width
    assert folded[: 1 if fits else 2] == (
        [f"lock      {path} (sema)"] if fits else [f"lock      {path}", " " * 10 + "(sema)"]
    )
    at = next(number for number, line in enumerate(folded) if line.startswith("tag       word0"))
    words = folded[at].split()[1:]
    for line in folded[at + 1 :]:
        if not line.startswith(" " * 10):
            break
        words += line.split()
    assert words == tag.split()


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("words", [["ls"], ["ls", "--all"], ["clean", "--approve-stale"], ["doctor"]], ids=" ".join)
def test_no_word_is_broken_at_the_edge_of_a_terminal(world: World, path: Path, width: int, words: list[str]) -> None:
    """Only a word longer than a line, such as a path, goes beyond the edge."""
    for name in ("a", "a-longer-name", "another"):
        path.with_name(f"{name}.lock").write_text(f"pid={DEAD}\ntimestamp=17\n")
    # The limits that doctor looks at are the machine's, and may be reached or left at any moment: ask before, too.
    runs = [world.do(*words)] if words == ["doctor"] else []
    shown = [STYLE.sub("", line) for line in on_terminal(world, width, *words).rest().splitlines()]
    runs.append(world.do(*words))
    told = {word for run in runs for word in (run.stdout + run.stderr).split()}
    if words[0] != "ls":
        assert len(told) > 20
        assert {word for line in shown for word in line.split() if not word[0].isdigit()} <= told
    assert all(len(line) <= width for line in shown if " " in line.strip() and "/" not in line), shown


@pytest.mark.parametrize("command", ["ls", "clean"])
def test_a_missing_directory_is_an_error_of_every_view(world: World, command: str) -> None:
    done = world.do(command, "nowhere")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"holdfast: {world.directory}/nowhere: No such file or directory\n"


def test_nobody_is_advised_to_remove_a_directory_in_place_of_a_lock(world: World) -> None:
    done = world.do("status", world.directory)
    assert (done.returncode, done.stdout) == (3, "")
    assert "holdfast ls" in done.stderr
    assert "remove" not in done.stderr


def test_ls_shows_the_command_that_run_runs(world: World, path: Path, held: int) -> None:
    row = world.do("ls").stdout.splitlines()[1]
    assert row.endswith("the.lock  sh -c echo held; exec cat > /dev/null")
    assert "/python" in json.loads(world.do("ls", "-j").stdout)["holder"]["command"]


def test_a_refusal_is_reported_once(world: World, path: Path, held: int) -> None:
    """Details are shown only where a question is asked."""
    text = on_terminal(world, 80, "break", path).rest()
    assert text.count("held by process") == 1
    assert "was not removed" in text
    assert "liveness" not in text


def test_no_hostile_name_or_tag_reaches_the_terminal(world: World, tmp_path: Path) -> None:
    place = os.path.join(os.fsencode(tmp_path), b"\x1b[2J\xff\n.d")
    os.mkdir(place)
    locks = []
    for text in (*HOSTILE.values(), b"".join(text for kind, text in HOSTILE.items() if "long" not in kind)):
        name = text.replace(b"/", b"").replace(b"\0", b"")[:100]
        record = b"pid=999999999\ntimestamp=1000\ntag=" + text.replace(b"\n", b" ") + b"\n"
        locks.append(os.path.join(place, name))
        with open(locks[-1], "wb") as file:
            file.write(record.decode("utf-8", "replace").encode())
    lock = locks[-1]
    views = (
        ("status", lock), ("ls", place), ("clean", place), ("break", lock), ("doctor", place),
        ("watch", "--seconds", "0", place), ("timeline", lock), ("reap", lock),
    )  # fmt: skip
    for words in views:
        done = world.do(*words)
        assert "Traceback" not in done.stderr
        assert done.stdout + done.stderr
        for line in (done.stdout + done.stderr).split("\n"):
            assert all(character.isprintable() for character in line), (words, line)
    for words in views[:5]:
        started = on_terminal(world, 60, *words)
        started.type(b"\n")  # the answer no, if a command asks
        for line in started.rest().splitlines():
            bare = STYLE.sub("", line.rstrip("\r"))
            assert all(character.isprintable() for character in bare), (words, bare)
