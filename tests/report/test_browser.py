"""The page in a real Chromium: everything drawn, nothing fetched, and it turns."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import until
from tests.report.conftest import FIGURES

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def opened(browser: Any, path: Path, width: int = 1100, scheme: str = "light") -> Any:
    """The page at a width, in a colour scheme, with its figures drawn."""
    prefers(browser, scheme)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})  # fmt: skip
    browser.get_log("browser"), browser.get_log("performance")  # what was before
    browser.get(path.as_uri())
    until(browser, "document.documentElement.dataset.charts === 'drawn'")
    return browser


def prefers(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def views(browser: Any) -> list[dict[str, float]]:
    """From where each surface is seen."""
    return browser.execute_script(
        "return [...document.querySelectorAll('.plot canvas')].map(c => JSON.parse(c.dataset.view))"
    )


def test_every_figure_is_drawn_and_nothing_is_fetched(browser: Any, html: Path) -> None:
    opened(browser, html)
    drawn = browser.execute_script("""
        const charts = JSON.parse(document.getElementById('charts').textContent);
        return [...document.querySelectorAll('.plot')].map((p, i) => ({
          kind: charts[i].traces[0].type,
          lines: charts[i].traces.filter(t => t.meta && t.meta.role === 'line').length,
          drawn: [...p.querySelectorAll('.line')].filter(l => l.getAttribute('d').length > 10).length,
          marks: p.querySelectorAll('.line, .dot, .column, image[href^="data:image/png"]').length,
          contours: [...p.querySelectorAll('.contours')].map(c => c.getAttribute('d').length).join(),
          ticks: p.querySelectorAll('.ticks text').length,
          canvas: p.querySelectorAll('canvas').length,
          size: [p.clientWidth, p.clientHeight]}))""")
    assert len(drawn) == FIGURES
    for one in drawn:
        assert min(one["size"]) > 80, one
        if one["kind"] == "surface":
            assert one["canvas"] == 1, one
            continue
        assert one["marks"] > 0, one
        assert one["ticks"] >= 4, one
        assert one["drawn"] >= one["lines"], one
        assert one["kind"] != "contour" or int(one["contours"]) > 100, one
    assert complaints(browser) == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    assert html.as_uri() in urls
    assert all(u.startswith(("file:", "data:", "blob:")) for u in urls), urls
    entries = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert not [e for e in entries if e.startswith("http")]


def test_a_surface_shows_its_landscape(browser: Any, html: Path) -> None:
    """Not only a canvas: pixels of many colours on it."""
    opened(browser, html)
    colours = browser.execute_script("""
        const canvas = document.querySelector('.plot canvas'), seen = new Set();
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < data.length; i += 4)
          if (data[i + 3] === 255) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
        return seen.size""")
    assert colours > 200


def test_values_are_shown_under_the_pointer(browser: Any, html: Path) -> None:
    """The numbers of the data, on lines, maps, contours and surfaces; and names are text, not markup."""
    opened(browser, html)
    found = browser.execute_script("""
        const charts = JSON.parse(document.getElementById('charts').textContent), said = {};
        charts.forEach((chart, i) => {
          const trace = chart.traces[0], kind = trace.type;
          if (kind in said) return;
          const place = document.getElementById(`plot-${i}`), drawing = place.firstChild;
          place.scrollIntoView({block: 'center'});
          const box = drawing.getBoundingClientRect();
          const over = (x, y) => drawing.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: y}));
          over(box.left + 0.55 * box.width, box.top + 0.5 * box.height);
          const tip = document.querySelector('.tip');
          said[kind] = tip.hidden ? '' : tip.innerText;
          drawing.dispatchEvent(new PointerEvent('pointerleave'));
          if (!tip.hidden) said[kind] = 'it stays';
        });
        return [said, charts[0].traces.filter(t => t.hover)]""")
    said, lines = found
    round_, *values = said["scatter"].splitlines()
    at = int(round_.removeprefix("round ")) - 1
    assert len(values) == 2
    for text, trace in zip(values, lines, strict=True):
        assert text.startswith(f"{trace['name']}: {trace['y'][at]:.4g} ± "), text
    assert re.fullmatch(r"client \d, class \d: \d+ samples", said["heatmap"])
    assert re.fullmatch(r"loss \d[\d.]*", said["contour"])
    assert re.fullmatch(r"loss \d[\d.]*", said["surface"])


def test_the_landscape_turns_and_the_others_follow(browser: Any, html: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    opened(browser, html)
    before = views(browser)
    assert len(before) == 2
    assert before[0] == before[1]
    surface = browser.find_element(By.CSS_SELECTOR, ".plot canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", surface)
    drag = ActionChains(browser, duration=100).move_to_element(surface).click_and_hold()
    for _ in range(5):
        drag = drag.move_by_offset(16, 4)
    drag.release().perform()
    until(
        browser,
        f"JSON.parse(document.querySelector('.plot canvas').dataset.view).azimuth < {before[0]['azimuth'] - 0.3}",
    )
    after = views(browser)
    assert after[0] == after[1]
    assert after[0]["elevation"] > before[0]["elevation"]
    assert complaints(browser) == []


def colours(browser: Any) -> tuple[str, str, list[str]]:
    """Of the page, of the figures' text, and of the first figure's lines."""
    return tuple(browser.execute_script("""
        const plot = document.querySelector('.plot');
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(plot.querySelector('.ticks')).fill,
                [...plot.querySelectorAll('.line')].map(l => getComputedStyle(l).stroke)]"""))  # fmt: skip


LIGHT, DARK = "rgb(90, 100, 112)", "rgb(159, 169, 179)"  # --muted
TEXT = "getComputedStyle(document.querySelector('.plot .ticks')).fill"


def test_light_and_dark(browser: Any, html: Path) -> None:
    opened(browser, html, scheme="dark")
    dark = colours(browser)
    assert dark[0] == "rgb(20, 23, 26)"
    assert dark[1] == DARK
    prefers(browser, "light")  # while the page is open
    until(browser, f"{TEXT} === '{LIGHT}'")
    light = colours(browser)
    assert light[0] == "rgb(255, 255, 255)"
    assert light[2] == ["rgb(0, 114, 178)", "rgb(213, 94, 0)"]
    assert not set(light[2]) & set(dark[2])
    assert complaints(browser) == []


@pytest.mark.parametrize("width", [320, 390, 820])
def test_narrow_screens_do_not_scroll_sideways(browser: Any, html: Path, width: int) -> None:
    opened(browser, html, width)
    assert browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    widest = browser.execute_script(
        "return Math.max(...[...document.querySelectorAll('.plot svg')].map(s => s.getBoundingClientRect().right))"
    )
    assert widest <= width
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.execute_script("return document.documentElement.scrollWidth") == width


def test_paper_is_light_and_complete(browser: Any, html: Path) -> None:
    opened(browser, html, scheme="dark")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    until(browser, f"{TEXT} === '{LIGHT}'")
    assert browser.execute_script("return document.querySelectorAll('details:not([open])').length") == 0
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    until(browser, f"{TEXT} === '{DARK}'")
    assert browser.execute_script("return document.querySelectorAll('details[open]').length") == 0
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert complaints(browser) == []
