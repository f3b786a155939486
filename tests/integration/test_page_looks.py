"""The pages in Chromium, over given records: light, dark, wide, narrow, with 0, 1 and 300 pipelines."""

from __future__ import annotations

import datetime as dt
import functools
from urllib.parse import urlencode

import pytest

import tests.support.airflow_home  # noqa: F401 - before Airflow

from airflow_eos.ui.attempt_rows import MEANING  # isort: skip
from airflow_eos.run.states import IN_WORDS, State  # isort: skip
from tests.support.accessible import faint, names, reached_by_tab  # isort: skip
from tests.support.browser import browser, with_browser  # isort: skip
from tests.support.cases import rest_in_chaos  # isort: skip
from tests.support.page_example import BROKEN, BROKEN_LEDGER, DAILY, FLIGHTS, NEVER, NOW, example_site  # isort: skip
from tests.support.page_site import Site, site_served  # isort: skip

WIDE, FRAME, NARROW = (1360, 860), (1200, 800), (390, 844)
"""A desktop, Airflow's frame in a window of 1280 pixels, and a phone."""
HIDDEN = """
const beyond = (one) => one.scrollWidth > one.clientWidth;
return [document.documentElement, ...document.querySelectorAll('.scroll')].filter(beyond)
  .map((one) => `${one.className || one.tagName}: ${one.scrollWidth} > ${one.clientWidth}`);
"""
"""JavaScript that returns the elements that need horizontal scrolling."""

FEW, MANY = 5, 300

site_of = functools.cache(example_site)


@pytest.fixture(scope="module")
def seen():
    with browser() as window:
        yield window


def run_address(pipelines: int) -> str:
    """Return the address of a run."""
    record = next(iter(site_of(pipelines).history.pipelines[FLIGHTS].runs.values()))
    return f"/run?{urlencode({'pipeline': FLIGHTS, 'key': record.run_key})}"


def pages(pipelines: int) -> list[str]:
    """Return the addresses of the pages that look different with this number of pipelines."""
    own = [f"/pipeline?name={FLIGHTS}", run_address(pipelines)] if pipelines == 1 else []
    others = [f"/pipeline?name={name}" for name in (DAILY, BROKEN, NEVER)] if pipelines == FEW else []
    return ["/", *([] if pipelines == MANY else ["/transactions", "/health"]), *own, *others]


@with_browser
@pytest.mark.parametrize("pipelines", rest_in_chaos(2, [FEW, MANY, 0, 1]))
def test_everything_is_seen_in_any_window_by_day_and_by_night(seen, pipelines):
    """Nothing needs horizontal scrolling, no text is faint, and what needs a name has one."""
    with site_served(site_of(pipelines)) as served:
        for size in (WIDE, FRAME, NARROW):
            seen.resize(*size)
            for path in pages(pipelines):
                seen.open(served.address + path)
                assert seen.run(HIDDEN) == [], (path, size)
                if pipelines == MANY:
                    continue  # more rows of the same
                for scheme in ("light", "dark"):
                    seen.prefer(scheme)
                    texts, unreadable = faint(seen)
                    assert (texts > 5, unreadable) == (True, []), (path, size, scheme)
                labels = names(seen)
                assert [label for label in labels if not label[1]] == [], (path, size)
                if pipelines and path == "/":
                    assert ("table", "Pipelines") in labels


@with_browser
def test_three_hundred_pipelines_are_searched_filtered_and_sorted(seen):
    """Failures are visible first, without scrolling; in a narrow window, cards name their columns."""
    with site_served(site_of(MANY)) as served:
        seen.resize(*WIDE)
        seen.open(served.address)
        assert seen.text(".tally").split("\n")[0].startswith("300 in all")
        first = "return [...document.querySelectorAll('tbody th > a')].slice(0, 4).map((a) => a.text)"
        assert seen.run(first) == [BROKEN, BROKEN_LEDGER, NEVER, FLIGHTS]
        assert "GroupNotEmpty: group 'orders.enrich' has 1 live member" in seen.text("tbody tr")
        assert seen.run(
            "return document.querySelector('tbody tr').getBoundingClientRect().bottom < innerHeight"
        )
        seen.write("input[name=find]", "team01")
        seen.click("form.find button")
        seen.soon(lambda: seen.run("return document.querySelectorAll('tbody tr').length") == 10)
        seen.open(served.address)
        seen.click(".tally a.retrying")
        seen.soon(lambda: seen.run(first) == [NEVER])
        assert "Transaction open for 190.0 s of 300.0 s" in seen.text("tbody tr")
        seen.open(f"{served.address}/?order=lag")
        assert seen.run(first)[0] == DAILY
        seen.resize(*NARROW)
        cells = "return [...document.querySelectorAll('tbody tr:first-child td')]"
        labels = f"{cells}.map((cell) => cell.dataset.label)"
        assert {"Last attempt", "Last interval", "Lag of the last runs"} <= set(seen.run(labels))


@with_browser
def test_states_are_explained_where_they_stand(seen):
    """The explanations are text, visible without a mouse."""
    record = next(iter(site_of(FEW).history.pipelines[FLIGHTS].runs.values()))
    run = run_address(FEW)
    with site_served(site_of(FEW)) as served:
        seen.resize(*WIDE)
        seen.open(served.address)
        seen.click("summary")
        shown = seen.text("dl.meanings")
        assert [kind for kind, text in MEANING.items() if text not in shown] == []
        for path, selector in ((f"/pipeline?name={FLIGHTS}", ".legend.words"), (run, ".states")):
            seen.open(served.address + path)
            shown = seen.text(selector)
            met = [State(state) for state, _ in record.trace]
            assert [state for state in met if IN_WORDS[state] not in shown] == [], path
        seen.open(f"{served.address}/transactions")
        assert "Readers wait behind what it wrote" in seen.text("tbody")


@with_browser
def test_lag_and_speed_are_drawn_and_said(seen):
    """A bar for each run with a known figure; the table has the figures."""
    with site_served(site_of(1)) as served:
        seen.resize(*WIDE)
        seen.open(f"{served.address}/pipeline?name={FLIGHTS}")
        drawn = [name for role, name in names(seen) if role == "image" and "at most" in name]
        assert [name.partition(":")[0] for name in drawn] == [
            "Lag in time",
            "Lag in offsets",
            "Records a second",
        ]
        assert "last 15 min, at most 15 min in 13 runs" in drawn[0]
        boxes = "return [...document.querySelectorAll('.bars path')].map((one) => one.getBBox().height)"
        assert seen.run(boxes) == [100, 100, 100]
        assert "810 offsets, for up to 15 min" in seen.text(".facts")


@with_browser
def test_a_page_reads_itself_again_until_that_is_stopped(seen):
    """The checkbox, which Tab reaches before the button, stops it; the choice persists."""
    hasten = "const wait = setInterval; window.setInterval = (call, ms) => wait(call, ms / 100);"
    script = seen.tell("Page.addScriptToEvaluateOnNewDocument", {"source": hasten})
    passed = "window.turns = 0; setInterval(() => { window.turns += 1; }, 60000)"

    def later(served, minutes):
        night = site_of(FEW)
        served.site = Site(night.history, night.attempts, NOW + dt.timedelta(minutes=minutes))

    def shown(text):
        return text in seen.text("tbody tr:first-child")

    try:
        with site_served(site_of(FEW)) as served:
            seen.resize(*WIDE)
            seen.open(served.address)
            assert shown("20 min ago")
            later(served, 5)
            seen.soon(lambda: shown("25 min ago"))
            assert seen.run("return document.querySelector('tbody td').dataset.label") == "State"
            seen.click("#auto")
            later(served, 10)
            seen.run(passed)
            seen.soon(lambda: seen.run("return window.turns") >= 3)
            assert shown("25 min ago")
            seen.open(served.address)
            assert not seen.run("return document.getElementById('auto').checked")
            tags, wrong = reached_by_tab(seen)
            assert wrong == []
            controls = [at for at, tag in enumerate(tags) if 'id="auto"' in tag or 'id="refresh"' in tag]
            assert controls[1] == controls[0] + 1
            seen.click("#auto")
            later(served, 15)
            seen.run("document.activeElement.blur()")
            seen.soon(lambda: shown("35 min ago"))
            seen.run("document.querySelector('input[name=find]').focus()")
            later(served, 20)
            seen.run(passed)
            seen.soon(lambda: seen.run("return window.turns") >= 3)
            assert shown("35 min ago")
    finally:
        seen.tell("Page.removeScriptToEvaluateOnNewDocument", script)
