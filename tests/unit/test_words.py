"""Our own reading of what is typed reads it as argparse does, which reads what is out of the ordinary (options.py)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli import options, parser

ROWS = {name: [options.option_of(one) for one in options.options_of(name)] for name in options.COMMANDS}
FLAGS = sorted({flag for rows in ROWS.values() for flags, _ in rows for flag in flags if flag.startswith("-")})
SWITCHES = sorted({flags[0] for rows in ROWS.values() for flags, more in rows if "action" in more})
NUMBERED = ["-w", "--timeout", "-E", "--slots", "--kill-after", "--owner-pid", "--stale-after"]
VALUES = [
    *("", "-", "0", "5", "-5", "-1.5", "1e3", "nan", "inf", "75", "300", "644", "9", "all", "jobs", "never", "safe"),
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
    """What argparse makes of them; None where it refuses them, or shows its help."""
    try:
        return vars(parser.parse(words))
    except SystemExit:
        return None


def read(words: list[str]) -> dict[str, object] | None:
    """What we make of them without argparse; None where that is to read them."""
    found = options.read(words)
    return None if found is None else vars(found)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(sorted(ROWS)), st.lists(LIKELY, max_size=6), st.booleans())
def test_what_is_read_without_argparse_is_what_argparse_reads(name: str, groups: list[list[str]], ends: bool) -> None:
    words = [name, *(word for group in groups for word in group), *(["--", "true", "-n"] if ends else [])]
    found = read(words)
    assert found is None or found == by_argparse(words)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_each_option_is_read_without_argparse(name: str) -> None:
    """Those that only some protocols have, with one that has them."""
    of = {
        "payload": "sidecar",
        "holder": "beads",
        "version": "beads",
        "mode": "sema",
        "realpath": "proper-lockfile",
        "range": "ofd",
    }
    value = {"payload": "{}", "mode": "644", "protocol": "flock", "realpath": "no", "range": "0:5"}
    rest = ["L", "--", "true"] if name == "run" else ["L"]
    for option in options.options_of(name):
        flags, more = options.option_of(option)
        for flag in flags:
            text = more.get("choices", [value.get(option, "5")])[0]
            given = [] if not flag.startswith("-") else [flag] if "action" in more else [flag, text]
            words = [name, *given, "-p", of.get(option, "sema")] if option != "protocol" else [name, *given]
            found = read([*words, *rest])
            assert found is not None
            assert found == by_argparse([*words, *rest])


@pytest.mark.parametrize(
    "line", ["run L", "run -n -w 5 L -- true", "try", "try L M", "try -x L", "wait -w x L", "wait -h"]
)
def test_a_mistake_is_left_to_argparse(line: str) -> None:
    assert read(line.split()) is None
    assert by_argparse(line.split()) is None
