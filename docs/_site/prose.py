"""Checks how the pages read: `prose.py [--figures] [PAGE ...]`, all pages without an argument.

What counts is the prose: paragraphs, items of lists and cells of tables with whole sentences; no code, no headings, and
nothing that a program writes between two marks (`<!-- measured -->` to `<!-- /measured -->`).
Each page has a limit for its reading ease (Flesch), its mean sentence and its longest one; `words.toml` has the limits
and the words that no page uses, and proselint finds nothing. `--figures` prints a row for each page, the hardest first.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import NamedTuple

import markdown_text
from proselint.checks import __register__ as checks
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports pkg_resources, which is deprecated
    import textstat

ROOT = Path(__file__).parents[2]
GENERATED = ("tests/unit/faults.md", "docs/benchmarks.md")
"""Tables that a program writes."""
_CONFIG = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
_ABBREVIATED = r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bcf\.)"
_SENTENCE_ENDS = re.compile(rf"(?<=[.!?]){_ABBREVIATED}[\"')*]*\s+|\n{{2,}}", re.IGNORECASE)
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_CODE = re.compile(r"(`+).+?\1")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_WRITTEN = re.compile(r"^<!-- (\w+) -->$.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)


class Figures(NamedTuple):
    """How a page reads: words, reading ease (higher is easier), words in the mean and in the longest sentence."""

    words: int
    ease: float
    mean: float
    longest: int
    sentence: str


def pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(name for path in found if (name := path.relative_to(ROOT).as_posix()) not in GENERATED)


def prose(text: str) -> str:
    """The page's paragraphs, one to a line, with `code` for each span of code."""
    made: list[str] = []
    joins = False
    for kind, line in markdown_text.lines(_WRITTEN.sub("", text)):
        if kind != "text" or not line.strip() or line.lstrip().startswith(("#", "<", ":::", "|--", "| --")):
            joins = False
            continue
        plain = _LINK.sub(r"\1", _CODE.sub("code", line)).replace("**", "").replace("*", "").strip("> ").strip()
        if plain.startswith("|"):
            made += [cell.strip() for cell in plain.strip("|").split("|") if _is_sentence(cell)]
            joins = False
        elif joins and not _ITEM.match(line):
            made[-1] += " " + plain
        else:
            made.append(_ITEM.sub("", plain))
            joins = True
    return "\n\n".join(made)


def _is_sentence(cell: str) -> bool:
    return len(cell.split()) > 6


def sentences(text: str) -> list[str]:
    return [each.strip() for each in _SENTENCE_ENDS.split(text) if each.strip()]


def figures(text: str) -> Figures:
    """Of prose. A colon or a semicolon ends no sentence: two thoughts in one are what this looks for."""
    found = sentences(text)
    lengths = [len(each.split()) for each in found] or [0]
    longest = max(found, key=lambda each: len(each.split()), default="")
    ease = textstat.flesch_reading_ease(". ".join(each.rstrip(".:") for each in found) + ".")
    return Figures(sum(lengths), round(ease, 1), round(sum(lengths) / len(lengths), 1), max(lengths), longest)


def complaints(text: str) -> list[str]:
    """What words.toml would say otherwise, and what proselint says."""
    found = [
        f"“{match[0]}”: {better}"
        for word, better in _CONFIG["words"].items()
        for match in re.finditer(rf"(?<![\w-]){word}(?![\w-])", text, re.IGNORECASE | re.MULTILINE)
    ]
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(checks)
    numbers = itertools.count()
    for paragraph in text.split("\n\n"):
        # Two spans of code, or two numbers, in a row are no repetition.
        apart = re.sub(r"\bcode\b|\d+", lambda _: f"code{chr(97 + next(numbers) % 26)}", paragraph)
        results = LintFile(content=apart, source="page").lint({"max_errors": 1000, "checks": _CONFIG["proselint"]})
        found += [f"{result.check_result.message} {paragraph[:60]}…" for result in results]
    return found


def problems(name: str, text: str) -> list[str]:
    limits = _CONFIG["limits"]
    words = prose(text)
    found, wrong = figures(words), complaints(words)
    if found.words >= limits["least_words"]:
        if found.ease < limits["ease"]:
            wrong.append(f"reading ease {found.ease}, of at least {limits['ease']}")
        if found.mean > limits["mean"]:
            wrong.append(f"{found.mean} words in the mean sentence, of at most {limits['mean']}")
    wrong += [
        f"{len(each.split())} words in one sentence, of at most {limits['longest']}: {each[:90]}…"
        for each in sentences(words)
        if len(each.split()) > limits["longest"]
    ]
    return [f"{name}: {each}" for each in wrong]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="How the pages read.")
    parser.add_argument("--figures", action="store_true", help="a row for each page; nothing fails")
    parser.add_argument("page", nargs="*", help="all of them, if none is given")
    given = parser.parse_args(arguments)
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in given.page or pages()}
    if given.figures:
        measured = {name: figures(prose(text)) for name, text in texts.items()}
        rows = sorted((found.ease, name, found) for name, found in measured.items() if found.words)
        sys.stdout.write("| page | words | reading ease | mean sentence | longest |\n|---|---|---|---|---|\n")
        for _, name, found in rows:
            sys.stdout.write(f"| {name} | {found.words} | {found.ease} | {found.mean} | {found.longest} |\n")
        return
    wrong = [problem for name, text in texts.items() for problem in problems(name, text)]
    if wrong:
        sys.exit("\n".join([*wrong, f"{len(wrong)} places to mend"]))
    sys.stdout.write(f"{len(texts)} pages read well enough\n")


if __name__ == "__main__":
    main(sys.argv[1:])
