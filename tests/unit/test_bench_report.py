"""The report of the benchmarks: drawn from a stored run, without measuring anything."""

from __future__ import annotations

import copy
import json
import re
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
BENCH, STORED = ROOT / "bench", ROOT / "docs" / "benchmarks.json"

# bench/ is no package: its modules find each other by the directory that run.py is in.
sys.path.insert(0, str(BENCH))
try:
    import marks
    from machine import Reading
    from peers import LIBRARIES, FileLock, Holdfast, Portalocker
    from procs import Failed
    from references import BlockingFlock
    from report import FORMAT, Unreadable, load, page, renew
    from report.docs import CHART, PAGE, README, measured, readme
    from report.figures import figures
    from report.markdown import grid
    from report.numbers import Absent, Curves, Figure, of_rounds, of_series, ratio
    from report.svg import axis
    from report.verdicts import comparisons
    from tables import show
finally:
    sys.path.remove(str(BENCH))

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return load(STORED)


@pytest.fixture
def run(stored: dict[str, Any]) -> dict[str, Any]:
    """A copy of the run, which a test may change."""
    return copy.deepcopy(stored)


def parsed(html: str) -> ElementTree.Element:
    """The page as XML, without its first line."""
    first, rest = html.split("\n", 1)
    assert first == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


@pytest.fixture(scope="module")
def root(stored: dict[str, Any]) -> ElementTree.Element:
    return parsed(page(stored))


def sections(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {str(section.find("h2").get("id")): section for section in root.iter("section")}  # type: ignore[union-attr]


def cells(section: ElementTree.Element) -> dict[str, list[str]]:
    """By the name of the row."""
    rows = [["".join(cell.itertext()) for cell in row] for row in section.iterfind(".//tbody/tr")]
    return {row[0]: row[1:] for row in rows}


# -- the page ----------------------------------------------------------------------------------------------------------


def test_each_figure_has_its_charts_and_its_table(root: ElementTree.Element, stored: dict[str, Any]) -> None:
    found, wanted = sections(root), [figure.key for figure in figures(stored)]
    assert list(found) == wanted
    for key, section in found.items():
        charts = list(section.iter(f"{SVG}svg"))
        assert [chart.get("class") for chart in charts] == ["wide", "narrow"], key
        assert len(list(section.iter("table"))) == 1, key
        assert all(len(list(chart.iter(f"{SVG}circle"))) or len(list(chart.iter(f"{SVG}rect"))) for chart in charts), (
            key
        )


def test_the_page_has_every_figure_asked_for(stored: dict[str, Any]) -> None:
    wanted = {
        "uncontended-tmpfs", "uncontended-disk", "handoff-own", "crash", "fairness-rate", "fairness-jain",
        "fairness-longest", "idle-cpu", "asyncio", "tasks", "start", "imports", "waiters", "held",
    }  # fmt: skip
    assert wanted <= {figure.key for figure in figures(stored)}


def test_every_chart_describes_itself_in_words(root: ElementTree.Element) -> None:
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    for chart in root.iter(f"{SVG}svg"):
        assert chart.get("role") == "img"
        names = str(chart.get("aria-labelledby")).split()
        said = ["".join(one.itertext()) for name in names for one in chart.iter() if one.get("id") == name]
        assert len(said) == 2
        assert all(len(words) > 10 for words in said)


def test_the_page_asks_no_other_host(stored: dict[str, Any], tmp_path: Path) -> None:
    for text in (page(stored), (ROOT / CHART).read_text(encoding="utf-8")):
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
        assert not re.search(r"<script|<link|<iframe|<img|@import|url\(|\bsrc=|\son\w+=", text)
        assert not [link for link in re.findall(r'href="([^"]*)"', text) if not link.startswith("#")]


def test_every_link_of_the_page_leads_somewhere(root: ElementTree.Element) -> None:
    ids = {one.get("id") for one in root.iter()}
    assert not [one.get("href") for one in root.iter("a") if str(one.get("href"))[1:] not in ids]


def test_the_page_does_not_name_this_machine(stored: dict[str, Any]) -> None:
    text = STORED.read_text(encoding="utf-8") + page(stored)
    assert not re.search(r"(?<![\w<])/(work|home|root|tmp|dev|usr|proc)/", text)


def test_a_name_cannot_break_out_of_the_page(run: dict[str, Any]) -> None:
    evil = '</title><script>"&`'
    run["suites"]["crash"]["FileLock"] = {"median_ns": None, "error": evil}
    run["failures"] = [evil]
    found = sections(parsed(page(run)))["crash"]
    assert "".join(cells(found)["FileLock"]).startswith("not measured: </title><script>")


# -- the numbers on the page -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "suite", "place", "unit"),
    [
        ("uncontended-tmpfs", "uncontended", "tmpfs", 1e3),
        ("handoff-own", "handoff", "own", 1e6),
        ("crash", "crash", "", 1e6),
    ],
)
def test_a_table_has_the_medians_of_the_run(
    root: ElementTree.Element, stored: dict[str, Any], key: str, suite: str, place: str, unit: float
) -> None:
    numbers = stored["suites"][suite]
    numbers = numbers[place] if place else numbers
    table = cells(sections(root)[key])
    compared = 0
    for label, series in numbers.items():
        if label in table and series["median_ns"] is not None:
            count = f"{series['samples']} ({series['rounds']})"
            assert table[label][:2] == [count, show(series["median_ns"] / unit)]
            compared += 1
    assert compared >= 6


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds(root: ElementTree.Element, stored: dict[str, Any]) -> None:
    ours, theirs = (stored["suites"]["crash"][name]["round_medians_ns"] for name in ("holdfast", BlockingFlock.label))
    quotients = [ours[number] / theirs[number] for number in ours]
    said = cells(sections(root)["crash"])["holdfast"][-1]
    assert said.startswith(f"{show(statistics.median(quotients))} × (")  # noqa: RUF001


def test_a_curve_has_the_points_of_the_run(root: ElementTree.Element, stored: dict[str, Any]) -> None:
    suite = stored["suites"]["waiters"]
    table, size = cells(sections(root)["waiters"]), suite["sizes"][-1]
    for label in ("holdfast", "FileLock"):
        rounds = suite["processes"][label][str(size)]["rounds"].values()
        if all(one["acquisitions"] == size for one in rounds):
            each = [one["seconds"] * 1e3 / size for one in rounds]
            assert table[label][-1] == f"{show(statistics.median(each))} ({show(min(each))}–{show(max(each))})"  # noqa: RUF001


def test_every_number_has_several_rounds(stored: dict[str, Any]) -> None:
    for figure in figures(stored):
        rows = figure.measured if isinstance(figure, Figure) else []
        assert all(len(row.rounds) >= 2 and row.ends is not None for row in rows), figure.key
        for line in figure.measured if isinstance(figure, Curves) else []:
            assert all(len(point.rounds) >= 2 for point in line.points.values()), figure.key


# -- missing measurements ----------------------------------------------------------------------------------------------


def test_a_missing_peer_is_said_to_be_not_measured(run: dict[str, Any]) -> None:
    del run["suites"]["handoff"]["own"][Portalocker.label]
    run["suites"]["handoff"]["own"][FileLock.label] = {"median_ns": None, "error": "not installed: no module filelock"}
    section = sections(parsed(page(run)))["handoff-own"]
    assert cells(section)[Portalocker.label] == ["not measured: not in this run"]
    assert cells(section)[FileLock.label] == ["not measured: not installed: no module filelock"]
    for chart in section.iter(f"{SVG}svg"):
        drawn = " ".join("".join(text.itertext()) for text in chart.iter(f"{SVG}text"))
        assert drawn.count("not measured") >= 2
    better = next(one for one in comparisons(figures(run)) if one.key == "handoff-own")
    assert not [name for name in (*better.better, *better.worse, *better.neither) if name.startswith(FileLock.label)]


@pytest.mark.parametrize(
    "suite", ["uncontended", "handoff", "crash", "idle", "fairness", "waiters", "many", "startup", "listing"]
)
def test_a_suite_left_out_leaves_a_gap_that_says_so(run: dict[str, Any], suite: str) -> None:
    del run["suites"][suite]
    found = parsed(page(run))
    gaps = [figure for figure in figures(run) if isinstance(figure, Absent)]
    assert gaps
    assert all(f"left out the suite {suite}" in figure.gap for figure in gaps)
    assert {figure.key for figure in gaps} <= set(sections(found))


def test_a_run_without_measurements_makes_a_page(run: dict[str, Any]) -> None:
    for emptied in ({}, {name: {} for name in run["suites"]}):
        run |= {"suites": emptied, "goals": [], "failures": []}
        root = parsed(page(run))
        assert len(sections(root)) == len(figures(run))


def test_a_run_without_holdfast_makes_a_page(run: dict[str, Any]) -> None:
    text = re.sub(r'"holdfast( AsyncLock|, protocol flock)?": ', r'"gone\1": ', json.dumps(run["suites"]))
    run["suites"] = json.loads(text)
    parsed(page(run))
    assert not [one for one in comparisons(figures(run)) if one.key == "handoff-own"]


def test_a_peer_that_cannot_be_measured_has_a_reason(root: ElementTree.Element) -> None:
    table = cells(sections(root)["crash"])
    assert table["zc.lockfile"] == ["not measured: cannot wait"]
    assert table["flufl.lock"] == ["not measured: its lock outlives its holder"]
    assert {one.label for one in LIBRARIES} <= set(table)


# -- comparisons -------------------------------------------------------------------------------------------------------


def figure_of(ours: list[float], theirs: list[float], more_is_better: bool = False) -> Figure:
    def by_round(values: list[float]) -> dict[str, float]:
        return {str(number): value for number, value in enumerate(values)}

    rows = [of_rounds("holdfast", "ours", by_round(ours)), of_rounds("other", "peer", by_round(theirs))]
    return Figure("k", "Title", "says", "ms", rows, "holdfast", more_is_better=more_is_better, of_samples=False)


@pytest.mark.parametrize(
    ("ours", "theirs", "more", "wanted"),
    [
        ([1, 2], [3, 8], False, "better: other 3.50 × (3.00–4.00)"),  # noqa: RUF001
        ([3, 8], [1, 2], False, "worse: other 3.50 × (3.00–4.00)"),  # noqa: RUF001
        ([3, 8], [1, 2], True, "better: other 3.50 × (3.00–4.00)"),  # noqa: RUF001
        ([1, 2], [3, 8], True, "worse: other 3.50 × (3.00–4.00)"),  # noqa: RUF001
        ([1, 4], [2, 2], False, "neither: other 1.25 × (0.500–2.00)"),  # noqa: RUF001
        ([0, 0], [1, 2], False, "better: other"),
        ([1, 2], [0, 0], False, "worse: other (0 against more)"),
        ([0, 0], [0, 0], False, "neither: other (0 both)"),
    ],
)
def test_better_and_worse_are_told_apart(ours: list[float], theirs: list[float], more: bool, wanted: str) -> None:
    (found,) = comparisons([figure_of(ours, theirs, more)])
    said = [f"{key}: {name}" for key in ("better", "worse", "neither") for name in getattr(found, key)]
    assert said == [wanted]


def test_every_measured_peer_is_compared(stored: dict[str, Any]) -> None:
    """Each peer with numbers in a figure where holdfast has numbers is in one of the three lists."""
    text = page(stored)
    for figure in figures(stored):
        if isinstance(figure, Figure) and figure.row(figure.ours) is not None:
            one = next((one for one in comparisons([figure])), None)
            peers = [row.label for row in figure.measured if row.role == "peer"]
            named = [*one.better, *one.worse, *one.neither] if one is not None else []
            assert len(named) == len(peers), figure.key
            assert all(any(name.startswith(label) for name in named) for label in peers)
            assert all(name in text for name in named)


def test_a_library_too_slow_to_be_measured_is_still_judged(run: dict[str, Any]) -> None:
    """At the largest size some waiters did not get the lock in time, which has no number."""
    suite = run["suites"]["waiters"]
    size = str(suite["sizes"][-1])

    def late(*labels: str) -> Any:
        changed = copy.deepcopy(run)
        for label in labels:
            for one in changed["suites"]["waiters"]["processes"][label][size]["rounds"].values():
                one["acquisitions"] = 1
        return next(one for one in comparisons(figures(changed)) if one.key == "waiters")

    slow = "not all came within the limit"
    assert f"FileLock ({slow})" in late("FileLock").better
    assert f"FileLock (of holdfast, {slow})" in late("holdfast").worse
    assert f"FileLock ({slow}, with either)" in late("FileLock", "holdfast").neither


def test_a_ratio_compares_the_same_rounds() -> None:
    found = ratio({"0": 2.0, "1": 30.0, "2": 5.0}, {"0": 1.0, "1": 10.0, "3": 7.0})
    assert found is not None
    assert (found.middle, found.low, found.high) == (2.5, 2.0, 3.0)
    assert ratio({"0": 1.0}, {"1": 1.0}) is None


def test_few_samples_get_only_the_percentiles_that_they_have() -> None:
    series = {
        "median_ns": 2e6, "round_medians_ns": {"0": 2e6}, "samples": 3, "p99_ns": None, "min_ns": 1e6, "max_ns": 9e6,
        "percentiles_ns": {"25": 1e6, "75": 9e6},
    }  # fmt: skip
    row = of_series("other", "peer", series, 1e6)
    table = grid(Figure("k", "t", "s", "ms", [row], Holdfast.label))
    assert table is not None
    assert table.rows[0] == ["other", "3 (1)", "2.00", "1.00–9.00", "1.00–9.00 (all)", "-"]  # noqa: RUF001


@pytest.mark.parametrize("values", [[0.0], [0.0, 3.0], [1.0, 1.0], [0.0042, 0.9], [17.5, 778_182.0], [1e-3, 1e6], []])
def test_every_value_lies_on_its_axis(values: list[float]) -> None:
    for linear in (False, True):
        scale = axis(values, 100.0, 400.0, linear)
        places = [scale(value) for value in values]
        assert all(100.0 <= place <= 400.0 for place in places)
        assert sorted(places) == [scale(value) for value in sorted(values)]
        ticks = [scale(tick) for tick in scale.ticks]
        assert len(ticks) >= 2
        assert all(later - one > 30 for one, later in pairwise(ticks))


# -- the documentation -------------------------------------------------------------------------------------------------


def test_the_documentation_shows_the_numbers_of_the_run(stored: dict[str, Any], tmp_path: Path) -> None:
    names = (PAGE, README, CHART)
    (tmp_path / "docs").mkdir()
    for name in names:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    renew(tmp_path, stored)
    stale = [name for name in names if (tmp_path / name).read_bytes() != (ROOT / name).read_bytes()]
    assert not stale, "make bench-docs"


def rows_between(text: str, mark: str) -> list[list[str]]:
    """The cells of the table between these marks, without its head."""
    part = text.partition(f"<!-- {mark} -->")[2].partition(f"<!-- /{mark} -->")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_readme_shows_each_measurement_once(stored: dict[str, Any]) -> None:
    """Each time comes from the one stored run; the table made by another command has none."""
    text = (ROOT / README).read_text(encoding="utf-8")
    compared = rows_between(text, "comparison")
    assert len(compared) > 10
    assert not [cell for row in compared for cell in row if re.search(r"\d (ns|µs|ms)\b", cell)]
    found = {show(row.middle) for one in figures(stored) if isinstance(one, Figure) for row in one.measured}
    cells = [cell.strip("*") for row in rows_between(text, "benchmarks") for cell in row[1:]]
    assert {cell for cell in cells if cell != "–"} <= found  # noqa: RUF001


def test_the_best_column_is_bold(stored: dict[str, Any]) -> None:
    rows = rows_between((ROOT / README).read_text(encoding="utf-8"), "benchmarks")
    assert len(rows) == 8
    for row in rows:
        numbers = [float(cell.strip("*")) for cell in row[1:] if cell != "–"]  # noqa: RUF001
        best = max(numbers) if "a second" in row[0] else min(numbers)
        assert {float(cell.strip("*")) for cell in row[1:] if cell.startswith("**")} == {best}, row


def test_every_winner_is_bold(run: dict[str, Any]) -> None:
    """Also a peer. A peer that was not measured has not won; equals share the first place."""
    rows = rows_between(f"<!-- x -->\n{readme(run)}\n<!-- /x -->", "x")
    assert sum(cell.startswith("**") for row in rows for cell in row) >= len(rows)
    run["suites"].clear()
    rows = rows_between(f"<!-- x -->\n{readme(run)}\n<!-- /x -->", "x")
    assert not [cell for row in rows for cell in row if "**" in cell]


def test_a_busy_machine_is_mentioned_in_the_readme(run: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in (PAGE, README, CHART):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for load, busy in (
        ("load before the run 7.50 (busy: expect long tails)", True),
        ("load before the run 0.02", False),
    ):
        run["facts"]["machine"] = f"A processor, 2 CPUs, {load}"
        renew(tmp_path, run)
        for name in (PAGE, README, CHART):
            text = (tmp_path / name).read_text(encoding="utf-8")
            assert load in text, name
            assert name == CHART or ("The machine was busy" in text) is busy


def test_the_share_of_others_excludes_the_run_and_the_host() -> None:
    before = Reading(at=100.0, busy=50.0, stolen=1.0, own=20.0, load=0.5)
    found = Reading(at=110.0, busy=62.0, stolen=2.0, own=24.0, load=1.5).since(before, cpus=2)
    assert found == {"seconds": 10.0, "load": [0.5, 1.5], "own": 0.2, "others": 0.4, "stolen": 0.05}
    alone = Reading(at=110.0, busy=53.9, stolen=1.0, own=24.0, load=1.5).since(before, cpus=2)
    assert alone["others"] == 0.0  # more of our own than of all: the noise of two clocks


def test_the_time_of_a_child_counts_as_our_own_once_it_is_reaped() -> None:
    before = Reading.now()
    subprocess.run([sys.executable, "-S", "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True)
    after = Reading.now()
    assert after.own - before.own >= 0.2
    assert after.at > before.at


def test_every_suite_says_what_the_machine_did_meanwhile(run: dict[str, Any]) -> None:
    quiet = {"seconds": 12.0, "load": [0.25, 1.75], "own": 0.61, "others": 0.04, "stolen": 0.05}
    run["meanwhile"] = {"crash": quiet, "fairness": {**quiet, "others": 0.07}}
    said = ["12", "0.25", "1.75", "61 %", "4 %", "5 %"]
    table = next(one for one in parsed(page(run)).iter("table") if "".join(one.itertext()).startswith("Shares of all"))
    assert cells(table)["crash"] == said
    assert f"| crash | {' | '.join(said)} |" in measured(run)
    assert [line for line in measured(run).splitlines() if line.startswith("> Others")] == [
        "> Others had more than a tenth of the processors during fairness (12 %): compare ratios only."
    ]


def test_a_page_without_a_place_for_the_numbers_is_refused() -> None:
    text = "before\n<!-- here -->\nold\n<!-- /here -->\nafter\n"
    assert marks.between(text, "here", "new", "page") == "before\n<!-- here -->\nnew\n<!-- /here -->\nafter\n"
    for broken in ("before\nafter\n", "<!-- /here -->\n<!-- here -->\n", "<!-- here -->\nno end\n"):
        with pytest.raises(Failed, match="page has no place"):
            marks.between(broken, "here", "new", "page")


def test_the_picture_of_the_readme_can_be_read_in_the_dark() -> None:
    text = (ROOT / CHART).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    style = "".join(next(root.iter(f"{SVG}style")).itertext())
    assert "prefers-color-scheme:dark" in style
    ground = next(root.iter(f"{SVG}rect"))
    assert ground.get("class") == "ground"  # it does not rely on what it is put on
    colours = set(re.findall(r"var\((--[\w-]+)\)", style))
    light, dark = (set(re.findall(r"(--[\w-]+):", part)) for part in style.split("@media", 1))
    assert colours <= light
    assert colours <= dark


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_stored_run_is_drawn_without_the_libraries(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    # -S: none of the installed packages can be imported.
    words = [sys.executable, "-S", str(BENCH / "run.py"), "--from", str(STORED), "--html", str(out)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    parsed(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', "no JSON"])
def test_only_a_run_is_loaded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Unreadable, match=re.escape(str(path))):
        load(path)
    assert FORMAT != 99


def test_a_missing_run_is_an_error_of_the_command(tmp_path: Path) -> None:
    words = [sys.executable, "-S", str(BENCH / "run.py"), "--html", str(tmp_path / "page.html"), "--from"]
    done = subprocess.run([*words, str(tmp_path / "missing.json")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_numbers_of_a_run_name_no_path_of_the_machine(tmp_path: Path) -> None:
    """The text of an error may name one, but not what is written down."""
    code = (
        f"import sys; sys.path.insert(0, {str(BENCH)!r})\n"
        "import json, run; from context import Context; from pathlib import Path\n"
        f"where = Context(Path({str(tmp_path / 'memory')!r}), Path({str(tmp_path / 'disk')!r}))\n"
        "errors = [f'{path}/x: gone' for path in (where.tmpfs, where.disk, sys.prefix, run.ROOT)]\n"
        "print(*json.loads(run._anonymous(json.dumps(errors), where)), sep='; ')"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "TMPFS/x: gone; DISK/x: gone; PYTHON/x: gone; ROOT/x: gone", done.stderr
