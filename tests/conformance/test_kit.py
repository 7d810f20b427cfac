"""The conformance kit passes sound implementations, finds broken ones, never hangs and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.kit import DEPENDS_ON_THE_MACHINE, SAMPLES, Kit, Results, failures, processes_of, results, skipped
from conformance.samples.faults import HOLDFAST, PLAIN_DIRECTORIES, PLAIN_SEMA, SEMA_FOR_SEMATS, SLOWLY_FOUND, Fault
from holdfast.testing.conformance import bench, holding, runner
from holdfast.testing.conformance.adapter import Adapter
from holdfast.testing.conformance.dialects import DIALECTS
from holdfast.testing.conformance.runner import scenarios
from process.support import eventually

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
HOLDFAST_ADAPTER, PLAIN = SAMPLES / "holdfast_adapter.py", SAMPLES / "plain_sema.py"
DIRECTORIES = SAMPLES / "plain_directories.py"


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


def looking_for(fault: Fault, script: Path, *arguments: str) -> list[object]:
    """The kit's arguments, except the protocol."""
    only = [word for name in fault.found_by for word in ("--only", name)]
    python = [sys.executable] if arguments else [sys.executable, "-S"]  # the plain one needs nothing that is installed
    limit = ("--timeout", "3") if "in time" in fault.says or "stale" in fault.says else ()
    return [*only, *limit, "--", *python, script, *arguments]


def finds(fault: Fault, script: Path, found: Results) -> None:
    status, results = found
    failed = failures(results)
    assert (status, failed.keys()) == (1, set(fault.found_by))
    for name in failed:
        assert results[name]["expected"]
        assert results[name]["happened"]
    said = "".join(failed.values()) + "".join(str(bytes.fromhex(r["found"] or "")) for r in results.values())
    assert fault.says in said
    eventually(lambda: not processes_of(script), what="the end of all that was killed")


# -- sound implementations ---------------------------------------------------------------------------------------------


def test_holdfast_conforms_to_every_protocol(tmp_path: Path) -> None:
    """All runs at once, as each mostly waits at times."""
    running = {}
    for protocol in DIALECTS:
        (tmp_path / protocol).mkdir()
        kit = Kit(tmp_path / protocol)
        command = ("--jobs", "2", "--", sys.executable, HOLDFAST_ADAPTER, protocol)
        running[protocol] = kit, kit.start("--protocol", protocol, "--json", *command)
    ended = {protocol: kit.finish(process) for protocol, (kit, process) in running.items()}
    for protocol in DIALECTS:
        status, found = results(protocol, *ended[protocol])
        assert not failures(found), protocol
        assert skipped(found) <= DEPENDS_ON_THE_MACHINE, protocol
        assert status == 0
        assert len(found) == len(scenarios(protocol)) > (20 if protocol == "proper-lockfile" else 60)
    eventually(lambda: not processes_of(HOLDFAST_ADAPTER), what="the end of all that was killed")


def test_the_example_of_the_page_works(kit: Kit) -> None:
    """It does not serve: each question starts a process."""
    status, results = kit.results("sema", "--", sys.executable, "-S", PLAIN)
    assert not failures(results)
    assert status == 0
    releases = {"release-removes-the-lock-file", "release-of-a-free-lock-makes-nothing"}
    assert skipped(results) - DEPENDS_ON_THE_MACHINE == releases
    assert all("release" in results[name]["happened"] for name in releases)


def test_the_example_of_the_page_is_the_one_that_was_tested() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert PLAIN.read_text() in blocks


def test_an_implementation_that_never_reclaims_passes(kit: Kit, tmp_path: Path) -> None:
    """Sections 6 and 9 of the page of sema permit that. The kit asks only for the abilities that it declares."""
    script = broken(PLAIN, PLAIN_SEMA["never reclaims"], tmp_path)
    script.write_text(script.read_text().replace("hold reclaim try", "hold try"))
    command = ("--", sys.executable, "-S", script)
    only = ("--only", "a-stale-*", "--only", "a-lock-is-stale-*", "--only", "two-who-*", "--only", "a-free-lock-*")
    status, results = kit.results("sema", *only, *command)
    assert not failures(results)
    assert status == 0
    reclaiming = {name for name in results if not name.startswith("a-free-lock")}
    assert skipped(results) == reclaiming
    assert len(reclaiming) == 4
    assert all("reclaim" in results[name]["happened"] for name in reclaiming)


def test_the_example_in_node_works(kit: Kit) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    status, results = kit.results("sema", "--", node, SAMPLES / "plain_sema.mjs")
    assert not failures(results)
    assert status == 0
    assert {results[name]["happened"].rpartition(" ")[2] for name in skipped(results) - DEPENDS_ON_THE_MACHINE} == {
        "reclaim",
        "release",
    }


def test_the_example_in_node_is_the_one_that_was_tested() -> None:
    blocks = re.findall(r"^```js\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert (SAMPLES / "plain_sema.mjs").read_text() in blocks


def test_an_adapter_without_abilities_gets_the_scenarios_that_need_none(kit: Kit, tmp_path: Path) -> None:
    script = tmp_path / "adapter.py"
    script.write_text(PLAIN.read_text().replace('operation == "abilities"', "False").replace("decode-lines", "-"))
    only = ("--only", "record:sema-c*", "--only", "a-free*")
    status, results = kit.results("sema", *only, "--", sys.executable, script)
    assert (status, len(results)) == (0, 6)
    assert not skipped(results)


# -- broken implementations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PLAIN_SEMA if name not in SLOWLY_FOUND])
def test_no_broken_implementation_passes(kit: Kit, tmp_path: Path, name: str) -> None:
    fault = PLAIN_SEMA[name]
    script = broken(PLAIN, fault, tmp_path)
    finds(fault, script, kit.results("sema", *looking_for(fault, script)))


def test_no_broken_implementation_passes_the_slow_scenarios(tmp_path: Path) -> None:
    all_are_found("sema", PLAIN, [PLAIN_SEMA[name] for name in SLOWLY_FOUND], tmp_path)


def test_no_broken_implementation_of_directories_passes(kit: Kit, tmp_path: Path) -> None:
    """And the sound one does."""
    status, found = kit.results("proper-lockfile", "--", sys.executable, "-S", DIRECTORIES)
    assert not failures(found)
    assert (status, skipped(found)) == (0, set())
    all_are_found("proper-lockfile", DIRECTORIES, [*PLAIN_DIRECTORIES.values()], tmp_path / "broken")


def all_are_found(protocol: str, source: Path, faults: list[Fault], place: Path) -> None:
    """Run the kit on all of them at once, as most runs only wait."""
    running = []
    for number, fault in enumerate(faults):
        directory = place / str(number)
        (directory / "tmp").mkdir(parents=True)
        kit = Kit(directory / "tmp")
        script = broken(source, fault, directory)
        process = kit.start("--protocol", protocol, "--json", *looking_for(fault, script))
        running.append((kit, process, fault, script))
    ended = [kit.finish(process) for kit, process, _, _ in running]
    for (_, _, fault, script), answer in zip(running, ended, strict=True):
        finds(fault, script, results(protocol, *answer))


@pytest.mark.parametrize(
    ("protocol", "name"), [(protocol, name) for protocol in HOLDFAST for name in HOLDFAST[protocol]]
)
def test_no_broken_implementation_of_another_protocol_passes(
    kit: Kit, tmp_path: Path, protocol: str, name: str
) -> None:
    fault = HOLDFAST[protocol][name]
    script = broken(HOLDFAST_ADAPTER, fault, tmp_path)
    finds(fault, script, kit.results(protocol, *looking_for(fault, script, protocol)))


def test_sema_does_not_pass_for_semats(kit: Kit) -> None:
    """The records are the same and the rules differ; the failures are those of the scenarios that test the rules."""
    only = [word for name in SEMA_FOR_SEMATS for word in ("--only", name)]
    _, results = kit.results("semats", *only, "--", sys.executable, "-S", PLAIN)
    assert failures(results).keys() | (skipped(results) & DEPENDS_ON_THE_MACHINE) == SEMA_FOR_SEMATS


def test_a_failure_shows_the_content_found(kit: Kit, tmp_path: Path) -> None:
    script = broken(PLAIN, PLAIN_SEMA["writes blanks"], tmp_path)
    only = ("--only", "a-free-lock-is-acquired")
    status, said, _ = kit.finish(kit.start("--protocol", "sema", *only, "--", sys.executable, script))
    assert status == 1
    rows = said.splitlines()
    assert rows[0] == "FAIL a-free-lock-is-acquired"
    assert [row.split()[0] for row in rows[1:5]] == ["why", "expected", "happened", "found"]
    assert "b'pid = " in rows[4]
    assert rows[-1] == "sema: 0 passed, 1 failed, 0 skipped"


# -- faulty adapters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_kit_leaves_neither_processes_nor_files(kit: Kit, tmp_path: Path, number: int) -> None:
    script = broken(PLAIN, PLAIN_SEMA["does not end"], tmp_path)
    process = kit.start("--protocol", "sema", "--timeout", "60", "--only", "a-*", "--", sys.executable, script)
    try:
        eventually(lambda: processes_of(script) and list(kit.temporary.iterdir()))
        process.send_signal(number)
        assert process.wait(15) == 130
        eventually(lambda: not processes_of(script), what="the end of all that was killed")
        assert not list(kit.temporary.iterdir())
    finally:
        process.kill()
        process.communicate()


def test_processes_that_an_adapter_starts_are_ended(kit: Kit, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys\n"
        "if 'abilities' in sys.argv: sys.exit(1)\n"
        "if len(sys.argv) > 1: subprocess.Popen([sys.executable, __file__])\n"
        "import time; time.sleep(1000)\n"
    )
    only = ("--only", "a-free-lock-is-acquired", "--timeout", "1")
    status, results = kit.results("sema", *only, "--", sys.executable, script)
    assert (status, len(failures(results))) == (1, 1)
    eventually(lambda: not processes_of(script), what="the end of all that was killed")


def test_an_adapter_that_never_stops_talking_fails(kit: Kit, tmp_path: Path) -> None:
    script = tmp_path / "talker.py"
    script.write_text("import sys\nwhile True: sys.stdout.write('x' * 65536)\n")
    only = ("--only", "a-free-lock-is-acquired", "--timeout", "1")
    status, results = kit.results("sema", *only, "--", sys.executable, script)
    assert (status, len(failures(results))) == (1, 1)


def test_an_answer_that_is_nested_too_deep_fails(kit: Kit, tmp_path: Path) -> None:
    script = tmp_path / "deep.py"
    script.write_text("print('[' * 200000)\n")
    status, results = kit.results("sema", "--only", "record:sema-canonical*", "--", sys.executable, script)
    assert status == 1
    assert failures(results).keys() == results.keys()


# -- an adapter that serves --------------------------------------------------------------------------------------------


SERVES = (
    "import os, sys\nfor line in iter(sys.stdin.readline, ''): line.strip() and os.write(1, b'refused\\nexit 1\\n')\n"
)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[[str], Adapter]]:
    adapters = []

    def adapter(program: str) -> Adapter:
        script = tmp_path / f"serves{len(adapters)}.py"
        script.write_text(program)
        adapters.append(Adapter([sys.executable, "-S", str(script)], abilities=frozenset({"try", "serve"})))
        return adapters[-1]

    yield adapter
    for each in adapters:
        each.close()
    scripts = [Path(each.command[-1]) for each in adapters]
    eventually(lambda: not any(map(processes_of, scripts)), what="the end of all that was killed")


def pid_of_answer(adapter: Adapter) -> int:
    """The process that has refused one more question."""
    asked = adapter.ask("try", "/x")
    assert str(asked.answer(10)) == "it said 'refused' and exited with 1"
    adapter.end(asked)
    return asked.pid


def test_an_adapter_that_serves_is_started_once(serving: Callable[[str], Adapter]) -> None:
    adapter = serving(SERVES)
    assert len({pid_of_answer(adapter) for _ in range(20)}) == 1


def test_simultaneous_questions_each_have_a_process_of_their_own(serving: Callable[[str], Adapter]) -> None:
    adapter = serving(SERVES)
    asked = [adapter.ask("try", "/x") for _ in range(3)]
    assert len({running.pid for running in asked}) == 3
    for running in asked:
        assert running.answer(10).status == 1
        adapter.end(running)


def test_a_late_line_is_not_taken_for_the_answer_to_the_next_question(serving: Callable[[str], Adapter]) -> None:
    adapter = serving(SERVES.replace("exit 1", "exit 1\\nheld"))
    assert len({pid_of_answer(adapter) for _ in range(3)}) == 3


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_process_that_has_ended_is_not_asked(serving: Callable[[str], Adapter], name: str) -> None:
    adapter = serving(SERVES)
    first = pid_of_answer(adapter)
    os.kill(first, getattr(signal, name))
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert pid_of_answer(adapter) != first


def test_a_process_that_does_not_end_is_asked_nothing_else(serving: Callable[[str], Adapter]) -> None:
    adapter = serving(SERVES.replace("exit 1", "exit one"))
    asked = adapter.ask("try", "/x")
    assert asked.line(10) == "refused"
    assert asked.ended(0) is None
    adapter.end(asked)
    eventually(lambda: not processes_of(Path(adapter.command[-1])), what="the end of all that was killed")


def test_a_process_that_talks_without_end_is_given_up(serving: Callable[[str], Adapter]) -> None:
    adapter = serving("import sys\nwhile True: sys.stdout.write('held\\n' * 9999)\n")
    asked = adapter.ask("try", "/x")
    assert asked.answer(10).line == "held"
    assert asked.ended(0) is None
    adapter.end(asked)
    eventually(lambda: not processes_of(Path(adapter.command[-1])), what="the end of all that was killed")


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
def test_a_mistake_in_the_arguments_does_not_pass_for_a_result(kit: Kit, arguments: list[str], complaint: str) -> None:
    status, said, complained = kit.run(*arguments)
    assert (status, said) == (2, "")
    assert complaint in complained


def test_the_list_runs_nothing(kit: Kit) -> None:
    status, said, _ = kit.run("--protocol", "beads", "--list", "--", "/no/such/command")
    assert status == 0
    assert re.findall(r"^\S+", said, re.MULTILINE) == [each.name for each in scenarios("beads")]


def test_every_scenario_has_its_own_name_and_a_reason() -> None:
    for protocol in DIALECTS:
        every = scenarios(protocol)
        assert len({each.name for each in every}) == len(every)
        assert all(re.fullmatch(r"[A-Z0`].*\.", each.why) for each in every)


def test_the_page_lists_the_scenarios() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- scenarios -->\n")
    assert rest.strip() == _as_markdown()


def _as_markdown() -> str:
    """The list of scenarios as docs/conformance.md has it."""
    rows = []
    for subject in runner.SUBJECTS:
        title = re.sub(r"^Scenarios (of|with) |[:,.].*", "", (subject.__doc__ or "").splitlines()[0])
        rows += [f"### {title[:1].upper()}{title[1:]}", "", "| scenario | protocols | why |", "|---|---|---|"]
        for each in bench.SCENARIOS:
            if each.run.__module__ == subject.__name__:
                named = [name for name in DIALECTS if name in each.protocols]
                protocols = "all" if len(named) == len(DIALECTS) else ", ".join(named)
                protocols = "all files" if tuple(named) == holding.ALL else protocols
                care = "" if each.basis == "letter" else " *(care)*"
                rows.append(f"| `{each.name}`{care} | {protocols} | {each.why} |")
        rows.append("")
    counts = ", ".join(f"{len(bench.load(name))} of {name}" for name in holding.ALL)
    return "\n".join([*rows, f"And `record:…`, one for each vector: {counts}."])
