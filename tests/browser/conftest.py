"""A headless Chromium, sites to open in it, and a page that fails its test for what no page of ours may do."""

import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LEFT = "net::ERR_ABORTED"  # a picture that was still loading when the next page was opened
REQUIRED = "K3ABLATE_REQUIRE_BROWSER"


@pytest.fixture(scope="session")
def contents() -> Iterator[ModuleType]:
    """The contents of sites."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield importlib.import_module("contents")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Skips where there is no Chromium, unless the environment says that there must be one."""
    if not CHROMIUM.exists():
        reason = f"no {CHROMIUM}; as root on Debian: apt-get install chromium"
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)
    playwright_api = importlib.import_module if os.environ.get(REQUIRED) else pytest.importorskip
    with playwright_api("playwright.sync_api").sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def sites(contents: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a site by the name of its content; each is written once."""
    from k3ablate.report.site import write_site

    @functools.cache
    def written(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        write_site(getattr(contents, name)(), folder)
        return folder

    return written


@pytest.fixture(scope="session")
def served(sites: Callable[[str], Path]) -> Iterator[str]:
    """Address of a local server of the usual site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(sites("content"))))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class Watched:
    """A page whose every message, error, dialog and request that leaves the site is kept."""

    def __init__(self, browser: Any, width: int = 1280, scheme: str = "light", *, scripts: bool = True) -> None:
        self.faults: list[str] = []
        self.scripts = scripts
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts,
            reduced_motion="reduce",
        )  # fmt: skip
        self.context.set_default_timeout(10_000)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("requestfailed", self._failed)
        self.inside = "nowhere"
        self.context.route("**/*", self._route)

    def open(self, root: str, file: str) -> Any:
        """The page `file` under `root`, drawn."""
        self.inside = root
        self.page.goto(f"{root}/{file}")
        if self.scripts:
            self.drawn()
        return self.page

    def drawn(self) -> None:
        """Wait until every chart that is to be seen is there."""
        self.page.wait_for_function(
            "[...document.querySelectorAll('.chart')].every(chart => chart.offsetParent === null"
            " || chart.querySelector('svg'))"
        )

    def _route(self, route: Any) -> None:
        if route.request.url.startswith(self.inside):
            route.continue_()
        else:
            self.faults.append(f"outside: {route.request.url}")
            route.abort()

    def _failed(self, request: Any) -> None:
        if request.failure != LEFT:
            self.faults.append(f"failed: {request.url}")

    def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def watch(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Opens watched pages; when the test is over none may have a fault."""
    opened: list[Watched] = []

    def start(*args: Any, **options: Any) -> Watched:
        opened.append(Watched(browser, *args, **options))
        return opened[-1]

    yield start
    faults = [fault for watched in opened for fault in watched.faults]
    for watched in opened:
        watched.context.close()
    assert faults == []
