"""Follows every link of the built site, and makes sure that no page asks another host for anything: `check.py SITE`."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"src", "srcset", "data", "poster"}
_LOADING_LINKS = {
    "stylesheet",
    "icon",
    "preconnect",
    "dns-prefetch",
    "preload",
    "modulepreload",
    "prefetch",
    "manifest",
}
_CSS_URL = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""")
_LIST_IN_PROSE = re.compile(r"<p>(?:(?!</p>).)*\n(?:[-*]|\d+\.) ", re.DOTALL)


class Html(HTMLParser):
    """What a page leads to, what it loads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        self.loads += [given[name] for name in _LOADED if given.get(name)]
        self.loads += _CSS_URL.findall(given.get("style", ""))
        if "mermaid" in given.get("class", "").split():
            self.loads.append("https://unpkg.com: the theme fetches what draws this diagram")
        if href := given.get("href"):
            if tag == "link" and _LOADING_LINKS.intersection(given.get("rel", "").split()):
                self.loads.append(href)
            elif tag in ("a", "area", "use", "link"):
                self.links.append(href)


def problems(site: Path) -> list[str]:
    """What is wrong, each with its page."""
    pages = {path: Html(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found += [f"{name}: {why}: {link}" for link in page.links if (why := _broken(site, path, link, pages))]
        found += [f"{name}: is loaded from another host: {url}" for url in page.loads if _is_elsewhere(url)]
        found += [f"{name}: is not there: {url}" for url in page.loads if _is_missing(site, path, url)]
        if _LIST_IN_PROSE.search(path.read_text(encoding="utf-8")):
            found.append(f"{name}: a list without a blank line before it")
    for path in sorted(site.rglob("*.css")):
        urls = _CSS_URL.findall(path.read_text(encoding="utf-8"))
        name = path.relative_to(site).as_posix()
        found += [f"{name}: is loaded from another host: {url}" for url in urls if _is_elsewhere(url)]
    return found


def _is_elsewhere(url: str) -> bool:
    return url.startswith("//") or urlsplit(url).scheme in ("http", "https")


def _file(site: Path, page: Path, path: str) -> Path:
    return site / unquote(path).lstrip("/") if path.startswith("/") else (page.parent / unquote(path)).resolve()


def _is_missing(site: Path, page: Path, url: str) -> bool:
    parts = urlsplit(url)
    return not parts.scheme and not _is_elsewhere(url) and not _file(site, page, parts.path).exists()


def _broken(site: Path, page: Path, link: str, pages: dict[Path, Html]) -> str:
    """Why a link leads nowhere; empty if it does not."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""  # another site; whether it is up is not for this to say
    target = _file(site, page, parts.path) if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site) or not target.exists():
        return "leads nowhere"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors and anchor != "__top":
        return "leads to no anchor"
    return ""


def main(site: Path) -> None:
    found = problems(site)
    if found:
        sys.exit("\n".join(found))
    count = len(list(site.rglob("*.html")))
    sys.stdout.write(f"{count} pages, every link leads somewhere, and nothing is loaded from another host\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
