"""The conformance kit: it passes what is sound, finds what is broken, never hangs and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from conformance.kit import DEPENDS_ON_THE_MACHINE, SAMPLES, Kit, failures, processes_of, skipped
from conformance.samples.faults import HOLDFAST, PLAIN_SEMA, SEMA_FOR_SEMATS, Fault
from holdfast.testing.conformance import report
from holdfast.testing.conformance.dialects import DIALECTS
from holdfast.testing.conformance.runner import scenarios
from process.support import eventually

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
HOLDFAST_ADAPTER, PLAIN = SAMPLES / "holdfast_adapter.py", SAMPLES / "plain_sema.py"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return Kit(temporary)


def broken(source: Path, fault: Fault, directory: Path) -> Path:
    """The source with a fault, as a script."""
    text = source.read_text()
    for old, new in fault.changes:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    script = directory / "broken.py"
    script.write_text(text)
    return script


def finds(kit: Kit, protocol: str, fault: Fault, script: Path, *arguments: str) -> None:
    only = [word for name in fault.found_by for word in ("--only", name)]
    python = [sys.executable] if arguments else [sys.executable, "-S"]  # the plain one needs nothing that is installed
    limit = ("--timeout", "3") if "in time" in fault.says or "stale" in fault.says else ()
    status, results = kit.results(protocol, *only, *limit, "--", *python, script, *arguments)
    failed = failures(results)
    assert (status, failed.keys()) == (1, set(fault.found_by))
    for name in failed:
        assert results[name]["expected"]
        assert results[name]["happened"]
    said = "".join(failed.values()) + "".join(str(bytes.fromhex(r["found"] or "")) for r in results.values())
    assert fault.says in said
    assert not processes_of(script)


# -- what is sound -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", DIALECTS)
def test_holdfast_does_not_keep_to_a_protocol(kit: Kit, protocol: str) -> None:
    status, results = kit.results(protocol, "--", sys.executable, HOLDFAST_ADAPTER, protocol)
    assert not failures(results)
    assert skipped(results) <= DEPENDS_ON_THE_MACHINE
    assert status == 0
    assert len(results) == len(scenarios(protocol)) > 60
    assert not processes_of(HOLDFAST_ADAPTER)


def test_the_example_of_the_page_does_not_work(kit: Kit) -> None:
    status, results = kit.results("sema", "--", sys.executable, "-S", PLAIN)
    assert not failures(results)
    assert status == 0
    releases = {"release-removes-the-lock-file", "release-of-a-free-lock-makes-nothing"}
    assert skipped(results) - DEPENDS_ON_THE_MACHINE == releases
    assert all("release" in results[name]["happened"] for name in releases)


def test_the_example_of_the_page_is_not_the_one_that_was_tested() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert PLAIN.read_text() in blocks


def test_an_adapter_without_abilities_is_not_asked_for_what_each_has(kit: Kit, tmp_path: Path) -> None:
    script = tmp_path / "adapter.py"
    script.write_text(PLAIN.read_text().replace('operation == "abilities"', "False").replace("decode-lines", "-"))
    only = ("--only", "record:sema-c*", "--only", "a-free*")
    status, results = kit.results("sema", *only, "--", sys.executable, script)
    assert (status, len(results)) == (0, 6)
    assert not skipped(results)


# -- what is broken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN_SEMA)
def test_a_broken_implementation_passes(kit: Kit, tmp_path: Path, name: str) -> None:
    finds(kit, "sema", PLAIN_SEMA[name], broken(PLAIN, PLAIN_SEMA[name], tmp_path))


@pytest.mark.parametrize(
    ("protocol", "name"), [(protocol, name) for protocol in HOLDFAST for name in HOLDFAST[protocol]]
)
def test_a_broken_one_of_another_protocol_passes(kit: Kit, tmp_path: Path, protocol: str, name: str) -> None:
    fault = HOLDFAST[protocol][name]
    finds(kit, protocol, fault, broken(HOLDFAST_ADAPTER, fault, tmp_path), protocol)


def test_sema_passes_for_semats(kit: Kit) -> None:
    """Same records, other rules: what each scenario is for shows in what the wrong implementation fails."""
    only = [word for name in SEMA_FOR_SEMATS for word in ("--only", name)]
    _, results = kit.results("semats", *only, "--", sys.executable, "-S", PLAIN)
    assert failures(results).keys() | (skipped(results) & DEPENDS_ON_THE_MACHINE) == SEMA_FOR_SEMATS


def test_a_failure_does_not_say_what_was_found(kit: Kit, tmp_path: Path) -> None:
    script = broken(PLAIN, PLAIN_SEMA["writes blanks"], tmp_path)
    status, said, _ = kit.run("--protocol", "sema", "--only", "a-free-lock-is-acquired", "--", sys.executable, script)
    assert status == 1
    rows = said.splitlines()
    assert rows[0] == "FAIL a-free-lock-is-acquired"
    assert [row.split()[0] for row in rows[1:5]] == ["why", "expected", "happened", "found"]
    assert "b'pid = " in rows[4]
    assert rows[-1] == "sema: 0 passed, 1 failed, 0 skipped"


# -- whatever an adapter does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_kit_leaves_processes_or_files(kit: Kit, tmp_path: Path, number: int) -> None:
    script = broken(PLAIN, PLAIN_SEMA["does not end"], tmp_path)
    process = kit.start("--protocol", "sema", "--timeout", "60", "--only", "a-*", "--", sys.executable, script)
    try:
        eventually(lambda: processes_of(script) and list(kit.temporary.iterdir()))
        process.send_signal(number)
        assert process.wait(15) == 130
        assert not processes_of(script)
        assert not list(kit.temporary.iterdir())
    finally:
        process.kill()
        process.communicate()


def test_processes_that_an_adapter_starts_are_left(kit: Kit, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys\n"
        "if len(sys.argv) > 1: subprocess.Popen([sys.executable, __file__])\n"
        "import time; time.sleep(1000)\n"
    )
    only = ("--only", "a-free-lock-is-acquired", "--timeout", "1")
    status, results = kit.results("sema", *only, "--", sys.executable, script)
    assert (status, len(failures(results))) == (1, 1)
    assert not processes_of(script)


def test_an_adapter_that_never_stops_talking_fills_the_memory(kit: Kit, tmp_path: Path) -> None:
    script = tmp_path / "talker.py"
    script.write_text("import sys\nwhile True: sys.stdout.write('x' * 65536)\n")
    only = ("--only", "a-free-lock-is-acquired", "--timeout", "1")
    status, results = kit.results("sema", *only, "--", sys.executable, script)
    assert (status, len(failures(results))) == (1, 1)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--protocol"),
        (["--protocol", "flock", "--", "true"], "flock"),
        (["--protocol", "sema"], "command of an adapter is missing"),
        (["--protocol", "sema", "--"], "command of an adapter is missing"),
        (["--protocol", "sema", "--only", "no-such", "--", "true"], "no-such"),
        (["--protocol", "sema", "--timeout", "0", "--", "true"], "--timeout"),
        (["--protocol", "sema", "--timeout", "nan", "--", "true"], "--timeout"),
        (["--protocol", "sema", "--jobs", "0", "--", "true"], "--jobs"),
        (["--protocol", "sema", "--", "/no/such/command"], "cannot be run"),
        (["--protocol", "sema", "--", "/"], "cannot be run"),
    ],
)
def test_a_mistake_in_the_arguments_passes_for_a_result(kit: Kit, arguments: list[str], complaint: str) -> None:
    status, said, complained = kit.run(*arguments)
    assert (status, said) == (2, "")
    assert complaint in complained


def test_the_list_runs_something(kit: Kit) -> None:
    status, said, _ = kit.run("--protocol", "beads", "--list", "--", "/no/such/command")
    assert status == 0
    assert re.findall(r"^\S+", said, re.MULTILINE) == [each.name for each in scenarios("beads")]


def test_two_scenarios_have_one_name_or_no_reason() -> None:
    for protocol in DIALECTS:
        every = scenarios(protocol)
        assert len({each.name for each in every}) == len(every)
        assert all(re.fullmatch(r"[A-Z0`].*\.", each.why) for each in every)


def test_the_page_lists_other_scenarios() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- scenarios -->\n")
    assert rest.strip() == report.as_markdown().strip()
