"""The reference names everything public: each option, error and exit status, as in the code."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
import holdfast.aio
from docs.test_site import loaded
from holdfast import errors
from holdfast.cli import outcome
from holdfast.cli.completion import Command, commands
from holdfast.cli.options import BEADS, PROTOCOLS, SUMMARIES, duration
from holdfast.cli.parser import parse, parser_of

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
_DROP_INS = {"beads", "sema", "semats"}
PARSED = [*(name for name in SUMMARIES if name not in _DROP_INS), *(f"beads {step}" for step in BEADS)]


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    text = (REFERENCE / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def options_of(function: object) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters  # type: ignore[arg-type]
    return {name: each for name, each in found.items() if each.kind is each.KEYWORD_ONLY}


def test_the_table_has_each_option_of_a_lock_with_its_default() -> None:
    wanted = {f"`{name}`": f"`{each.default!r}`".replace("'", '"') for name, each in options_of(holdfast.Lock).items()}
    assert {row[0]: row[2] for row in rows("locks.md", "Options at a glance")} == wanted


def test_the_table_has_the_type_of_each_plain_option() -> None:
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows("locks.md", "Options at a glance")}
    for name, each in options_of(holdfast.Lock).items():
        if not re.search("Literal|Callable|Hashable", each.annotation):
            assert shown[name] == each.annotation, name


@pytest.mark.parametrize("row", rows("locks.md", "Options at a glance"), ids=lambda row: row[0].strip("`"))
def test_the_example_of_an_option_gives_another_value_than_its_default(row: list[str], tmp_path: Path) -> None:
    name = row[0].strip("`")
    given = eval(f"dict({row[4].strip('`')})")
    assert given[name] != options_of(holdfast.Lock)[name].default
    protocol = next((each for each in PROTOCOLS if f"with `{each}`" in row[3]), "sema")
    holdfast.Lock(tmp_path, **{"protocol": protocol, **given})


@pytest.mark.parametrize("kind", [holdfast.AsyncLock, holdfast.Semaphore, holdfast.AsyncSemaphore])
def test_every_kind_of_lock_has_the_options_of_the_table(kind: type) -> None:
    own, lock = options_of(kind), options_of(holdfast.Lock)
    assert {name: (each.annotation, each.default) for name, each in own.items()} == {
        name: (each.annotation, each.default) for name, each in lock.items()
    }


def test_every_argument_of_a_public_call_is_explained() -> None:
    """In its docstring, in that of its class, or in the tables."""
    tables = (REFERENCE / "locks.md").read_text(encoding="utf-8")
    public = [getattr(holdfast, name) for name in holdfast.__all__] + [holdfast.aio.acquire_all]
    unsaid = []
    for thing in public:
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue
        calls = inspect.getmembers(thing, inspect.isfunction) if inspect.isclass(thing) else [("", thing)]
        for name, call in calls:
            if not callable(call) or name.startswith("_") or call.__module__ == "holdfast.model":
                continue
            said = f"{call.__doc__} {thing.__doc__} {tables}"
            unsaid += [
                f"{thing.__name__}.{name}: {each}"
                for each in inspect.signature(call).parameters
                if each not in ("self", "locks") and f"`{each}`" not in said
            ]
    assert unsaid == []


def test_each_error_has_a_cause_and_a_remedy() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    found = {row[0]: row for row in rows("values.md", "Errors")}
    for kind in kinds:
        if kind is errors.HoldfastError:
            continue
        built_in = next((base for base in kind.__bases__ if base.__module__ == "builtins"), None)
        article = "an" if built_in and built_in.__name__[0] in "AEIO" else "a"
        name = f"`{kind.__name__}`" + (f" ({article} `{built_in.__name__}`)" if built_in else "")
        assert all(found.pop(name)[1:3]), name
    assert found == {}


def test_each_exit_status_has_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    notes_of = loaded("manual", monkeypatch).notes_of
    listed = {row[0] for row in rows("commands.md", "Exit statuses")}
    ours = {outcome.DONE, outcome.HELD, outcome.USAGE, outcome.FAILED, outcome.LOST, outcome.HELD_RUN}
    said = {
        int(number)
        for command in commands()
        for part in " ".join(notes_of(command)[1].split()).partition(". ")[0].split("; ")
        if (found := re.match(r"\d+(?:, \d+)*", part))
        for number in found[0].split(", ")
    }
    assert said == ours | {126, 127}
    assert listed == {*map(str, said), "128 + N", "any other"}


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("commands", monkeypatch)


def test_each_value_of_an_option_has_its_unit_and_an_example(reference: ModuleType) -> None:
    takes = {option.metavar for command in commands() for option in command.options if option.metavar}
    named = {value for value in takes if "|" not in value}  # options with choices show these
    assert named == set(reference.VALUES)


def test_the_examples_of_values_are_accepted(reference: ModuleType) -> None:
    """By a command with such an option; the drop-ins parse their own words."""
    theirs = {option.metavar for command in commands() if command.text for option in command.options}
    for value, (_, example) in reference.VALUES.items():
        flag, text = shlex.split(example.replace("$$", "4711"))
        taking = [
            name
            for name in PARSED
            for action in parser_of(name).actions()
            if flag in action.option_strings and action.metavar == value
        ]
        assert taking or value in theirs, f"{value}: no command has {flag}"
        if not taking:
            continue
        protocol = {"JSON": ["-p", "sidecar"], "START:LENGTH": ["-p", "ofd"], "YES": ["-p", "proper-lockfile"]}
        operands = {"postgresql": ["init", "postgresql://db/app"], "timeline": ["events.jsonl"]}.get(taking[0], ["x"])
        rest = ["--", "true"] if taking[0] == "run" and flag != "-c" else []
        parse([*taking[0].split(), flag, text, *protocol.get(value, []), *operands, *rest])


@pytest.mark.parametrize("command", [each for each in commands() if each.name in PARSED], ids=lambda each: each.name)
def test_the_help_of_an_option_states_its_default(command: Command, reference: ModuleType) -> None:
    """Unless it is a switch, or has none."""
    shown = {option.flags: reference.default_of(option) for option in command.options}
    for action in parser_of(command.name).actions():
        if action.option_strings and action.default not in (None, False, [], argparse.SUPPRESS):
            said = shown[tuple(action.option_strings)]
            assert (duration(said) if isinstance(action.default, float) else said) == action.default or (
                said == str(action.default)
            )


def test_exit_statuses_become_rows_with_a_row_for_any_other(reference: ModuleType) -> None:
    assert reference._statuses("that of X; 1 held (-E); 126, 127 no X. So it is.").splitlines()[2:] == [
        "| 1 | held (-E) |",
        "| 126, 127 | no X |",
        "| other | that of X |",
        "",
        "So it is.",
    ]
