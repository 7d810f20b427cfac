"""Manual pages and completions in the wheel, where `man` and shells look: made from what `--help` is made of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETIONS = {
    "bash": "share/bash-completion/completions/holdfast",
    "zsh": "share/zsh/site-functions/_holdfast",
    "fish": "share/fish/vendor_completions.d/holdfast.fish",
}


class Hook(BuildHookInterface[Any]):
    _made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return  # an editable installation has no use for pages that do not change with its source
        made = self._made = Path(tempfile.mkdtemp(prefix="holdfast-build-"))
        self._run("holdfast.cli.manual", str(made / "man"))
        shared = build_data["shared_data"]
        for page in sorted((made / "man").iterdir()):
            shared[str(page)] = f"share/man/man1/{page.name}"
        for shell, place in COMPLETIONS.items():
            (made / shell).write_text(self._run("holdfast", "completion", shell), encoding="utf-8", newline="\n")
            shared[str(made / shell)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if self._made is not None:
            shutil.rmtree(self._made)

    def _run(self, module: str, *arguments: str) -> str:
        # Nothing of who builds it, and where, gets into the result: no width of a terminal, no colours, no language.
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(self.root, "src")),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "LC_ALL": "C",
        }
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
