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
MAKE = """
import pathlib, sys
import manual
from holdfast.cli import completion
from holdfast.cli.completion import commands
place = pathlib.Path(sys.argv[1])
manual.write(place / "man")
for shell in sys.argv[2:]:
    script = getattr(completion, shell)(commands())
    (place / shell).write_text(script + "\\n", encoding="utf-8", newline="\\n")
"""


class Hook(BuildHookInterface[Any]):
    _made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return  # an editable installation has no use for pages that do not change with its source
        made = self._made = Path(tempfile.mkdtemp(prefix="holdfast-build-"))
        # Nothing of who builds it, and where, gets into the result: no width of a terminal, no colours, no language.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(Path(self.root, place)) for place in ("src", "docs/_site")),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "LC_ALL": "C",
        }
        subprocess.run([sys.executable, "-c", MAKE, str(made), *COMPLETIONS], env=environment, check=True)
        shared = build_data["shared_data"]
        shared.update({str(made / shell): place for shell, place in COMPLETIONS.items()})
        shared.update({str(page): f"share/man/man1/{page.name}" for page in sorted((made / "man").iterdir())})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        if self._made is not None:
            shutil.rmtree(self._made)
