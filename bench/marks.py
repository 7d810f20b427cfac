"""Text between two marks of a page, which a program renews: `<!-- name -->` … `<!-- /name -->`."""

from __future__ import annotations

from procs import Failed


def between(text: str, mark: str, content: str, page: str) -> str:
    """The page with `content` between the marks. `Failed` if it has no place for it."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise Failed(f"{page} has no place for a table: no {begin.strip()} or no {end} after it")
    return f"{head}{begin}{content}\n{end}{tail}"
