"""Hooks for MkDocs: a folder's pages in the navigation, links to files outside docs/, MathJax."""

from __future__ import annotations

import os
import re
import tomllib
from importlib.metadata import files as files_of
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tools.docs import api_pages, catalogue_pages, command_page, config_page, folder_page, names_page, wire_page
from tools.docs.offline_check import check_site

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
LINK = re.compile(r"(\]\()([^)\s]+?)(#[^)\s]*)?(\))")
WIDE = re.compile(r"^\|([^|\n]+\|){9,}$", re.MULTILINE)  # a row of nine columns or more
INCLUDED = re.compile(r"^<!-- include (\S+) until (.+) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Leave out the page for a server's missing pages, whose addresses do not work from the file system."""
    config.theme.static_templates.discard("404.html")


@event_priority(-100)  # after other hooks, whose pages may belong in the navigation too
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add MathJax, and the pages that `folder/*` of the navigation stands for."""
    mathjax = next(path for path in files_of("sphinx-mathjax-offline") or () if path.name == "tex-svg.js")
    files.append(File.generated(config, "assets/mathjax.js", abs_src_path=str(mathjax.locate())))
    for path, text in make_reference().items():
        files.append(File.generated(config, path, content=text))
    named = set(walk(config.nav))
    pages = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri not in named)
    config.nav = expand(config.nav, pages)
    return files


def make_reference() -> dict[str, str]:
    """Return the generated pages by their paths."""
    return (
        api_pages.make_pages()
        | catalogue_pages.make_pages()
        | {
            "reference/config.md": config_page.make_page(),
            "reference/commands.md": command_page.make_page(),
            "reference/names.md": names_page.make_page(),
            "reference/files.md": folder_page.make_page(),
            "reference/messages.md": wire_page.make_page(),
        }
    )


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
    """Insert included files, point links to files outside docs/ to the repository's home, and make room for tables."""
    here = (DOCS / page.file.src_uri).parent
    if WIDE.search(markdown):
        page.meta["hide"] = ["toc"]  # its tables need the room
    text = relink(markdown, here, here)
    return INCLUDED.sub(lambda found: relink(read_until(ROOT / found[1], found[2]), ROOT, here), text)


def read_until(path: Path, heading: str) -> str:
    """Return a file's text up to a line, which must be there."""
    text, found, _ = path.read_text("utf-8").partition(f"\n{heading}\n")
    if not found:
        raise PluginError(f"{path.name} has no line {heading!r}, up to which a page includes it.")
    return text


def relink(text: str, base: Path, here: Path) -> str:
    """Write links that were relative to `base` as those of a page in the folder `here`."""

    def point(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups(default="")
        path = Path(os.path.normpath(base / target))
        if "://" in target or target.startswith("#") or (base == here and path.is_relative_to(DOCS)):
            return link[0]
        if not path.exists():
            raise PluginError(f"There is a link to {target} in a page of {here.relative_to(ROOT)}, but no such file.")
        inside = path.is_relative_to(DOCS) and path.is_file()
        to = os.path.relpath(path, here) if inside else f"{HOME}/blob/main/{path.relative_to(ROOT)}"
        return f"{opening}{to}{anchor}{closing}"

    return LINK.sub(point, text)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that loads anything from elsewhere."""
    if found := check_site(Path(config.site_dir)):
        raise PluginError("The site must work offline, but it loads: " + "; ".join(found[:5]))
