"""Our own reading of the command line agrees with argparse's, which reads unusual lines (options.py)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli import options, parser

ROWS = {name: [options.option_of(one) for one in options.options_of(name)] for name in options.COMMANDS}
FLAGS = sorted({flag for rows in ROWS.values() for flags, _ in rows for flag in flags if flag.startswith("-")})
SWITCHES = sorted({flags[0] for rows in ROWS.values() for flags, more in rows if "action" in more})
NUMBERED = ["-w", "--timeout", "-E", "--slots", "--kill-after", "--owner-pid", "--stale-after", "--limit"]
VALUES = [
    *(
        "",
        "-",
        "0",
        "5",
        "5m",
        "1h30m",
        "-5",
        "-1.5",
        "1e3",
        "nan",
        "inf",
        "75",
        "300",
        "644",
        "9",
        "all",
        "jobs",
        "never",
        "safe",
    ),
    *("sema", "beads", "flock", "sidecar", "no such", '{"a": 1}', "[]", "L", "./L", "-x y", "é", "a=b", "etcd://h/l"),
]
PAIRS = st.tuples(st.sampled_from(FLAGS), st.sampled_from(VALUES))
WORDS = st.one_of(
    st.sampled_from([*VALUES, *FLAGS]),
    PAIRS.map("=".join),
    PAIRS.map("".join),
    st.tuples(st.sampled_from(FLAGS), st.integers(3, 6)).map(lambda both: both[0][: both[1]]),
    st.sampled_from(["-h", "--help", "--", "-nq", "-qv", "-w5", "-E0", "--no", "---", "--version", "@file"]),
    st.text("-=a9é @\n", max_size=4),
)
LIKELY = st.one_of(
    st.sampled_from(SWITCHES).map(lambda flag: [flag]),
    st.tuples(st.sampled_from(NUMBERED), st.sampled_from("0123")).map(list),
    st.sampled_from([["-p", "sema"], ["-p", "flock"], ["-p=beads"], ["--tag", "a b"], ["-t", ""], ["--until=all"]]),
    WORDS.map(lambda word: [word]),
)


def by_argparse(words: list[str]) -> dict[str, object] | None:
    """The options as argparse reads them; None where it refuses them, or shows its help."""
    try:
        return vars(parser.parse(words))
    except SystemExit:
        return None


def read(words: list[str]) -> dict[str, object] | None:
    """The options as read without argparse; None where argparse is to read them."""
    found = options.read(words)
    return None if found is None else vars(found)


@settings(max_examples=500)
@given(st.sampled_from(sorted(ROWS)), st.lists(LIKELY, max_size=6), st.booleans())
def test_a_line_read_without_argparse_is_read_as_argparse_reads_it(
    name: str, groups: list[list[str]], ends: bool
) -> None:
    words = [name, *(word for group in groups for word in group), *(["--", "true", "-n"] if ends else [])]
    found = read(words)
    assert found is None or found == by_argparse(words)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_each_option_is_read_without_argparse(name: str) -> None:
    """Options of some protocols only, with a protocol that has them."""
    of = {
        "payload": "sidecar",
        "holder": "beads",
        "version": "beads",
        "mode": "sema",
        "realpath": "proper-lockfile",
        "range": "ofd",
    }
    value = {"payload": "{}", "mode": "644", "protocol": "flock", "realpath": "no", "range": "0:5"}
    for option in options.options_of(name):
        flags, more = options.option_of(option)
        for flag in flags:
            rest = ["L", "--", "true"] if name == "run" and option != "line" else ["L"]
            text = more.get("choices", [value.get(option, "5")])[0]
            given = [] if not flag.startswith("-") else [flag] if "action" in more else [flag, text]
            words = [name, *given, "-p", of.get(option, "sema")] if option != "protocol" else [name, *given]
            found = read([*words, *rest])
            assert found is not None
            assert found == by_argparse([*words, *rest])


DURATIONS = {
    **dict.fromkeys(["90", "90s", "1m30s", "1.5m", "90000ms", "1.5min", "0.025h", "9e1"], 90.0),
    **dict.fromkeys(["0", "0s", ".0"], 0.0),
    "1h30m": 5400.0,
    "2d": 172800.0,
    "inf": math.inf,
}


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_is_seconds_or_has_units(text: str) -> None:
    assert options.duration(text) == pytest.approx(DURATIONS[text])


@pytest.mark.parametrize("text", ["", "-1", "nan", "m", "5 m", "5M", "5x", "1h30", "h1", "1..5s", ".s", "1,5", "5minh"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(options.Wrong, match="not a duration"):
        options.duration(text)


SPLITS: dict[str, tuple[str, list[str]]] = {
    "L make -j": ("L", ["make", "-j"]),
    "-n -w 5m L make -n": ("-n -w 5m L", ["make", "-n"]),
    "L -n make": ("L -n", ["make"]),
    "-w5 -nqv L make": ("-w5 -nqv L", ["make"]),
    "-nw 5 L make -w 6": ("-nw 5 L", ["make", "-w", "6"]),
    "--tag a L b": ("--tag a L", ["b"]),
    "--tag=a L b": ("--tag=a L", ["b"]),
    "L -- make -- -j": ("L", ["make", "--", "-j"]),
    "L M -- make": ("L M", ["make"]),
    "L -c line": ("L -c line", []),
    "-c line L M": ("-c line L M", []),
    "-qcline L M": ("-qcline L M", []),
    "--command line L M": ("--command line L M", []),
    "L sh -c line": ("L", ["sh", "-c", "line"]),
    "L": ("L", []),
    "": ("", []),
}


@pytest.mark.parametrize("line", SPLITS)
def test_the_command_begins_behind_the_dashes_or_behind_the_one_lock(line: str) -> None:
    ours, command = options.split_run(line.split())
    front, wanted = SPLITS[line]
    assert (" ".join(ours), command) == (front, wanted)


@pytest.mark.parametrize("place", ["git", "./x.sh"])
def test_a_program_in_front_of_the_dashes_is_asked_about(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The `--` may be the program's own, so the program may be a second LOCK or the command."""
    for name in ("git", "x.sh"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        program = (tmp_path if "/" in place else tmp_path / "bin") / name
        program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    words = ["run", "L", place, "checkout", "--", "f"]
    assert read(words) is None
    assert by_argparse(words) is None
    assert f"is {place} a LOCK, or the command?" in capsys.readouterr().err
    words = ["run", "L", "other.lock", "--", "f"]
    assert (read(words) or {})["locks"] == ["L", "other.lock"]
    assert read(words) == by_argparse(words)


@pytest.mark.parametrize(
    "line", ["run L", "run -n -w 5 L -- true", "try", "try L M", "try -x L", "wait -w x L", "wait -h"]
)
def test_a_mistake_is_left_to_argparse(line: str) -> None:
    assert read(line.split()) is None
    assert by_argparse(line.split()) is None


@pytest.mark.parametrize("name", ["try", "acquire", "release", "wait", "status"])
def test_words_behind_the_dashes_are_locks(name: str) -> None:
    several = name in ("wait", "status")
    for line, ours, locks in (
        ("-- -y", False, ["-y"]),
        ("-q -- -y", True, ["-y"]),
        ("-- --", False, ["--"]),
        ("a -q b -- -y -q", True, ["a", "b", "-y", "-q"]),
    ):
        found = by_argparse([name, *line.split()])
        if len(locks) > 1 and not several:
            assert found is None
            continue
        assert found is not None
        assert (found["lock"], found["quiet"]) == (locks[0], ours)
        assert not several or found["locks"] == locks


def test_a_file_that_looks_like_an_option_is_named_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for there in (False, True):
        for line in ("run -y -- true", "run -- -y", "status -y"):
            assert by_argparse(line.split()) is None
            assert ("LOCK. If the file -y is meant: ./-y\n" in capsys.readouterr().err) == there, line
        Path("-y").touch()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("run -t L -- true", "LOCK. L is the value of -t\n"),
        ("run -n --record L -- cp -w x", "LOCK. L is the value of --record\n"),
        ("run -n -- cp -w x", "LOCK\n"),
        ("try -t L", "LOCK. L is the value of -t\n"),
    ],
)
def test_a_lock_that_is_taken_for_a_value_is_named(line: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert by_argparse(line.split()) is None
    assert capsys.readouterr().err.endswith(hint)
