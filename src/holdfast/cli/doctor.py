"""`doctor`: what a directory can do for locks, what that means, and what is amiss."""

from __future__ import annotations

import argparse
import errno
import os
import sys

from .._core.report import printable
from .._operator.diagnosis import GOOD, NOTE, UNUSABLE, WEAKER, Finding, of_abilities, of_limits, worst
from .._operator.litter import of_leftovers
from .._os import environment
from .._os.probes import abilities, limits
from . import DONE, FAILED, show
from .output import dumped
from .table import Screen, screen
from .urls import is_url, masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._operator.findings import Abilities, Limits

_AMISS = 1
_STATUS = {GOOD: DONE, NOTE: DONE, WEAKER: _AMISS, UNUSABLE: FAILED}
_STYLES = {GOOD: "green", NOTE: "blue", WEAKER: "yellow", UNUSABLE: "red"}
_VERDICTS = {
    GOOD: "all promises hold here",
    NOTE: "all promises hold here; see the notes",
    WEAKER: "locks work here, but some promises are weaker",
    UNUSABLE: "it cannot be used for locks",
}
_WIDEST = 100
_INDENT = 22


def doctor_(options: argparse.Namespace) -> int:
    """Probe, and say what came out."""
    if is_url(options.place):
        return _of_server(options)
    directory = os.path.join(os.getcwd(), options.place)
    directory = directory if ".." in directory.split("/") else os.path.normpath(directory)
    can: Abilities | None = None
    have: Limits | None = None
    try:
        can, have = abilities(environment(), directory), limits(directory)
        uid = os.geteuid() if hasattr(os, "geteuid") else None
        findings = [*of_abilities(can, uid), *of_limits(have), *of_leftovers(environment(), directory)]
    except OSError as error:
        findings = [_impossible(directory, error)]
    verdict = worst(findings)
    if options.json:
        show(_as_json(directory, verdict, findings, can, have))
    elif not options.quiet or verdict == UNUSABLE:
        show("\n".join(_as_text(directory, verdict, findings, screen(sys.stdout))))
    return _STATUS[verdict]


def _of_server(options: argparse.Namespace) -> int:
    from .url_doctor import findings_of

    findings, shown = findings_of(options.place), masked(options.place)
    verdict = worst(findings)
    if options.json:
        listed = [{name: getattr(one, name) for name in one._fields} for one in findings]
        show(dumped({"url": shown, "verdict": verdict, "findings": listed}))
    elif not options.quiet or verdict == UNUSABLE:
        show("\n".join(_as_text(shown, verdict, findings, screen(sys.stdout))))
    return _STATUS[verdict]


def _impossible(directory: str, error: OSError) -> Finding:
    """Why not even a file can be made."""
    missing = error.errno == errno.ENOENT and not os.path.isdir(directory)
    means = (
        "create it first"
        if missing
        else {
            errno.ENOTDIR: "choose a directory",
            errno.EACCES: "choose a directory that you may write to and search; no lock can be acquired in this one, "
            "and those in it can only be looked at",
            errno.EPERM: "choose a directory that you may write to",
            errno.EROFS: "choose a directory on a filesystem that may be written",
            errno.ENOSPC: "make room",
            errno.EDQUOT: "make room",
        }.get(error.errno or 0, "choose another directory")
    )
    return Finding("directory", UNUSABLE, f"no file can be made here: {error.strerror or error}", means)


def _as_json(directory: str, verdict: str, findings: list[Finding], can: Abilities | None, have: Limits | None) -> str:
    return dumped(
        {
            "directory": directory,
            "verdict": verdict,
            "findings": [{name: getattr(one, name) for name in one._fields} for one in findings],
            "abilities": None if can is None else {name: getattr(can, name) for name in can._fields},
            "limits": None if have is None else {name: getattr(have, name) for name in have._fields},
        }
    )


def _as_text(directory: str, verdict: str, findings: list[Finding], on: Screen) -> list[str]:
    from textwrap import wrap

    # In a pipe nothing is folded: a line is a finding, and the next one what it means.
    width = None if on.width is None else max(20, min(on.width, _WIDEST) - _INDENT - 10)
    lines = [f"{on.paint(_VERDICTS[verdict], _STYLES[verdict])}: {printable(directory, 4000)}", ""]
    for one in findings:
        for number, text in enumerate((one.text, one.means)):
            if not text:
                continue
            text = printable(text, 4000)
            for line_number, line in enumerate(wrap(text, width) if width else [text]):
                first = number == line_number == 0
                level = on.paint(f"{one.level:<9}", _STYLES[one.level]) if first else " " * 9
                name = one.name if first else ""
                lines.append(f"{level} {name:<{_INDENT - 2}} {on.paint(line, 'dim') if number else line}".rstrip())
    return lines
