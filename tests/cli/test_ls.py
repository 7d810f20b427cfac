"""`holdfast ls`, and the tables that all views print (ls.py, console.py)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cli.support import HOLDFAST, Started, World, eventually
from cli.test_errors import HOSTILE, without_privileges
from holdfast._platform import environment
from holdfast.cli import ls, parse
from holdfast.cli.console import Column, age_of, fit, lines, work_of
from holdfast.cli.outcome import Screen, screen

NOW = int(time.time())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with one lock of each condition that needs no process."""
    now = int(time.time())
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "old").write_text(f"pid=999999999\ntimestamp={now - 7200}\ntag=build\n")
    (tmp_path / "young").write_text(f"pid={os.getpid()}\ntimestamp={now + 5}\n")
    (tmp_path / "bad.lock").write_text("pid=x\n")
    (tmp_path / "free").write_bytes(b"protocol=flock\npid=1\ntimestamp=1\n")
    (tmp_path / "there.lock").write_text(
        json.dumps({"pid": 7, "host": "farm", "createdAt": "2999-01-01T00:00:00.000Z"})
    )
    (tmp_path / "README.txt").write_text("pid=5\n")
    (tmp_path / "deep" / "er" / "one").write_text(f"pid={os.getpid()}\ntimestamp={now - 100}\n")
    return tmp_path


def listed(world: World, *words: object, status: int = 0) -> list[dict[str, Any]]:
    done = world.do("ls", "--json", *words)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def names(world: World, *words: object, status: int = 0) -> list[str]:
    return [os.path.relpath(one["path"], world.directory) for one in listed(world, *words, status=status)]


def test_every_lock_file_is_found_with_its_protocol_and_condition(
    world: World, place: Path, path: Path, held: int
) -> None:
    found = {os.path.relpath(one["path"], place): one for one in listed(world)}
    assert {name: (one["protocol"], one["condition"]) for name, one in found.items()} == {
        "old": ("sema", "stale"),
        "young": ("sema", "held"),
        "bad.lock": ("sema", "malformed"),
        "free": ("flock", "free"),
        "there.lock": ("sidecar", "elsewhere"),
        path.name: ("sema", "held"),
    }
    one = found[path.name]
    assert (one["holder"]["pid"], one["uid"], one["evidence"]["proven"]) == (held, os.getuid(), True)
    assert "holdfast" in one["holder"]["command"]
    assert names(world, "-r", "deep") == ["deep/er/one"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--stale"], ["old"]),
        (["--held"], ["bad.lock", "there.lock", "young"]),
        (["--held", "--stale"], ["bad.lock", "old", "there.lock", "young"]),
        (["--sort", "age", "--stale", "--held", "old", "young"], ["old", "young"]),
        (["--sort", "state"], ["young", "there.lock", "bad.lock", "old", "free"]),
        (["--sort", "pid", "there.lock", "old", "bad.lock"], ["there.lock", "old", "bad.lock"]),
        (["-r"], ["bad.lock", "deep/er/one", "free", "old", "there.lock", "young"]),
        (["*.lock"], ["bad.lock", "there.lock"]),
        (["**/one"], ["deep/er/one"]),
        (["old", ".", "./old", "old"], ["bad.lock", "free", "old", "there.lock", "young"]),
        (["deep"], []),
    ],
)
def test_options_and_paths_select_and_sort_the_locks(
    world: World, place: Path, words: list[str], wanted: list[str]
) -> None:
    assert names(world, *words) == wanted


def test_a_pattern_in_a_name_is_not_expanded(world: World, tmp_path: Path) -> None:
    (tmp_path / "[a]").write_text(f"pid=1\ntimestamp={NOW}\n")
    (tmp_path / "a").write_text(f"pid=1\ntimestamp={NOW}\n")
    assert names(world, "[a]") == ["[a]"]


def test_waiters_are_counted_and_tickets_not_listed(world: World, path: Path, held: int) -> None:
    waiter = world.start([*HOLDFAST, "wait", path])
    deadline = time.monotonic() + 20
    while not (waiters := listed(world)[0]["waiters"]):
        assert time.monotonic() < deadline
    assert waiters[0]["pid"] == waiter.pid
    assert len(listed(world)) == 1, "a ticket is listed"


def test_an_empty_result_is_reported_with_status_0(world: World, tmp_path: Path) -> None:
    done = world.do("ls")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "holdfast: no lock files in .\n")
    done = world.do("ls", "-q", "--stale", "-j")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_path_and_a_file_that_is_no_lock_are_reported(world: World, place: Path) -> None:
    done = world.do("ls", "nowhere", "old", "README.txt")
    assert done.returncode == 3
    assert "nowhere: No such file or directory" in done.stderr
    assert "README.txt is not a lock file" in done.stderr
    assert len(done.stdout.splitlines()) == 2
    done = world.do("ls", "*.txt")
    assert (done.returncode, done.stdout) == (0, "")
    assert "README" not in done.stderr


@pytest.mark.parametrize("words", [["--sort", "colour"], ["--no-such"], ["--js"], ["--sort"]], ids=" ".join)
def test_a_mistake_in_the_call_is_reported_with_status_2(world: World, words: list[str]) -> None:
    done = world.do("ls", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "usage: holdfast ls" in done.stderr


def test_an_unreadable_directory_does_not_end_the_listing(world: World, place: Path) -> None:
    (place / "deep").chmod(0o300)
    done = world.do("ls", "-r", "-j", preexec_fn=without_privileges)
    (place / "deep").chmod(0o700)
    assert done.returncode == 3
    assert "deep: Permission denied" in done.stderr
    assert [os.path.basename(json.loads(line)["path"]) for line in done.stdout.splitlines()][:2] == ["bad.lock", "free"]


def test_no_hostile_name_or_tag_reaches_the_terminal(world: World, tmp_path: Path) -> None:
    names = []
    for text in HOSTILE.values():
        name = text.replace(b"/", b"").replace(b"\n", b"\\n").replace(b"\0", b"")[:200]
        tag = text.replace(b"\n", b" ").decode("utf-8", "replace").encode()
        names.append(b"%d " % len(names) + name)
        with open(os.path.join(os.fsencode(tmp_path), names[-1]), "wb") as file:
            file.write(b"pid=5\ntimestamp=%d\ntag=" % NOW + tag + b"\n")
    plain = world.do("ls").stdout
    assert all(character.isprintable() for line in plain.splitlines() for character in line), plain
    assert len(plain.splitlines()) == 1 + len(names)
    told = [json.loads(line) for line in world.do("ls", "-j").stdout.splitlines()]
    assert [os.path.basename(os.fsencode(one["path"])) for one in told] == names
    started = on_terminal(world, 70, "ls")
    for line in started.rest().splitlines():
        bare = line.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[32m", "")
        assert all(character.isprintable() for character in bare.rstrip("\r"))
        assert len(bare.rstrip("\r")) <= 70


def on_terminal(world: World, width: int, *words: object, **env: str) -> Started:
    """The output on a terminal of this width, which has colours."""
    return world.terminal([*HOLDFAST, *words], env={"TERM": "xterm", **env}, size=(width, 24))


def test_a_line_is_cut_to_the_terminal_and_whole_in_a_pipe(world: World, place: Path) -> None:
    long = "x" * 150
    (place / long).write_text(f"pid={os.getpid()}\ntimestamp={NOW}\ntag={'y' * 300}\n")
    assert long in world.do("ls").stdout
    assert "y" * 300 in world.do("ls").stdout
    assert "\t" not in world.do("ls").stdout
    text = on_terminal(world, 60, "ls", NO_COLOR="1").rest()
    assert max(map(len, text.splitlines())) <= 60
    assert "…" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_shown_only_where_they_are_wanted(
    world: World, place: Path, more: dict[str, str], coloured: bool
) -> None:
    assert ("\x1b[" in on_terminal(world, 80, "ls", **more).rest()) == coloured
    assert "\x1b[" not in world.do("ls", env={"TERM": "xterm"}).stdout


def test_ten_thousand_locks_are_listed(world: World, tmp_path: Path) -> None:
    record = f"pid={os.getpid()}\ntimestamp={NOW + 10}\ntag=job\n"
    for number in range(10_000):
        with open(f"{tmp_path}/l{number:05d}", "w") as file:
            file.write(record)
    done = world.do("ls", "--held")
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 10_001)


@pytest.mark.parametrize("words", [[], ["-j"]], ids=["table", "json"])
def test_rows_are_shown_before_the_last_directory_is_listed(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long listing shows its rows in the order of the paths; with another order, at the end."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "l").write_text(f"pid=4294967295\ntimestamp={NOW}\ntag={name * 70}\n")
    events: list[str] = []
    scan = type(environment()).scan
    monkeypatch.setattr(
        type(environment()),
        "scan",
        lambda self, where, kept: (events.append(f"lists {os.path.basename(where)}"), scan(self, where, kept))[1],
    )
    monkeypatch.setattr(ls, "show", lambda text: events.extend(text.splitlines()))
    monkeypatch.setattr(ls, "_MOMENT", 0.0)
    assert ls.ls_(parse(["ls", "-r", *words, str(tmp_path)])) == 0
    titles = [line for line in events if line.startswith("STATE")]
    assert len(titles) == (0 if words else 1)
    rows = [line for line in events if line not in titles]
    assert [row if row.startswith("lists") else "row" for row in rows] == [
        f"lists {tmp_path.name}", "lists a", "row", "lists b", "row", "lists c", "row"
    ]  # fmt: skip
    if titles:
        assert {row.index(f"{tmp_path}/") for row in rows if not row.startswith("lists")} == {titles[0].index("PATH")}
    events.clear()
    assert ls.ls_(parse(["ls", "-r", "--sort", "age", *words, str(tmp_path)])) == 0
    assert [line.startswith("lists") for line in events] == [True] * 4 + [False] * (3 + len(titles))


def test_an_interruption_ends_ls_at_once(world: World, tmp_path: Path) -> None:
    """Ctrl-C ends it like any other command, here while nobody reads its output."""
    for number in range(2000):
        (tmp_path / f"l{number}").write_text(f"pid=4294967295\ntimestamp={NOW}\n")
    one = world.start([*HOLDFAST, "ls", "-r", "-j"])
    eventually(lambda: "pipe" in Path(f"/proc/{one.pid}/wchan").read_text())
    one.signal(signal.SIGINT)
    assert one.wait() == -signal.SIGINT  # a shell's 130
    assert one.complaint() == ""


def test_a_closed_pipe_is_not_an_error(world: World, place: Path) -> None:
    done = world.shell("$H ls -r | head -n 1; echo end")
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "end")


# -- tables ------------------------------------------------------------------------------------------------------------

COLUMNS = (Column("A", right=True), Column("PATH", cut="start", least=4), Column("TAG", cut="end", least=4, drop=1))


@pytest.mark.parametrize("width", [None, *range(1, 60)])
def test_a_table_fits_and_is_aligned(width: int | None) -> None:
    rows = [["1", "/a/long/path/to/日本語", "short"], ["12345", "/x", "a tag that is long"]]
    found = lines(COLUMNS, rows, Screen(width))
    assert len(found) == 3
    if width is None:
        assert found == [
            "    A  PATH                    TAG",
            "    1  /a/long/path/to/日本語  short",
            "12345  /x                      a tag that is long",
        ]
    elif width >= 11:  # the least width with the columns that remain
        assert all(len(line) + sum(character in "日本語" for character in line) <= width for line in found)


@pytest.mark.parametrize("path", ["/e\u0301", "/\u0e17\u0e35\u0e48", "/\u0e17\u0e35\u0e48\u20e3"], ids=ascii)
def test_signs_above_and_below_a_letter_take_no_column(path: str) -> None:
    """An accent, vowel signs of Thai, an enclosing mark: each after a letter of one column."""
    title, row = lines(COLUMNS, [["1", path, "tag"]], Screen())
    assert row.index("tag") - len(path) + 2 == title.index("TAG")


def test_a_long_cell_moves_its_column_in_every_row() -> None:
    """In a pipe, up to the longest possible name. A longer cell moves only its own row."""
    long, longer = "x" * 255, "y" * 256
    title, one, other = lines(COLUMNS, [["1", long, "tag"], ["2", "/x", "tag"]], Screen())
    assert title.index("TAG") == one.index("tag") == other.index("tag")
    title, one, other = lines(COLUMNS, [["1", longer, "tag"], ["2", "/x", "tag"]], Screen())
    assert (title.index("TAG"), one.index("tag"), other.index("tag")) == (260, 261, 260)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/usr/bin/python3 /usr/bin/holdfast run -t why L -- make -j4", "make -j4"),
        ("/usr/bin/python3.13 -m holdfast run L -- make -- all", "make -- all"),
        ("/usr/bin/python3 /srv/job.py -v", "job.py -v"),
        ("holdfast run L make", "holdfast run L make"),
        ("holdfast run L -- ", "holdfast run L --"),
        ("echo holdfast run L -- x", "echo holdfast run L -- x"),
        (None, ""),
    ],
)
def test_a_command_is_shown_without_run_and_without_its_interpreter(command: str | None, shown: str) -> None:
    assert work_of(command) == shown


def test_two_dashes_in_a_tag_are_not_taken_for_the_end_of_options(world: World, path: Path) -> None:
    """A command line alone does not show where a word ends; its process does."""
    work = ["sh", "-c", "echo ready; read x -- y"]
    started = world.start([*HOLDFAST, "run", "-t", "first -- then", path, "--", *work], stdin=-1, real=True)
    started.hear("ready")
    assert "  sh -c echo ready; read x -- y  " in world.do("ls", path).stdout
    command = f"holdfast run -t first -- then {path} -- sh -c echo ready; read x -- y"
    ended_by_now, nobody = 2**22 + 1, None
    for pid in (ended_by_now, nobody, os.getpid()):
        assert work_of(command, pid) == command.partition(" -- ")[2]


@pytest.mark.parametrize(
    ("text", "width", "cut", "wanted"),
    [
        ("abc", 3, "end", "abc"),
        ("abcd", 3, "end", "ab…"),
        ("abcd", 3, "start", "…cd"),
        ("日本語", 4, "end", "日…"),
        ("日本語", 4, "start", "…語"),
        ("abc", 1, "end", "…"),
        ("e\u0301e\u0301", 2, "end", "e\u0301e\u0301"),
    ],
)
def test_a_text_is_cut_to_its_width(text: str, width: int, cut: str, wanted: str) -> None:
    assert fit(text, width, cut) == wanted


def test_an_age_is_shown_in_the_right_unit() -> None:
    ages = [None, 0, 59.4, 119, 120, 7199, 7200, 86400 * 2, 1e9]
    assert [age_of(age) for age in ages] == ["-", "0s", "59s", "119s", "2m", "120m", "2h", "2d", "11574d"]


def test_an_output_that_is_no_terminal_has_no_width() -> None:
    assert screen(None) == Screen(None, False)
    with open(os.devnull, "w") as file:
        assert screen(file) == Screen(None, False)


# -- ages --------------------------------------------------------------------------------------------------------------


def test_older_than_lists_only_locks_of_that_age(world: World, place: Path) -> None:
    assert names(world, "-r", "--older-than", "1h59m") == ["old"]
    assert names(world, "-r", "--older-than", "50") == ["deep/er/one", "old"]
    assert names(world, "-r", "--stale", "--older-than", "50") == ["old"]
    done = world.do("ls", "--older-than", "1d")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no lock files that old in ." in done.stderr


def test_held_longer_than_reports_long_holds_by_the_status(world: World, place: Path, held: int) -> None:
    done = world.do("ls", "-r", "--held-longer-than", "90s")
    assert done.returncode == 1
    assert names(world, "-r", "--held-longer-than", "90s", status=1) == ["deep/er/one"]
    assert names(world, "-r", "--held-longer-than", "90s", "--stale", status=1) == ["deep/er/one", "old"]
    done = world.do("ls", "-rq", "--held-longer-than", "1h", "deep")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_hold_of_unknown_age_is_mentioned_and_not_listed(world: World, tmp_path: Path) -> None:
    (tmp_path / "bare").touch()
    holder = world.start(["flock", tmp_path / "bare", "sh", "-c", "echo held; exec sleep 600"])
    holder.hear("held")
    done = world.do("ls", "--held-longer-than", "0")
    assert (done.returncode, done.stdout) == (0, "")
    assert "1 lock is not listed, because the time of acquisition is not known" in done.stderr
