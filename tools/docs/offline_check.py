"""Find pages that load something from elsewhere: they would not work offline, and would reveal who reads them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

ELSEWHERE = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
LOADED = {"src", "srcset", "data", "poster", "background", "xlink:href"}  # of any element
LINKED = {"link", "image", "use", "base"}  # elements whose href is loaded, unlike that of a link to follow


class _Reader(HTMLParser):
    """Collect what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        canonical = ("rel", "canonical") in attributes
        for name, value in attributes:
            loads = name in LOADED or (name == "href" and tag in LINKED and not canonical)
            if value and ((loads and ELSEWHERE.match(value)) or (name == "style" and IN_CSS.search(value))):
                self.found.append(f"<{tag} {name}={value}>")


def find_external(text: str, css: bool = False) -> list[str]:
    """Return what a page or a style sheet loads from elsewhere; a link to follow is not loaded.

    >>> find_external('<a href="https://flower.ai">Flower</a><img src="demo.png">')
    []
    >>> find_external('<script src="//cdn.example/x.js"></script>')
    ['<script src=//cdn.example/x.js>']
    >>> find_external("@import url(https://fonts.example/a.css);", css=True)
    ['https://fonts.example/a.css']
    """
    if css:
        return IN_CSS.findall(text)
    reader = _Reader()
    reader.feed(text)
    styles = "".join(re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL | re.IGNORECASE))
    return reader.found + IN_CSS.findall(styles)


def check_site(folder: Path) -> list[str]:
    """Return what the files of a site load from elsewhere, each with its file."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".html", ".css", ".svg")]
    return [f"{path.relative_to(folder)}: {one}" for path in files
            for one in find_external(path.read_text("utf-8"), path.suffix == ".css")]  # fmt: skip
