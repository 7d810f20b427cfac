"""`holdfast timeline`: recorded events as a page, in a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.support import HOLDFAST, World, eventually
from holdfast.cli.timeline import content, percentiles, read

HOSTILE = "</script><script>alert(1);document.title='stolen'</script><img src=x onerror=alert(2)>\u2028\x1b[31m"
BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
needs_browser = pytest.mark.skipif(not BROWSER, reason="no chromium is installed (apt-get install chromium)")


def event(kind: str, time: float, pid: int = 1, path: str = "/l", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "time": time, "path": path, "protocol": "sema", "pid": pid, "host": "h", **more}


def told(*events: dict[str, Any]) -> list[tuple[bool, float, float, str, int | None]]:
    history = read(json.dumps(one).encode() + b"\n" for one in events)
    assert history.bad == 0
    return [(one.holding, one.start, one.stop, one.end, one.pid) for one in history.spells]


# -- the path of the page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a link", "a dangling link", "a FIFO", "a hard link", "a directory"])
def test_a_page_is_not_written_through_a_link_a_fifo_or_a_directory_at_its_default_path(
    kind: str, world: World, tmp_path: Path
) -> None:
    """The path was not named by the user: it is beside the events, where others may write."""
    events, theirs = tmp_path / "events.jsonl", tmp_path / "theirs"
    events.write_text(json.dumps(event("held", 1)) + "\n")
    theirs.write_text("people's data")
    place = tmp_path / "events.html"
    {
        "a link": lambda: place.symlink_to(theirs),
        "a dangling link": lambda: place.symlink_to(tmp_path / "new"),
        "a FIFO": lambda: os.mkfifo(place),
        "a hard link": lambda: os.link(theirs, place),
        "a directory": place.mkdir,
    }[kind]()
    done = world.do("timeline", str(events))
    assert done.returncode == 3
    assert "events.html" in done.stderr
    assert theirs.read_text() == "people's data"
    assert not (tmp_path / "new").exists()
    if kind == "a link":
        assert world.do("timeline", "-o", str(place), str(events)).returncode == 0
        assert "<html" in theirs.read_text()  # a user who names a link means it


def test_a_page_is_written_again(world: World, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps(event("held", 1)) + "\n")
    for _ in range(2):
        assert world.do("timeline", str(events)).returncode == 0
        before = (tmp_path / "events.html").read_bytes()
        (tmp_path / "events.html").write_bytes(before + b"x" * 100)
    assert world.do("timeline", str(events)).returncode == 0
    assert (tmp_path / "events.html").read_bytes() == before


# -- intervals from events ---------------------------------------------------------------------------------------------


def test_a_wait_and_a_hold_are_separate_intervals() -> None:
    assert told(event("waiting", 1), event("acquired", 3, waited=2), event("released", 7, held=4)) == [
        (False, 1.0, 3.0, "acquired", 1),
        (True, 3.0, 7.0, "released", 1),
    ]


def test_events_of_several_writers_are_read_in_order_of_time() -> None:
    assert told(event("released", 7), event("acquired", 3)) == [(True, 3.0, 7.0, "released", 1)]


def test_an_event_recorded_twice_counts_once() -> None:
    twice = [
        event("acquired", 3),
        event("acquired", 3.001),
        event("released", 7, held=4),
        event("released", 7.01, held=4),
    ]
    assert told(*twice) == [(True, 3.0, 7.0, "released", 1)]


def test_an_interval_that_began_before_the_record_gets_its_beginning() -> None:
    assert told(event("released", 7, held=4)) == [(True, 3.0, 7.0, "released", 1)]
    assert told(event("gave-up", 7, waited=4)) == [(False, 3.0, 7.0, "gave-up", 1)]
    assert told(event("acquired", 7, waited=4), event("lost", 8)) == [
        (False, 3.0, 7.0, "acquired", 1),
        (True, 7.0, 8.0, "lost", 1),
    ]


def test_an_interval_that_outlasts_the_record_is_shown_as_open() -> None:
    assert told(
        event("held", 1, first_look=True), event("waiting", 2, 2), event("released", 9, 3, "/other", held=1)
    ) == [(True, 1.0, 9.0, "open", 1), (False, 2.0, 9.0, "open", 2), (True, 8.0, 9.0, "released", 3)]


def test_a_dead_holder_does_not_hold_for_ever() -> None:
    ending = [event("stale", 4), event("reclaimed", 5, 2, recovered_from=1), event("acquired", 5, 2, recovered_from=1)]
    assert told(event("acquired", 3), *ending, event("released", 6, 2)) == [
        (True, 3.0, 5.0, "reclaimed", 1),
        (True, 5.0, 6.0, "released", 2),
    ]
    assert told(event("acquired", 3), event("acquired", 5, 2), event("released", 6, 2))[0] == (
        True,
        3.0,
        5.0,
        "unseen",
        1,
    )


@pytest.mark.parametrize("protocol", ["flock", "ofd"])
def test_two_readers_or_two_slots_are_shown_side_by_side(protocol: str) -> None:
    readers = [event("acquired", 3, protocol=protocol), event("acquired", 4, 2, protocol=protocol)]
    ends = [event("released", 5, protocol=protocol), event("released", 6, 2, protocol=protocol)]
    assert told(*readers, *ends) == [(True, 3.0, 5.0, "released", 1), (True, 4.0, 6.0, "released", 2)]
    slots = [event("acquired", 3, slot=0), event("acquired", 4, 2, slot=1), event("released", 5, slot=0)]
    assert told(*slots)[0] == (True, 3.0, 5.0, "released", 1)


@pytest.mark.parametrize("slot", [{"path": "/gpu.0.lock"}, {"path": "/gpu", "slot": 0}, {"path": "etcd://h/gpu#0"}])
def test_a_wait_for_a_semaphore_ends_with_its_slot(slot: dict[str, Any]) -> None:
    base = "etcd://h/gpu" if "://" in slot["path"] else "/gpu"
    waits = [event("waiting", 1, 1, base), event("waiting", 2, 2, base)]
    assert told(*waits, {**event("acquired", 3, 1, waited=2), **slot}, {**event("released", 5, 1), **slot}) == [
        (False, 1.0, 3.0, "acquired", 1),
        (False, 2.0, 5.0, "open", 2),
        (True, 3.0, 5.0, "released", 1),
    ]
    unrelated = {**event("acquired", 3, 1, waited=0), **slot}  # it had not waited: the wait is another thread's
    assert (False, 1.0, 3.0, "open", 1) in told(waits[0], unrelated)


def test_run_records_a_wait_for_a_semaphore_and_its_end(world: World, tmp_path: Path) -> None:
    words = ["run", "--record", "events.jsonl", "--slots", 1, "gpu", "--", "sh", "-c"]
    first = world.start([*HOLDFAST, *words, "echo in; read end"], stdin=subprocess.PIPE)
    first.hear("in")
    second = world.start([*HOLDFAST, *words, "true"])
    events = tmp_path / "events.jsonl"
    eventually(lambda: '"waiting"' in events.read_text(), what="a wait")
    assert first.process.stdin is not None
    first.process.stdin.close()
    assert (first.wait(), second.wait()) == (1, 0)
    history = read(events.read_bytes().splitlines(keepends=True))
    assert [(one.holding, one.end) for one in history.spells if one.pid == second.pid] == [
        (False, "acquired"),
        (True, "released"),
    ]


BAD = {
    b"\n": None,
    b"nonsense\n": "line 1: it is not JSON",
    b"\xff\xfe\n": "line 1: it is not JSON",
    b"[1, 2]\n": "line 1: it is not a JSON object",
    b'{"kind": "dance", "time": 1, "path": "/l"}\n': "line 1: its kind, 'dance', is unknown",
    b'{"kind": ["held"], "time": 1, "path": "/l"}\n': "line 1: its kind, \"['held']\", is unknown",
    b'{"kind": "held", "path": "/l"}\n': "line 1: it has no time",
    b'{"kind": "held", "time": NaN, "path": "/l"}\n': "line 1: it has no time",
    b'{"kind": "held", "time": 1e300, "path": "/l"}\n': "line 1: it has no time",
    b'{"kind": "held", "time": true, "path": "/l"}\n': "line 1: it has no time",
    b'{"kind": "held", "time": 1' + b"0" * 400 + b', "path": "/l"}\n': "line 1: it has no time",
    b'{"kind": "held", "time": 1}\n': "line 1: it has no path",
    b"[" * 100_000: "line 1: it is not JSON: the last line is cut off",
    b'{"kind": "he': "line 1: it is not JSON: the last line is cut off",
}


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_reported_and_left_out(line: bytes) -> None:
    good = json.dumps(event("held", 1)).encode() + b"\n"
    history = read([line, good])
    assert history.events == 1
    assert history.named == ([BAD[line]] if BAD[line] else [])
    assert history.bad == len(history.named)


def test_odd_values_are_not_taken_for_numbers_and_make_json() -> None:
    odd = event("acquired", 1, pid=True, waited=-5, tag=7, command=["x"], host={}, recovered_from="9", protocol=None)  # type: ignore[arg-type]
    odd_end = event("released", 2, pid=2**80, held=float("inf"))
    history = read(json.dumps(one).encode() for one in (odd, odd_end))
    assert [(one.pid, one.tag, one.stop) for one in history.spells] == [(None, None, 2.0)]
    json.dumps(content(history, "x"), allow_nan=False)


def test_percentiles_are_right() -> None:
    assert percentiles([float(n) for n in range(100, 0, -1)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0, "max": 7.0}
    assert percentiles([]) is None


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    def write(*events: dict[str, Any], more: bytes = b"") -> Path:
        file = tmp_path / "events.jsonl"
        file.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in events) + more)
        return file

    return write


def test_bad_lines_are_not_fatal(world: World, recorded: Callable[..., Path]) -> None:
    file = recorded(event("acquired", 1), event("released", 2), more=b'nonsense\n{"kind": "acq')
    done = world.do("timeline", file)
    assert done.returncode == 0
    assert "2 lines are not events: line 3: it is not JSON; line 4: it is not JSON: the last line" in done.stderr
    assert file.with_suffix(".html").read_text().startswith("<!doctype html>")


def test_one_event_of_one_lock_is_counted_as_one(world: World, recorded: Callable[..., Path]) -> None:
    assert "shows 1 event of 1 lock" in world.do("timeline", recorded(event("acquired", 1))).stderr


def test_a_file_without_events_is_an_error(world: World, recorded: Callable[..., Path]) -> None:
    done = world.do("timeline", recorded(more=b"nonsense\n"))
    assert done.returncode == 3
    assert "has no events" in done.stderr
    assert not (world.directory / "events.html").exists()
    assert world.do("timeline", "missing").returncode == 3


def test_a_page_that_cannot_be_written_is_named(world: World, recorded: Callable[..., Path]) -> None:
    done = world.do("timeline", "-o", "/dev/full", recorded(event("held", 1)))
    assert (done.returncode, done.stderr) == (3, "holdfast: /dev/full: No space left on device\n")


def test_a_page_is_not_written_over_its_events(world: World, recorded: Callable[..., Path]) -> None:
    """Whether by `-o`, through a link to them, or by the page's default name."""
    path = recorded(event("acquired", 1.0))
    before = path.read_bytes()
    link, page = path.with_name("link"), path.with_suffix(".html")
    link.symlink_to(path)
    page.hardlink_to(path)
    for words in (["-o", path], ["-o", link], []):
        done = world.do("timeline", *words, path)
        assert (done.returncode, done.stderr.startswith("holdfast: the page would be written over")) == (2, True)
        assert path.read_bytes() == before


def test_a_pipe_is_read_and_written(world: World, recorded: Callable[..., Path]) -> None:
    done = world.do("timeline", "-", given=recorded(event("held", 1)).read_bytes())
    assert done.returncode == 0
    assert done.stdout.endswith("</html>\n")
    assert done.stderr == ""


def test_the_page_does_not_need_the_network(world: World, recorded: Callable[..., Path]) -> None:
    world.do("timeline", recorded(event("held", 1)))
    page = (world.directory / "events.html").read_text()
    assert not re.findall(r"https?://|//[a-z]+\.|@import|url\(|\bsrc=|<link", page)
    assert "default-src 'none'" in page


# -- the page in a browser ---------------------------------------------------------------------------------------------


def rendered(world: World, page: Path, hash_: str = "") -> str:
    """The document after its scripts have run; their complaints fail the test."""
    profile = world.directory / "profile"
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1300,900",
         "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", f"file://{page}{hash_}"],
        capture_output=True, timeout=120,
    )  # fmt: skip
    complaints = [line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    assert not complaints
    return done.stdout.decode()


@needs_browser
def test_a_hostile_tag_does_not_become_a_part_of_the_page(world: World, recorded: Callable[..., Path]) -> None:
    names = {"tag": HOSTILE, "command": HOSTILE, "protocol": HOSTILE, "host": HOSTILE, "path": "/" + HOSTILE}
    file = recorded(
        {**event("waiting", 1), **names},
        {**event("acquired", 3, waited=2), **names},
        {**event("released", 4, held=1), **names},
        more=b'{"kind": "' + HOSTILE.split("\u2028")[0].encode() + b'"}\n',
    )
    world.do("timeline", file)
    dom = rendered(world, world.directory / "events.html")
    assert 'data-ready="yes"' in dom
    assert "<title>Locks over time</title>" in dom
    assert dom.count("<script") == 2
    assert "<img" not in dom
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in dom


@needs_browser
def test_the_page_shows_waits_holds_and_their_statistics(world: World, recorded: Callable[..., Path]) -> None:
    file = recorded(
        event("acquired", 100, 11, tag="first"),
        event("waiting", 101, 12, tag="second"),
        event("released", 104.5, 11, held=4.5),
        event("acquired", 104.5, 12, waited=3.5, tag="second"),
        event("released", 105, 12, held=0.5),
        more=b"nonsense\n",
    )
    world.do("timeline", file)
    dom = rendered(world, world.directory / "events.html", "#at=1")
    longest = re.findall(r'<li><a href="#at=(\d+)">([^<]+)</a>([^<]+)', dom)
    assert [one[:2] for one in longest] == [("1", "3.50 s")]
    assert "process 12 on h for second" in longest[0][2]
    cells = re.findall(r"<td[^>]*>(?:<bdi>)?([^<]*)", dom)
    assert cells[:11] == ["all", "2", "500 ms", "4.50 s", "4.50 s", "4.50 s", "1", *["3.50 s"] * 4]
    assert "1 line was no event, and left out" in dom
    assert int(re.findall(r'data-drawn="(\d+)"', dom)[0]) >= 3


@needs_browser
@pytest.mark.parametrize("width", [1280, 1000, 390])
def test_the_page_fits_a_screen(width: int, world: World, recorded: Callable[..., Path], tmp_path: Path) -> None:
    """In a frame of that width, as a browser's window has a minimum."""
    path, long = "/var/lib/a/directory/deep/down/deploy-web-production.lock", 6543.21
    file = recorded(
        event("acquired", 9000, path=path, waited=long, tag="a tag " * 20),
        event("released", 9000 + long, path=path),
        event("acquired", 9000, 2, path="/short", waited=0.00012),
        event("released", 9000.00123, 2, path="/short"),
    )
    world.do("timeline", file)
    frame = tmp_path / "frame.html"
    page = html.escape((world.directory / "events.html").read_text())
    frame.write_text(
        f"""<body><iframe width={width} height=900 style="border: 0" srcdoc="{page}"></iframe><script>
        onload = () => {{
          const inside = document.querySelector("iframe").contentDocument;
          const found = {{ seen: inside.body.dataset.ready }};
          const all = [inside.documentElement, ...inside.querySelectorAll("main, section, .scroll, #chart")];
          found.clipped = all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.id || e.tagName);
          const cells = [...inside.querySelectorAll("#figures td:last-child")];
          found.right = Math.max(...cells.map((e) => e.getBoundingClientRect().right));
          found.room = inside.documentElement.clientWidth;
          const said = document.createElement("pre"); said.id = "found"; said.textContent = JSON.stringify(found);
          document.body.append(said);
        }};</script>"""
    )
    found = json.loads(re.findall(r'<pre id="found">([^<]+)', rendered(world, frame))[0])
    assert found["seen"] == "yes"
    assert width - 20 <= found["room"] <= width  # without a scroll bar
    assert found["clipped"] == []
    assert found["right"] <= found["room"]


@needs_browser
def test_a_hundred_thousand_events_are_drawn(world: World, recorded: Callable[..., Path]) -> None:
    events = []
    for n in range(50_000):
        base = {"pid": 1000 + n, "path": f"/l{n % 3}", "tag": f"job {n}"}
        events += [{**event("acquired", n + 0.1, waited=0.5 * (n % 2)), **base}, {**event("released", n + 0.9), **base}]
    world.do("timeline", recorded(*events))
    dom = rendered(world, world.directory / "events.html")
    assert 'data-ready="yes"' in dom
    assert "100,000 events, 3 locks" in dom
