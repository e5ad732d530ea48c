"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.edge_harness.artifact.file import write_new
from benchmarks.edge_harness.artifact.schema import Retraction
from benchmarks.edge_harness.report.load import load
from benchmarks.edge_harness.report.page import page
from tests.benchmarks.edge_harness import artifact_builder as build
from tests.benchmarks.edge_harness.chromium import Chromium, Page

HOSTILE = (
    '<script>document.title = "taken over"</script><img src=x onerror="document.title = \'taken over\'">'
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    grid = build.grid({"stock": 1.0, "ours": 1.3, "new": 1.2}, control=True, notes=[build.NOTE, HOSTILE])
    grid.arms[1].command = ["sh", "-c", HOSTILE]
    write_new(folder / "results" / "a.json", grid)
    retraction = Retraction(date="2026-01-05", reason=f"wrong head {HOSTILE}", superseded_by="a.json")
    write_new(folder / "results" / "b.json", build.grid(seed=1, retraction=retraction))
    write_new(folder / "results" / "c.json", build.probe())
    file = folder / "report.html"
    file.write_text(page(load([folder / "results"]), f"Report {HOSTILE}"))
    return file


@pytest.fixture(scope="module")
def desktop(browser: Chromium, report: Path) -> Page:
    return browser.open(report)


def test_loads_without_errors_and_fetches_nothing(desktop: Page, report: Path) -> None:
    assert desktop.problems() == []
    assert desktop.requests() == [report.resolve().as_uri()]


def test_the_collector_would_see_an_error(browser: Chromium, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<!doctype html><script>nowhere()</script><img src='missing.png'>")
    page = browser.open(broken)
    assert "nowhere is not defined" in page.problems()[0]
    assert page.requests()[1].endswith("missing.png")


def test_what_an_artifact_says_is_text(desktop: Page) -> None:
    assert desktop.evaluate("document.title") == f"Report {HOSTILE}"
    assert desktop.evaluate("document.querySelectorAll('script').length") == 1
    assert desktop.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in desktop.evaluate("document.body.innerText")


def test_the_policy_stops_a_script_that_came_in(browser: Chromium, report: Path, tmp_path: Path) -> None:
    """Were the escaping to fail, the browser still would not run it."""
    attacked = tmp_path / "attacked.html"
    attacked.write_text(report.read_text().replace("</main>", f"{HOSTILE}</main>"))
    page = browser.open(attacked)
    assert page.evaluate("document.title").startswith("Report")
    assert any("Content Security Policy" in problem for problem in page.problems())


def test_a_click_on_a_heading_sorts(browser: Chromium, report: Path) -> None:
    page = browser.open(report)
    table = "[...document.querySelectorAll('#a1 h3')].find(h => h.innerText === 'Medians').parentElement"
    heading = f"{table}.querySelector('thead th:nth-child(2)')"
    keys = f"[...{table}.querySelectorAll('tbody tr')].map(row => Number(row.cells[1].dataset.key))"
    before = page.evaluate(keys)
    assert before != sorted(before)

    page.click(f"{heading}.querySelector('button')")
    assert page.evaluate(keys) == sorted(before)
    assert page.evaluate(f"{heading}.getAttribute('aria-sort')") == "ascending"

    page.click(f"{heading}.querySelector('button')")
    assert page.evaluate(keys) == sorted(before, reverse=True)
    assert page.evaluate(f"{heading}.getAttribute('aria-sort')") == "descending"

    names = f"[...{table}.querySelectorAll('tbody tr')].map(row => row.cells[0].dataset.key)"
    page.click(f"{table}.querySelector('thead th:first-child button')")
    assert page.evaluate(names) == sorted(page.evaluate(names))
    assert page.evaluate(f"{heading}.getAttribute('aria-sort')") is None
    assert page.problems() == []


def test_cells_without_a_figure_stay_last(browser: Chromium, tmp_path: Path) -> None:
    artifact = build.grid({"stock": 1.0, "ours": 1.3}, passes=3)
    artifact.summaries = [
        row
        for row in artifact.summaries
        if (row.tag, row.metric) not in {("ours", "tg_tps"), ("ours", "ready_s")}
    ]
    write_new(tmp_path / "a.json", artifact)
    (tmp_path / "r.html").write_text(page(load([tmp_path]), "t"))
    opened = browser.open(tmp_path / "r.html")
    keys = "[...document.querySelectorAll('#a1 table')][0].tBodies[0].rows"
    ours = f"[...{keys}].map(row => row.cells[2].dataset.key ?? null)"
    for _ in range(2):
        opened.click("document.querySelector('#a1 thead th:nth-child(3) button')")
        found = opened.evaluate(ours)
        assert found[-2:] == [None, None]
        assert None not in found[:-2]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_window_is_filled_and_none_overflows(
    browser: Chromium, report: Path, width: int, dark: bool
) -> None:
    page = browser.open(report, width, 844, dark)
    page.evaluate("document.querySelectorAll('details').forEach(panel => { panel.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(15, 20, 26)" if dark else "rgb(246, 247, 249)")
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('main *')].filter(e => e.textContent.trim() && "
        "e.getClientRects().length).map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 9


def test_every_text_stands_out_from_its_ground(browser: Chromium, report: Path) -> None:
    """The WCAG contrast of 4.5 for what is read, in both schemes."""
    script = """(() => {
      const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
      const rgb = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)]; };
      const light = (colour) => { const [r, g, b] = rgb(colour).map(v => { v /= 255;
        return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const ground = (e) => { for (; e; e = e.parentElement) {
        const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; }
        return 'white'; };
      const weak = new Set();
      const read = 'main p, main td, main th, main small, main li, main dt, main h3';
      for (const e of document.querySelectorAll(read)) {
        if (!e.innerText.trim() || !e.getClientRects().length) continue;
        const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) weak.add(`${e.tagName}.${e.className} ${contrast.toFixed(2)}`);
      }
      return [...weak];
    })()"""
    for dark in (False, True):
        assert browser.open(report, dark=dark).evaluate(script) == []


def test_figures_of_a_retracted_artifact_are_struck_out(desktop: Page) -> None:
    struck = (
        "[...document.querySelectorAll('#{} .figure')].map(e => getComputedStyle(e).textDecorationLine)"
        ".filter((line, i, all) => all.indexOf(line) === i)"
    )
    assert desktop.evaluate(struck.format("a2")) == ["line-through"]
    assert desktop.evaluate(struck.format("a1")) == ["none"]
    assert "Retracted on 2026-01-05" in desktop.evaluate("document.querySelector('#a2 .bad').innerText")


def test_every_run_is_a_mark_and_every_pair_too(desktop: Page) -> None:
    card = "document.querySelector('#a1 .card.named')"
    # Seven passes of four arms, of which one run failed.
    assert desktop.evaluate(f"{card}.querySelectorAll('.strips .run').length") == 27
    assert desktop.evaluate(f"{card}.querySelectorAll('.ratios .run').length") == 14
    assert desktop.evaluate(f"{card}.querySelectorAll('.strips .disturbed').length") == 1
    assert desktop.evaluate(f"{card}.querySelectorAll('.interval').length") == 2


def test_a_probe_shows_its_samples_and_its_memory(desktop: Page) -> None:
    card = "document.querySelector('#a3 .card.named')"
    assert desktop.evaluate(f"{card}.querySelectorAll('.strips .run').length") == 1
    assert desktop.evaluate(f"{card}.querySelectorAll('.strips .raw').length") == 3
    memory = "document.querySelector('#a3 .memory-section')"
    assert desktop.evaluate(f"{memory}.querySelectorAll('polyline').length") == 2
    assert desktop.evaluate(f"{memory}.querySelectorAll('.phase-dot').length") == 4
    # The course is drawn within its frame.
    frame, line = (
        desktop.evaluate(
            f"(() => {{ const r = {one}.getBoundingClientRect(); return [r.top, r.bottom]; }})()"
        )
        for one in (f"{memory}.querySelector('.memory svg')", f"{memory}.querySelector('polyline')")
    )
    assert frame[0] <= line[0] < line[1] <= frame[1]


def test_provenance_opens_at_a_click(browser: Chromium, report: Path) -> None:
    page = browser.open(report)
    panel = "[...document.querySelectorAll('#a1 details')].find(d => d.innerText.startsWith('Provenance'))"
    assert not page.evaluate(f"{panel}.open")
    page.click(f"{panel}.querySelector('summary')")
    assert page.evaluate(f"{panel}.open")
    shown = page.evaluate(f"{panel}.innerText")
    assert "Made-up CPU 9000" in shown
    assert "int4_linear" in shown
