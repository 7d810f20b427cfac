from __future__ import annotations
from pathlib import Path
from typing import Any
def fill(page: Path, report: dict[str, Any]) -> None: ...
