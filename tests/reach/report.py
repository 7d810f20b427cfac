"""The report of `make coverage` on a measurement: a table, pages of HTML, and lines unreached without a reason.

    report.py MEASURED [--part]

MEASURED is the data file of coverage.py. The report fails if a line or branch of holdfast is neither reached nor named
in `unreached.toml`, if a named one is reached or no longer exists, and if less than `WANTED` percent of the branches of
the engine on files are reached. With `--part`, for a part of the tests, it only shows the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))

from reach import named

WANTED = 97.0
"""Percent of the branches of the engine on files."""
ENGINE = "the engine on files"
PARTS = {
    ENGINE: (
        *("_core/", "_drivers/", "_platform/", "protocols/", "engines/file/"),
        *("lock.py", "aio.py", "several.py", "pytest.py"),
    ),
    "what engines share": (
        "engines/__init__.py",
        "engines/base.py",
        "engines/connections.py",
        "engines/remote.py",
        "plugins.py",
    ),
    "the engines on servers": ("engines/connections.py", "engines/postgresql/", "engines/etcd/"),
    "the four systems in their own words": ("sema", "sidecar", "beads.py"),
    "what all tell": ("__init__.py", "model.py", "liveness.py", "errors.py", "events.py", "metrics.py", "tracing.py"),
    "the operator's view": ("_admin/",),
    "the command line": ("cli/", "__main__.py"),
    "for authors of other implementations": ("testing/",),
}
"""Rows of the table, and prefixes of their files; a file is in the first row that fits."""
HTML = named.SOURCE.parents[1] / "dist" / "coverage"


def part_of(file: str) -> str:
    return next(part for part, beginnings in PARTS.items() if file.startswith(beginnings))


class Measured:
    """The lines and branches that were reached, by module."""

    def __init__(self, files: dict[str, Any]) -> None:
        self.files = {Path(path).resolve().relative_to(named.SOURCE).as_posix(): file for path, file in files.items()}

    def percent(self, part: str, what: str) -> tuple[float, int, int]:
        """The percentage of the part's lines or branches that are reached, their number, and the number of those not
        reached."""
        counts = [file["summary"] for name, file in self.files.items() if part_of(name) == part]
        total = sum(count["num_statements" if what == "lines" else "num_branches"] for count in counts)
        missing = sum(count[f"missing_{what}"] for count in counts)
        return 100.0 * (total - missing) / (total or 1), total, missing

    def unreached(self, file: str) -> list[named.Place]:
        """The unreached lines, and the unreached branches of which both ends were reached."""
        measured = self.files[file]
        lines = set(measured["missing_lines"])
        branches = [(a, b) for a, b in measured["missing_branches"] if a not in lines and b not in lines]
        return [*sorted(lines), *sorted(branches)]

    def table(self) -> str:
        rows = ["| | lines | reached | branches | reached |", "|---|---|---|---|---|"]
        for part in PARTS:
            cells = [f"{total} | {percent:.1f} %" for percent, total, _ in map(self.percent, [part] * 2, _BOTH)]
            rows.append(f"| {part} | {' | '.join(cells)} |")
        return "\n".join(rows)


_BOTH = ("lines", "branches")


def complaints(measured: Measured) -> list[str]:
    """The errors, by name."""
    known = named.modules()
    covered: dict[str, bool] = {}  # each name, and whether it may be reached
    for group in named.groups():
        covered.update(dict.fromkeys(group.names, group.sometimes))
    used: set[str] = set()
    found: list[str] = []
    for file, module in known.items():
        for place in measured.unreached(file):
            fitting = [name for name in module.names(place) if name in covered]
            used.update(fitting)
            if not fitting:
                found.append(f"neither reached nor named: {module.name(place)}")
    nowhere = set(named.leading_nowhere(known))
    found += [f"named, but not in the source: {name}" for name in covered if name in nowhere]
    found += [f"named, but reached: {name}" for name in covered if not covered[name] and name not in used | nowhere]
    percent = measured.percent(ENGINE, "branches")[0]
    if percent < WANTED:
        found.append(f"{percent:.1f} % of the branches of {ENGINE} are reached, not {WANTED:.0f}")
    return found


def main(data: str, *options: str) -> int:
    from coverage import Coverage  # the tests of this file do without

    whole = Coverage(data_file=data)
    whole.load()
    whole.get_data().touch_files(str(named.SOURCE / file) for file in named.modules())  # also what nothing imports
    HTML.mkdir(parents=True, exist_ok=True)
    whole.html_report(directory=str(HTML / "html"))
    whole.json_report(outfile=str(HTML / "coverage.json"))
    measured = Measured(json.loads((HTML / "coverage.json").read_text())["files"])
    print(measured.table())
    print(f"\nline by line: {HTML / 'html' / 'index.html'}")
    wrong = [] if options == ("--part",) else complaints(measured)
    print("".join(f"\n{line}" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
