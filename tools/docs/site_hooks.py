"""What MkDocs does not do by itself: a folder's pages in the navigation, links to files outside docs/, equations."""

from __future__ import annotations

import html
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import ziamath.fonts
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FONT = "STIXTwoMath-Regular.ttf"
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
LINK = re.compile(r"(\]\()([^)\s]+?)(#[^)\s]*)?(\))")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the equations' font, and the pages that `folder/*` of the navigation stands for."""
    font = Path(ziamath.fonts.__file__).with_name(FONT)
    files.append(File.generated(config, f"assets/{FONT}", abs_src_path=str(font)))
    named = set(walk(config.nav))
    pages = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri not in named)
    config.nav = expand(config.nav, pages)
    return files


def walk(nav: Any) -> list[str]:
    """Return the pages that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in walk(entry)]


def expand(nav: Any, pages: list[str]) -> Any:
    """Replace each `folder/*` by the folder's pages."""
    if isinstance(nav, dict):
        return {title: expand(entry, pages) for title, entry in nav.items()}
    if isinstance(nav, list):
        return [found for entry in nav for found in (
                    [page for page in pages if str(Path(page).parent) == entry[:-2]]
                    if isinstance(entry, str) and entry.endswith("/*") else [expand(entry, pages)])]  # fmt: skip
    return nav


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files outside docs/ to the repository's public home."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def point(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups(default="")
        outside = os.path.relpath(folder / target, ROOT / "docs")
        if "://" in target or target.startswith("#") or not outside.startswith(".."):
            return link[0]
        path = (folder / target).resolve()
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist.")
        return f"{opening}{HOME}/blob/main/{path.relative_to(ROOT)}{anchor}{closing}"

    return LINK.sub(point, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Write equations as MathML, which browsers show without a script."""
    return EQUATION.sub(
        lambda found: convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline"), content
    )
