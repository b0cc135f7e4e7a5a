"""Every page, from a file and from a server, in both themes and at both widths: nothing wrong, nothing hidden."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3ablate.report.site import PAGES

pytestmark = pytest.mark.slow

FILES = [page.file for page in PAGES]
# Large tables are checked by their likes.
OPENED = """() => document.querySelectorAll('details').forEach(
  details => { details.open = details.querySelectorAll('tr').length < 25; })"""
# Dark differs by its colours alone; what is preloaded is style sheets, which the policy of a page does not let through.
AXE = {
    "light": {"preload": False},
    "dark": {"preload": False, "runOnly": ["color-contrast", "link-in-text-block"]},
}
DIFFERENT = ("index.html", "split.html", "tables.html", "architecture.html")  # by what other contents hold
LEVELS = "[...document.querySelectorAll('h1, h2, h3')].map(heading => Number(heading.tagName[1]))"
CASES = [(name, width) for name in ("content", "hostile", "many") for width in (360, 1280)]
CASES += [("single", 360), ("diverged", 1280)]
# What sticks out of the window to the right, but for what lies in a region that is scrolled by itself.
STICKING_OUT = """() => [...document.querySelectorAll('body *')]
  .filter(element => element.checkVisibility() && !element.closest('.scrolled, .skip, option, datalist'))
  .filter(element => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(element => element.outerHTML.slice(0, 160))"""
CLIPPED = """() => [...document.querySelectorAll('h1, h2, h3, p, li, dd, dt, figcaption, legend, summary, label')]
  .filter(element => element.checkVisibility() && element.scrollWidth > element.clientWidth + 1
    && getComputedStyle(element).display !== 'inline').map(element => element.outerHTML.slice(0, 160))"""


@pytest.mark.parametrize(("name", "width"), CASES)
def test_a_page_fits_its_window_and_runs_nothing_that_it_shows(
    name: str, width: int, sites: Callable[[str], Path], watch: Callable[..., Any]
) -> None:
    watched = watch(width)
    for file in FILES if name == "content" else DIFFERENT:
        page = watched.open(sites(name).as_uri(), file)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (file, page.evaluate(STICKING_OUT))
        assert page.evaluate(STICKING_OUT) == [], file
        assert page.evaluate(CLIPPED) == [], file
        assert page.locator("img:not([src^='figures/'])").count() == 0, file
        levels = page.evaluate(LEVELS)
        assert levels.count(1) == 1, file
        assert levels[0] == 1, file
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (file, levels)


def test_a_server_serves_what_the_file_system_does(served: str, watch: Callable[..., Any]) -> None:
    watched = watch()
    for file in FILES:
        page = watched.open(served, file)
        assert page.locator("nav [aria-current]").inner_text().split("\n")[0] == page.title().split(" · ")[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, sites: Callable[[str], Path], watch: Callable[..., Any]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    watched = watch(scheme=scheme)
    for name, file in [*(("content", file) for file in FILES), ("diverged", "architecture.html")]:
        page = watched.open(sites(name).as_uri(), file)
        page.evaluate(OPENED)
        found = Axe().run(page, options=AXE[scheme]).response["violations"]
        assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found] == [], (file, len(found))


def test_the_theme_follows_the_system_and_what_a_reader_chose_is_remembered(
    served: str, watch: Callable[..., Any]
) -> None:
    watched = watch(scheme="dark")
    page = watched.open(served, "index.html")
    shown = ".picture > a:visible img"
    assert page.locator(shown).get_attribute("src").endswith(".dark.svg")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").press("Enter")
    assert page.locator("#theme").get_attribute("aria-pressed") == "false"
    assert page.locator(shown).get_attribute("src").endswith(".light.svg")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    watched.open(served, "curves.html")
    assert page.locator(shown).get_attribute("src").endswith(".light.svg")


def test_without_scripts_every_number_is_there(sites: Callable[[str], Path], watch: Callable[..., Any]) -> None:
    watched = watch(scripts=False)
    page = watched.open(sites("content").as_uri(), "architecture.html")
    assert page.locator("noscript").first.is_visible()
    assert page.locator(".scripted:visible").count() == 0
    assert page.locator("#links-block").inner_text() == "1,003"
    for details in page.locator("details").all():
        details.locator("summary").click()
        assert details.locator("tbody tr").first.is_visible()


def test_hostile_names_are_shown_as_they_are(sites: Callable[[str], Path], watch: Callable[..., Any]) -> None:
    page = watch().open(sites("hostile").as_uri(), "architecture.html")
    assert "</script><img src=x onerror=alert(1)>" in page.locator("#experts-of").inner_text()
    assert page.locator("#experts-passage mark").inner_text() == "</script><img src=x onerror=alert(1)>"
