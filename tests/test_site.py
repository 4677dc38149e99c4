"""The site's own code, and the built site in a real browser: equations, search and pictures, from the file system."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("flwr")

from tools.docs import api_pages, site_hooks

import steppe
from tests.chromium import until

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"


@pytest.mark.parametrize("module", sorted(path.stem for path in (ROOT / "tools/docs").glob("*.py")))
def test_examples_in_the_code_of_the_site_hold(module: str) -> None:
    assert doctest.testmod(importlib.import_module(f"tools.docs.{module}")).failed == 0


def test_pages_of_a_folder_take_the_place_of_its_star() -> None:
    nav = ["index.md", {"Guides": ["a/first.md", "a/*"]}, {"Rest": ["b/*"]}]
    pages = ["a/one.md", "a/two.md", "b/c/deep.md", "b/three.md"]
    assert site_hooks.expand(nav, pages) == [
        "index.md", {"Guides": ["a/first.md", "a/one.md", "a/two.md"]}, {"Rest": ["b/three.md"]}
    ]  # fmt: skip


def test_the_reference_has_every_key_command_and_public_name() -> None:
    pages = site_hooks.make_reference()
    assert all(f"`{key}`" in pages["reference/config.md"] for key in steppe.config.Config.model_fields)
    assert all(f"## steppe {name}\n" in pages["reference/commands.md"] for name in ("run", "federate", "reproduce"))
    text = "".join(pages.values())
    assert [name for name in steppe.__all__ if not re.search(rf"^::: steppe\.{name}\b", text, re.MULTILINE)] == []
    assert not set(api_pages.MODULES) - set(steppe.__all__)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not (SITE / "index.html").exists(), reason="there is no site yet: make docs")
class TestInABrowser:
    def test_every_equation_is_typeset(self, browser: Any) -> None:
        pages = [path for path in sorted(SITE.rglob("*.html")) if 'class="arithmatex"' in path.read_text("utf-8")]
        assert pages
        for page in pages:
            browser.get(page.as_uri())
            until(browser, "[...document.querySelectorAll('.arithmatex')].every(e => e.querySelector('mjx-container'))")
            wrong = browser.execute_script("return [...document.querySelectorAll('[data-mjx-error]')].length")
            assert not wrong, page

    def test_search_finds_a_key(self, browser: Any) -> None:
        browser.get((SITE / "index.html").as_uri())
        browser.execute_script("document.querySelector('#__search').click()")
        browser.find_element("css selector", ".md-search__input").send_keys("checkpoint_every")
        until(browser, "document.querySelector('.md-search-result__link')")
        links = browser.find_elements("css selector", ".md-search-result__link")
        assert any("config.html" in (link.get_attribute("href") or "") for link in links)

    @pytest.mark.parametrize("width", [420, 1400])
    def test_every_page_fits_its_window_and_finds_its_files(self, browser: Any, width: int) -> None:
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for page in sorted(SITE.rglob("*.html")):
            browser.get_log("browser")
            browser.get(page.as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
            assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == [], page
