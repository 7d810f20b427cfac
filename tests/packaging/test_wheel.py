"""The packages: complete, reproducible, and usable without anything else."""

from __future__ import annotations

import email
import email.message
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
NAME = f"holdfast-{holdfast.__version__}"
NOT_PACKED = (".ci/", ".github/")


class Built(NamedTuple):
    wheel: Path
    sdist: Path
    unpacked: Path
    sources: list[str]


def sources() -> list[str]:
    """The files of a clean checkout of this working tree, or of an unpacked sdist."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
        return sorted(name for name in listed if name and (ROOT / name).is_file())
    passed_over = {"__pycache__", ".venv", "dist", "build", ".hypothesis"}
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return sorted(name.as_posix() for name in files if not passed_over & {*name.parts})


def build(where: Path, kind: str, **environment: str) -> Path:
    """Build as a packager does: in a directory of its own, by the build backend alone."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(where / "dist")]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    (made,) = (where / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    pytest.importorskip("hatchling", reason="hatchling, the build backend, is in the dependency group `test`")
    checkout, place = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("unpacked")
    listed = sources()
    for name in listed:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, checkout / name)
    sdist = build(checkout, "sdist", TZ="UTC", PYTHONHASHSEED="1", COLUMNS="40", LC_ALL="C")
    wheel = build(checkout, "wheel", TZ="UTC", PYTHONHASHSEED="1", COLUMNS="40", LC_ALL="C")
    with tarfile.open(sdist) as archive:
        # The first releases of 3.11 do not have the argument.
        archive.extractall(place, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    yield Built(wheel, sdist, place / NAME, listed)
    shutil.rmtree(checkout)
    shutil.rmtree(place)


def test_two_builds_of_one_commit_are_the_same(first: Built, tmp_path: Path) -> None:
    """The second is made from the unpacked sdist, with another path, time zone, locale, umask and file times."""
    other = tmp_path / "another name"
    shutil.copytree(first.unpacked, other)
    for path in other.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1, 1))
    zone = {"TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "2", "COLUMNS": "200", "LC_ALL": "C.UTF-8", "FORCE_COLOR": "1"}
    assert build(other, "wheel", **zone).read_bytes() == first.wheel.read_bytes()
    (other / "PKG-INFO").unlink()  # a checkout has none
    shutil.rmtree(other / "dist")
    assert names(build(other, "sdist", **zone)) == names(first.sdist)


def names(sdist: Path) -> dict[str, bytes]:
    with tarfile.open(sdist) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}  # type: ignore[union-attr]


def test_every_file_of_the_repository_is_in_the_sdist(first: Built) -> None:
    packed = {name.removeprefix(f"{NAME}/") for name in names(first.sdist)}
    wanted = {name for name in first.sources if not name.startswith(NOT_PACKED)}
    assert packed - {"PKG-INFO"} == wanted - {"PKG-INFO"}


def test_the_tests_in_the_sdist_run(first: Built) -> None:
    paths = {"PYTHONPATH": str(first.unpacked / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "tests/conformance/test_flock_records.py"]
    done = subprocess.run(command, cwd=first.unpacked, capture_output=True, text=True, env={**os.environ, **paths})
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_every_module_and_py_typed_are_in_the_wheel(first: Built) -> None:
    with zipfile.ZipFile(first.wheel) as wheel:
        packed = {name for name in wheel.namelist() if not name.startswith(NAME)}
        shared = {name.partition("/data/")[2] for name in wheel.namelist() if "/data/" in name}
        points = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
        metadata = email.message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    wanted = {name.removeprefix("src/") for name in first.sources if name.startswith("src/")}
    assert packed == wanted
    assert {"holdfast/py.typed", "holdfast/testing/records.json", "holdfast/cli/page.html"} <= packed
    assert points.split("\n\n") == [
        "[console_scripts]\nholdfast = holdfast.cli:main",
        "[pytest11]\nholdfast = holdfast.pytest\n",
    ]
    assert {"share/man/man1/holdfast.1", "share/man/man1/holdfast-run.1"} <= shared
    assert {"share/bash-completion/completions/holdfast", "share/zsh/site-functions/_holdfast"} <= shared
    assert_told_truly(metadata)


def assert_told_truly(metadata: email.message.Message) -> None:
    assert metadata["Version"] == holdfast.__version__
    assert metadata["Author"] == "holdfast contributors"
    assert metadata["License-Expression"] == "MIT"
    assert not [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line], "no dependencies"
    texts = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    named = {extra for path in texts for extra in re.findall(r"holdfast\[([a-z,]+)\]", path.read_text())}
    assert {one for extra in named for one in extra.split(",")} <= {*metadata.get_all("Provides-Extra", [])}


def test_the_wheel_alone_works_and_names_only_extras_that_exist(first: Built, disk: Path) -> None:
    with zipfile.ZipFile(first.wheel) as wheel:
        wheel.extractall(disk)
    for words, said in {
        ("-m", "holdfast", "--version"): f"holdfast {holdfast.__version__}\n",
        ("-c", 'import holdfast; print(holdfast.Lock("l", timeout=0).acquire())'): f"<holdfast.Hold '{disk}/l' held>\n",
        ("-c", LACKING, "etcd://host:2379/name"): f"etcd: {INSTALL % 'etcd'}\n",
        ("-c", LACKING, "postgresql://host/database#name"): f"postgresql: {INSTALL % 'postgresql'}\n",
    }.items():
        # -S: no other packages are found.
        command = [sys.executable, "-S", *words]
        environment = {**os.environ, "PYTHONPATH": str(disk)}
        done = subprocess.run(command, cwd=disk, capture_output=True, text=True, env=environment)
        assert (done.stdout, done.stderr) == (said, "")


def test_the_conformance_kit_runs_from_a_wheel(first: Built, disk: Path) -> None:
    """In an environment with nothing else: neither pip nor a dependency."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", disk / "venv"], check=True, timeout=60)
    python = disk / "venv" / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    with zipfile.ZipFile(first.wheel) as wheel:
        wheel.extractall(packages)
    shutil.copy(ROOT / "tests" / "conformance" / "samples" / "plain_sema.py", disk)
    only = ["--only", "record:*", "--only", "a-free-lock-is-acquired", "--only", "a-stale-lock-is-reclaimed"]
    command = [python, "-I", "-m", "holdfast.testing.conformance", "--protocol", "sema", *only, "--", python]
    done = subprocess.run([*command, "-I", "plain_sema.py"], cwd=disk, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "sema: 52 passed, 0 failed, 0 skipped"


INSTALL = "pip install '.[%s]' in a clone of holdfast"
LACKING = """
import sys, holdfast
try:
    holdfast.Lock(sys.argv[1])
except holdfast.EngineUnavailable as error:
    print(error.protocol, str(error)[str(error).index("pip") :], sep=": ")
"""
