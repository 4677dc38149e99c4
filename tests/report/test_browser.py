"""The page in a real Chromium: everything drawn, nothing fetched, and it turns."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steppe.report.write import write
from tests.report.conftest import FIGURES
from tests.report.test_report import change

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("report, drawn and compiled")]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--enable-unsafe-swiftshader", "--use-gl=angle", "--use-angle=swiftshader",  # WebGL without a graphics card
]  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not CHROMIUM or not CHROMEDRIVER:
        pytest.skip("no Chromium with chromedriver here (Debian: apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


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


def until(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 120).until(lambda b: b.execute_script(f"return {condition}"), condition)


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def cameras(browser: Any) -> list[dict[str, Any]]:
    return browser.execute_script(
        "return [...document.querySelectorAll('.plot')].filter(p => p._fullLayout.scene)"
        ".map(p => p._fullLayout.scene._scene.getCamera().eye)"
    )


def test_every_figure_is_drawn_and_nothing_is_fetched(browser: Any, html: Path) -> None:
    opened(browser, html)
    drawn = browser.execute_script("""
        return [...document.querySelectorAll('.plot')].map(p => ({
          kinds: p.data.map(t => t.type),
          marks: p.querySelectorAll(p.data.some(t => t.type === 'contour') ? '.contourlayer path'
            : '.scatterlayer path.js-line, .scatterlayer .point, .heatmaplayer image').length,
          canvas: p.querySelectorAll('.gl-container canvas').length,
          size: [p.clientWidth, p.clientHeight]}))""")
    assert len(drawn) == FIGURES
    for one in drawn:
        assert min(one["size"]) > 80, one
        assert one["canvas"] == 1 if "surface" in one["kinds"] else one["marks"] > 0, one
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
    colours = browser.execute_async_script("""
        const done = arguments[0], plot = [...document.querySelectorAll('.plot')].find(p => p._fullLayout.scene);
        Plotly.toImage(plot, {format: 'png', width: 300, height: 300}).then(url => {
          const image = new Image();
          image.onload = () => {
            const canvas = document.createElement('canvas');
            canvas.width = canvas.height = 300;
            const pen = canvas.getContext('2d');
            pen.drawImage(image, 0, 0);
            const seen = new Set(), data = pen.getImageData(0, 0, 300, 300).data;
            for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255)
              seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
            done(seen.size);
          };
          image.src = url;
        });""")
    assert colours > 200


def test_the_landscape_turns_and_the_others_follow(browser: Any, html: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, html)
    before = cameras(browser)
    assert len(before) == 2
    assert before[0] == before[1]
    surface = next(p for p in browser.find_elements(By.CSS_SELECTOR, ".plot")
                   if browser.execute_script("return Boolean(arguments[0]._fullLayout.scene)", p))  # fmt: skip
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", surface)
    drag = ActionChains(browser, duration=100).move_to_element(surface).click_and_hold()
    for _ in range(5):
        drag = drag.move_by_offset(16, 4)
    drag.release().perform()

    def moved(eye: dict[str, float]) -> float:
        return sum(abs(eye[k] - before[0][k]) for k in "xyz")

    WebDriverWait(browser, 60).until(lambda b: moved(cameras(b)[0]) > 0.1, "the surface did not turn")
    WebDriverWait(browser, 60).until(
        lambda b: sum(abs(cameras(b)[0][k] - cameras(b)[1][k]) for k in "xyz") < 1e-6, "the other did not follow"
    )
    assert complaints(browser) == []


def test_many_surfaces_are_drawn_when_they_are_seen(browser: Any, copy: Path, tmp_path: Path) -> None:
    """A browser has few contexts for them, so that a page with more draws what is on the screen."""
    runs = [tmp_path / f"lr-{i}" for i in range(9)]
    for i, run in enumerate(runs):
        shutil.copytree(copy / "fedavg/seed-0", run)
        change(run / "config.json", lr=0.01 * (i + 1))
    write(runs, tmp_path / "many.html")
    opened(browser, tmp_path / "many.html")
    places = browser.execute_script(
        "return JSON.parse(document.getElementById('charts').textContent)"
        ".map((c, i) => c.layout.scene ? i : -1).filter(i => i >= 0)"
    )
    assert len(places) == 9
    height = browser.execute_script("return document.documentElement.scrollHeight")
    for i in places:
        browser.execute_script(f"document.getElementById('plot-{i}').scrollIntoView({{block: 'center'}})")
        until(browser, f"document.querySelectorAll('#plot-{i} .gl-container canvas').length === 1")
    assert browser.execute_script("return document.documentElement.scrollHeight") == height  # nothing jumps
    assert complaints(browser) == []


def colours(browser: Any) -> tuple[str, str, list[str]]:
    """Of the page, of the figures' text, and of the first figure's lines."""
    return tuple(browser.execute_script("""
        const plot = document.querySelector('.plot');
        return [getComputedStyle(document.body).backgroundColor, plot._fullLayout.font.color,
                plot.data.filter(t => t.meta.role === 'line').map(t => t.line.color)]"""))  # fmt: skip


def test_light_and_dark(browser: Any, html: Path) -> None:
    opened(browser, html, scheme="dark")
    dark = colours(browser)
    assert dark[0] == "rgb(20, 23, 26)"
    assert dark[1] == "#e7eaed"
    prefers(browser, "light")  # while the page is open
    until(browser, "document.querySelector('.plot')._fullLayout.font.color === '#1b1f24'")
    light = colours(browser)
    assert light[0] == "rgb(255, 255, 255)"
    assert light[2] == ["#0072B2", "#D55E00"]
    assert not set(light[2]) & set(dark[2])
    assert complaints(browser) == []


@pytest.mark.parametrize("width", [320, 390, 820])
def test_narrow_screens_do_not_scroll_sideways(browser: Any, html: Path, width: int) -> None:
    opened(browser, html, width)
    assert browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    widest = browser.execute_script(
        "return Math.max(...[...document.querySelectorAll('.plot .main-svg')]"
        ".map(s => s.getBoundingClientRect().right))"
    )
    assert widest <= width
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.execute_script("return document.documentElement.scrollWidth") == width


def test_paper_is_light_and_complete(browser: Any, html: Path) -> None:
    opened(browser, html, scheme="dark")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    until(browser, "document.querySelector('.plot')._fullLayout.font.color === '#1b1f24'")
    assert browser.execute_script("return document.querySelectorAll('details:not([open])').length") == 0
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    until(browser, "document.querySelector('.plot')._fullLayout.font.color === '#e7eaed'")
    assert browser.execute_script("return document.querySelectorAll('details[open]').length") == 0
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert complaints(browser) == []
