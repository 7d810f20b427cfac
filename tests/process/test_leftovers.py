"""Whatever a run of the tests leaves behind fails it (leftovers.py); leftovers of other runs do not."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import leftovers
import places
from process.support import state

TESTS = Path(leftovers.__file__).parent

CONFTEST = """
    import leftovers

    leftovers.GRACE = 1.0

    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            leftovers.begin(config)
"""
LEAVES = """
    import os, subprocess, sys, tempfile
    from pathlib import Path
    import pytest
    import places

    root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

    DAEMON = '''
    import os, signal
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execve("/bin/sleep", ["sleep", "1000"], {})
    '''

    def test_a_process():
        subprocess.Popen(["sleep", "2000"])

    def test_a_daemon():
        subprocess.run([sys.executable, "-c", __import__("textwrap").dedent(DAEMON)], check=True)

    def test_files(tmp_path):
        (tmp_path / "of pytest").touch()
        tempfile.mkdtemp(prefix="temporary-")
        tempfile.mkdtemp(prefix="on-disk-", dir=places.disk())
        if places.memory():
            Path(places.memory(), "in-memory").touch()

    @root
    def test_a_mount(tmp_path):
        subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)

    @root
    def test_a_loop_device():
        with open(os.path.join(places.disk(), "image"), "wb") as image:
            image.truncate(1 << 20)
        subprocess.run(["losetup", "--find", image.name], check=True)

    @root
    def test_a_namespace():
        subprocess.Popen(["unshare", "--net", "sleep", "3000"])

    @root
    def test_a_namespace_with_a_name():
        file = Path(places.disk(), "namespace")
        file.touch()
        subprocess.run(["unshare", f"--uts={file}", "true"], check=True)
"""
TIDY = """
    import subprocess, tempfile

    def test_that_tidies_up(tmp_path):
        (tmp_path / "of pytest").touch()
        with tempfile.TemporaryDirectory(), subprocess.Popen(["sleep", "1000"]) as process:
            process.kill()

    def test_a_process_that_is_about_to_end():
        subprocess.Popen(["sleep", "0.5"])

    def test_multiprocessing():
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(len, ["four"]) == [4]
"""
FAILS = """
    def test_that_fails(tmp_path):
        (tmp_path / "evidence").touch()
        assert False
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntmp_path_retention_policy = "failed"\n')
    (tmp_path / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    for name in ("temporary", "bystander"):
        (tmp_path / name).mkdir()
    return tmp_path


def play(project: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run these tests in a process of their own."""
    (project / "test_some.py").write_text(textwrap.dedent(tests))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    environment |= {"PYTHONPATH": str(TESTS), "TMPDIR": str(project / "temporary"), "COLUMNS": "300"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, project]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600)


def directories(project: Path) -> list[Path]:
    parents = (project / "temporary", Path("/var/tmp"), Path("/dev/shm"))
    return [path for parent in parents for path in parent.glob("holdfast-*") if path.name != f"holdfast-{ours()}"]


def ours() -> str:
    return os.environ[places.RUN]


@pytest.fixture
def bystander(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of another run, with a file of its own."""
    number = leftovers.BASE + 0xABCDE

    def mark() -> None:
        resource.setrlimit(resource.RLIMIT_RTTIME, (number, resource.RLIM_INFINITY))

    (project / "temporary" / "holdfast-00000abcde").mkdir()
    with subprocess.Popen(["sleep", "1000"], preexec_fn=mark) as process:
        yield process
        assert process.poll() is None, "the end of one run has ended a process of another"
        process.kill()
    assert (project / "temporary" / "holdfast-00000abcde").exists()


def test_every_kind_of_leftover_is_reported(project: Path) -> None:
    """LO1, LO2, LO3, LO5."""
    done = play(project, LEAVES, "-n", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    wanted = {
        "test_a_process": r"process \d+ \(sleep 2000\), \d+ s old, in /\S+",
        "the tests": r"process \d+ \(sleep 1000\), \d+ s old, in /\S+",
        "the tests ": r"directory \S+/temporary-\w+, changed \d+ s ago, empty",
        "the tests  ": r"directory \S+/on-disk-\w+, changed \d+ s ago, empty",
    }
    if places.memory():
        wanted["the tests   "] = r"file \S+/in-memory, changed \d+ s ago"
    if os.geteuid() == 0:
        wanted["the tests    "] = r"mount \S+/test_a_mount0 \(tmpfs\)"
        wanted["the tests     "] = r"loop device /dev/loop\d+ of \S+/image"
        wanted["test_a_namespace"] = r"process \d+ \(sleep 3000\), .*, with namespaces of its own: net"
        wanted["the tests      "] = r"mount \S+/namespace \(a namespace\)"
    for test, what in wanted.items():
        name = re.escape(test.strip())
        assert re.search(rf"(?m)^ERROR (?:\S+::)?{name} - left behind: {what}$", done.stdout), (test, done.stdout)
    assert " passed, " in done.stdout
    files = 2 if os.geteuid() == 0 else 0  # those of the loop device and of the namespace
    assert f"{len(wanted) + files} errors in " in done.stdout, done.stdout
    for pid in re.findall(r"left behind: process (\d+)", done.stdout):
        assert state(int(pid)) in ("", "Z"), "what was left runs on"
    for directory in directories(project):
        if re.search(rf"left behind: .*{re.escape(str(directory))}/", done.stdout):
            shutil.rmtree(directory)  # which shows that nothing is mounted there


def test_a_tidy_run_is_not_blamed(project: Path, bystander: subprocess.Popen[bytes]) -> None:
    """LO2, LO4: neither for what another run has, nor for what is about to end, or ends with this interpreter."""
    done = play(project, TIDY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (project / "temporary").iterdir()] == ["holdfast-00000abcde"]


def test_an_empty_run_is_not_blamed(project: Path) -> None:
    done = play(project, TIDY, "-k", "nonesuch")
    assert done.returncode == 5, done.stdout
    assert list((project / "temporary").iterdir()) == []


def test_the_evidence_of_a_failure_is_kept_and_not_reported_as_a_leftover(project: Path) -> None:
    done = play(project, FAILS)
    assert (done.returncode, done.stdout.count("left behind")) == (1, 0), done.stdout
    (evidence,) = (project / "temporary").rglob("evidence")
    assert evidence.parent.name == "test_that_fails0"


def test_temporary_files_are_made_only_in_known_places() -> None:
    """LO2: any place other than `tempfile`'s default is one of `places`."""
    named = re.compile(r"""dir=(?!places\.)\S*["']/(?:tmp|var/tmp|dev/shm)\b""")
    sources = [path for path in TESTS.rglob("*.py") if path.name not in ("container.py", "faults_table.py")]
    assert not [str(path) for path in sources if named.search(path.read_text())]
