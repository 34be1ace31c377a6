"""The report and the dashboard in a real browser: all is drawn, nothing runs that must not.

Screenshots go to the folder in SUPERMAX_SCREENSHOTS, otherwise to the test's own.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from supermax.results.records import StudyRecord
from supermax.results.report.serving import make_site, server
from supermax.results.report.writing import write_report
from tests.conftest import eventually
from tests.results.report import studies

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver"
)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1200,1400",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM or ""
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("SUPERMAX_SCREENSHOTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path


def opened(browser: Any, url: str) -> None:
    browser.get_log("browser")  # of the page before
    browser.get(url)
    script = "return document.documentElement.dataset.drawn === 'all'"
    assert eventually(lambda: bool(browser.execute_script(script)), within=60)


def check(browser: Any) -> None:
    """Check that every plot is drawn within the page, and that no injected script ran."""
    plots = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map("
        "p => [p.id, !!p.querySelector('svg.main-svg'), p.scrollWidth <= innerWidth])"
    )
    assert len(plots) >= 10
    assert [plot for plot in plots if not plot[1] or not plot[2]] == []
    assert browser.execute_script("return window.ran") is None
    assert (
        browser.execute_script("return document.querySelectorAll('img, b, a[href^=java]').length")
        == 0
    )
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def headings(pdf: bytes) -> list[set[int]]:
    """Each heading of a printed page with the figure after it: the pages that the two are on, from
    the tags that Chromium puts into a PDF."""
    objects = {
        int(found[1]): found[2] for found in re.finditer(rb"(\d+) 0 obj(.*?)endobj", pdf, re.S)
    }

    def children(number: int) -> list[int]:
        found = re.search(rb"/K (\[.*?\]|\d+ 0 R)", objects[number], re.S)
        numbers = map(int, re.findall(rb"(\d+) 0 R", found[1])) if found else ()
        return [n for n in numbers if b"/StructElem" in objects.get(n, b"")]

    def pages(number: int) -> set[int]:
        own = {int(n) for n in re.findall(rb"/Pg (\d+) 0 R", objects[number])}
        return own.union(*map(pages, children(number)))

    def walk(number: int) -> Iterator[int]:
        yield number
        for child in children(number):
            yield from walk(child)

    start = next(n for n, o in sorted(objects.items()) if b"/S /Document" in o)
    kinds = [(n, re.search(rb"/S /(H2|Figure)\b", objects[n])) for n in walk(start)]
    tagged = [(n, kind[1]) for n, kind in kinds if kind is not None]
    return [
        pages(heading) | pages(figure)
        for (heading, first), (figure, second) in itertools.pairwise(tagged)
        if (first, second) == (b"H2", b"Figure")
    ]


def hover_everywhere(browser: Any) -> str:
    """Make every plot show the hover label of a point; return the texts of the labels."""
    text: str = browser.execute_script(
        """
        const said = [];
        for (const place of document.querySelectorAll(".plot")) {
          place.data.forEach((trace, i) => {
            if (!trace.hovertext) return;
            const at = [{curveNumber: i, pointNumber: 0}];
            Plotly.Fx.hover(place, at, trace.yaxis === "y2" ? "xy2" : "xy");
            said.push(place.querySelector(".hoverlayer").textContent);
          });
        }
        return said.join("\\n");
        """
    )
    return text


@pytest.mark.slow
def test_a_hostile_report_is_drawn_and_nothing_of_it_runs(
    browser: Any, hostile: StudyRecord, tmp_path: Path, pictures: Path
) -> None:
    path = write_report(hostile, tmp_path / "report.html", storage="study.db")
    opened(browser, path.as_uri())
    said = hover_everywhere(browser)
    assert "<img src=x" in said
    assert '<a href="javascript' in said
    check(browser)
    assert studies.HOSTILE[0] in browser.find_element("tag name", "h1").text
    browser.save_screenshot(str(pictures / "hostile.png"))
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s)"
    )
    assert browser.execute_script("return window.ran") is None  # the policy holds


@pytest.mark.slow
def test_a_rich_report_on_a_desk_a_telephone_and_paper(
    browser: Any, tmp_path: Path, pictures: Path
) -> None:
    record = studies.rich(studies.agent_study(None, "small"), trials=40)
    path = write_report(record, tmp_path / "report.html", storage="study.db")
    opened(browser, path.as_uri())
    check(browser)
    browser.save_screenshot(str(pictures / "report.png"))
    paper = browser.execute_cdp_cmd(
        "Page.printToPDF", {"preferCSSPageSize": True, "generateTaggedPDF": True}
    )
    assert len(paper["data"]) > 50_000
    found = headings(base64.b64decode(paper["data"]))
    assert len(found) >= 5
    assert [pages for pages in found if len(pages) > 1] == []
    narrow = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    try:
        width = "return document.documentElement.scrollWidth"
        assert eventually(lambda: browser.execute_script(width) == 390)
        check(browser)
        browser.save_screenshot(str(pictures / "narrow.png"))
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_the_dashboard_of_a_hostile_study(browser: Any, tmp_path: Path, pictures: Path) -> None:
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/s.db")
    record = studies.hostile(storage)
    site = make_site(storage, "s.db")
    with server(site, 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{listening.server_port}"
            browser.get(address)
            assert "printed" in browser.find_element("tag name", "body").text  # without a token
            browser.get(site.address(listening.server_port))
            assert browser.current_url == f"{address}/"
            assert studies.HOSTILE[0] in browser.find_element("tag name", "table").text
            browser.save_screenshot(str(pictures / "studies.png"))
            opened(browser, f"{address}/report/{record.study._study_id}")
            check(browser)
            browser.get(f"{address}/dashboard/studies/{record.study._study_id}")
            body = "return document.body.innerText"
            assert eventually(lambda: "Best Trial" in browser.execute_script(body), within=60)
            assert browser.execute_script("return window.ran") is None
            browser.save_screenshot(str(pictures / "dashboard.png"))
            browser.get("about:blank")
        finally:
            listening.shutdown()
            thread.join()
