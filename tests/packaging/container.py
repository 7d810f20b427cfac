"""Builds the Containerfile without a container tool: each stage is a directory, each RUN a shell in a chroot.

    python tests/packaging/container.py BASE [WORD ...]

BASE is the root of the image that the recipe starts from: `debootstrap --variant=minbase bookworm BASE` makes it. In
the built image, WORD ... is run as its ENTRYPOINT would run it, as its USER. Needs root and, as any build of it, a
network. It knows the instructions of the recipe, and stops at any other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line.strip()]


class Image:
    """A stage: its root, and the state that the next instruction finds."""

    def __init__(self, base: Path, root: Path) -> None:
        subprocess.run(["cp", "-a", base, root], check=True)
        shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
        self.root, self.directory, self.user = root, "/", "root"
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        # What reaches registries from here does so from a build, too: by the same proxies and authorities.
        self.environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        if authorities := os.environ.get("PIP_CERT"):
            shutil.copyfile(authorities, root / "etc/authorities.pem")
            self.environment["PIP_CERT"] = "/etc/authorities.pem"
        self.entry: list[str] = []

    def run(self, *words: str) -> int:
        command = [
            "/usr/sbin/chroot",
            f"--userspec={self.user}",
            str(self.root),
            "/usr/bin/env",
            "-C",
            self.directory,
            *words,
        ]
        return subprocess.run(command, env=self.environment).returncode

    def copy(self, sources: list[Path], to: str) -> None:
        target = self.root / os.path.join(self.directory, to).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        for source in sources:
            inside = source.is_file()
            subprocess.run(["cp", "-a", source, target / source.name if inside else target], check=True)


def build(base: Path, place: Path) -> Image:
    stages: dict[str, Image] = {}
    image: Image | None = None
    for word, rest in instructions():
        if word == "FROM":
            image = stages[rest.partition(" AS ")[2]] = Image(base, place / f"stage{len(stages)}")
            continue
        assert image is not None
        if word == "RUN":
            if image.run("/bin/sh", "-ec", rest) != 0:
                sys.exit(f"failed: RUN {rest}")
        elif word == "COPY":
            *names, to = rest.split()
            stage = names.pop(0).partition("=")[2] if names[0].startswith("--from=") else ""
            where = stages[stage].root if stage else ROOT
            image.copy([where / name.lstrip("/") for name in names], to)
        elif word == "WORKDIR":
            image.directory = rest
            (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word in ("ENV", "ARG"):
            name, _, value = rest.partition("=")
            image.environment[name] = os.environ.get(name, value) if word == "ARG" else value
        elif word == "USER":
            image.user = rest
        elif word == "ENTRYPOINT":
            image.entry = json.loads(rest)
        elif word != "CMD":
            sys.exit(f"no such instruction: {word}")
    assert image is not None
    return image


if __name__ == "__main__":
    made = Path(tempfile.mkdtemp(prefix="holdfast-container-", dir="/var/tmp"))
    try:
        sys.exit((image := build(Path(sys.argv[1]), made)).run(*image.entry, *sys.argv[2:]))
    finally:
        shutil.rmtree(made)
