"""Every command with its options, as data, from what `--help` is made of: for completion and for man pages."""

from __future__ import annotations

import argparse
import re

from .. import protocols
from ..model import Value
from .arguments import SUMMARIES, Parser, parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_OWN_WORDS = ("sema", "semats")
"""Commands that take the arguments of another tool, and say what they are in a text of their own."""
_FILES = {"FILE", "EVENTS", "PAGE"}
_OF_TEXT = re.compile(r"^ +(?:(-\w), )? *(--[\w-]+)(?: <(\w+)>)? +(\S.*)$", re.MULTILINE)
_COMMAND_OF_TEXT = re.compile(r"^  ([a-z-]+) +(\S.*)$", re.MULTILINE)


class Option(Value):
    """One option. `metavar` is None for one that takes no value; `choices` are all its values, where they are few."""

    flags: tuple[str, ...]
    metavar: str | None
    help: str
    choices: tuple[str, ...] = ()

    @property
    def takes_file(self) -> bool:
        return self.metavar in _FILES

    @property
    def takes_process(self) -> bool:
        return self.metavar == "PID"


TOP = (Option(("-h", "--help"), None, "show the commands"), Option(("--version",), None, "print the version and exit"))
"""What may be typed instead of a command."""


class Command(Value):
    """One command, as its words: `run`, `beads check`. `runs`: another command stands behind `--`.

    `words` are what may stand for its first argument, where that is no file. `text` is its whole help, for one that has
    no parser.
    """

    name: str
    summary: str
    usage: str
    options: tuple[Option, ...]
    operands: tuple[tuple[str, str], ...] = ()
    description: str = ""
    notes: str = ""
    runs: bool = False
    words: tuple[str, ...] = ()
    text: str = ""


def commands() -> list[Command]:
    """All of them, in the order of the overview."""
    found: list[Command] = []
    for name, summary in SUMMARIES.items():
        if name == "beads":
            found += _beads()
        elif name in _OWN_WORDS:
            found += [_from_text(name, summary)]
        else:
            found.append(_from_parser(name, summary, parser_of(name)))
    return found


def _beads() -> list[Command]:
    from .arguments_beads import _BEADS, STEPS, parser

    return [_from_parser(f"beads {step}", _BEADS[step], parser(step)) for step in STEPS]


def _from_parser(name: str, summary: str, parser: Parser) -> Command:
    options, operands = [], []
    words: tuple[str, ...] = ()
    for action in parser._actions:
        help_ = action.help or ""
        choices = tuple(map(str, action.choices or ()))
        named = action.metavar if isinstance(action.metavar, str) else "|".join(choices) or "VALUE"
        metavar = None if action.nargs == 0 else named
        if action.option_strings:
            if "--protocol" in action.option_strings:
                choices = tuple(protocols.names())
            options.append(Option(tuple(action.option_strings), metavar, help_, choices))
        elif help_ != argparse.SUPPRESS:
            operands.append((metavar or "VALUE", help_))
            words = words or choices
    usage = parser.format_usage().removeprefix("usage: ").strip()
    return Command(
        name, summary, usage, tuple(options), tuple(operands), parser.description or "", parser.notes(), "--" in usage,
        words,
    )  # fmt: skip


def _from_text(name: str, summary: str) -> Command:
    if name == "sema":
        from .sema import _HELP as text
    else:
        from .semats import _HELP as text
    above, _, below = text.partition("\nOptions:\n")
    options = tuple(
        Option(_present(short, long), metavar or None, help_) for short, long, metavar, help_ in _OF_TEXT.findall(below)
    )
    words = tuple(word for word, _ in _COMMAND_OF_TEXT.findall(above))
    usage = text.partition("\n")[0].removeprefix("Usage: ")
    return Command(name, summary, f"holdfast {usage}", options, words=words, text=text)


def _present(*flags: str) -> tuple[str, ...]:
    return tuple(filter(None, flags))


def groups(found: Iterable[Command]) -> dict[str, list[str]]:
    """The words that may stand second, by the first: of commands of two words, and of those with fixed operands."""
    seconds: dict[str, list[str]] = {}
    for command in found:
        first, _, second = command.name.partition(" ")
        if second:
            seconds.setdefault(first, []).append(second)
        elif command.words:
            seconds[first] = list(command.words)
    return seconds
