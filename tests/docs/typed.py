"""Checks of commands that are only shown: `holdfast` has such options, and the Makefile such targets."""

from __future__ import annotations

import functools
import re
import shlex

from docs import pages
from docs.pages import Block
from holdfast.cli.completion import commands

_SHELL = frozenset({"sh", "console", "crontab", "dockerfile", "ini", "yaml"})
_HOLDFAST = re.compile(r"(?<![\w.-])holdfast ([a-z]+(?: [a-z]+)?)(?= |$)([^\n]*)")
_MAKE = re.compile(r"(?:^|[$;&|] )make ((?:[\w-]+ ?)+)(?![\w=-])", re.MULTILINE)
_ENDS = {"--", "|", "||", "&&", ";", "&", ")", "}"}


def problems(block: Block) -> list[str]:
    """The errors in the commands of a block that is not run."""
    if block.language not in _SHELL:
        return []
    text = block.text
    if block.language == "console":
        text = "\n".join(f"$ {command.text}" for command in pages.commands(block))
    text = re.sub(r"\\\n\s*", " ", text)
    found = [f"the Makefile has no target {name!r}" for name in _targets(text) if name not in _known_targets()]
    for words, rest in _HOLDFAST.findall(text):
        name = next((each for each in (words, words.split()[0]) if each in _options()), "")
        if name:
            known = _options()[name]
            found += [f"holdfast {name} has no option {flag}" for flag in _flags(rest) if flag not in known]
    return found


def _targets(text: str) -> list[str]:
    return [name for line in _MAKE.findall(text) for name in line.split()]


def _flags(rest: str) -> list[str]:
    """The options before the command to run; `-n5` is `-n`."""
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        return []  # the end of a quotation that began before: sh -c 'holdfast …'
    found = []
    for word in words:
        if word in _ENDS:
            break
        if re.match(r"--\w", word):
            found.append(word.partition("=")[0])
        elif re.match(r"-[A-Za-z]", word):
            found.append(word[:2])
    return found


@functools.cache
def _options() -> dict[str, set[str]]:
    return {each.name: {flag for option in each.options for flag in option.flags} for each in commands()}


@functools.cache
def _known_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (pages.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
