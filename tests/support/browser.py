"""A real headless browser, driven by the WebDriver protocol: Chromium with its chromedriver."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_eos_testing.ports import free_ports

DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")
MISSING = "needs a browser: apt-get install chromium chromium-driver"
_NOT_FOUND = DRIVER is None or BROWSER is None
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_PATIENCE = 30.0


def with_browser(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test that needs a browser: without one it is skipped, or fails in continuous integration.

    The environment variable ``CI`` makes the difference; ``.ci/run`` sets it.
    """
    if not _NOT_FOUND:
        return test
    if not os.environ.get("CI"):
        return pytest.mark.skip(reason=MISSING)(test)

    @functools.wraps(test, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def fails() -> None:
        pytest.fail(f"{MISSING}; where CI is set it is no reason to skip", pytrace=False)

    del fails.__wrapped__  # type: ignore[attr-defined] - or pytest would set up its fixtures
    return fails


class Browser:
    """One window.

    :param session: address of the driver's session.
    """

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, address: str) -> None:
        """Go to an address."""
        _send("POST", f"{self._session}/url", {"url": address})

    @property
    def address(self) -> str:
        """Address of the window, whichever frame is selected."""
        return str(_send("GET", f"{self._session}/url"))

    def run(self, script: str) -> Any:
        """Run a script and return its result."""
        return _send("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def find(self, selector: str) -> str:
        """Return the first element that matches a CSS selector, once there is one."""
        body = {"using": "css selector", "value": selector}
        return self.soon(lambda: _send("POST", f"{self._session}/element", body)[_ELEMENT])

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(_send("GET", f"{self._session}/element/{self.find(selector)}/text"))

    def click(self, selector: str) -> None:
        """Click an element."""
        _send("POST", f"{self._session}/element/{self.find(selector)}/click", {})

    def write(self, selector: str, text: str) -> None:
        """Type into a field."""
        _send("POST", f"{self._session}/element/{self.find(selector)}/value", {"text": text})

    def into(self, selector: str) -> None:
        """Select a frame."""
        frame = {_ELEMENT: self.find(selector)}
        _send("POST", f"{self._session}/frame", {"id": frame})

    def out(self) -> None:
        """Select the whole window again."""
        _send("POST", f"{self._session}/frame", {"id": None})

    def prefer(self, scheme: str) -> None:
        """Emulate the system's colour scheme, ``light`` or ``dark``."""
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.tell("Emulation.setEmulatedMedia", wanted)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", size)

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return base64.b64decode(self.tell("Page.captureScreenshot", {"format": "png"})["data"])

    def press(self, key: str) -> None:
        """Press and release a key."""
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]}
        _send("POST", f"{self._session}/actions", body)

    def tell(self, command: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a command of Chrome's DevTools protocol and return the answer."""
        body = {"cmd": command, "params": dict(params or {})}
        return _send("POST", f"{self._session}/goog/cdp/execute", body)

    def soon(self, look: Callable[[], Any]) -> Any:
        """Poll until ``look`` returns a truthy value, and return it; failing requests are repeated."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                if answer := look():
                    return answer
                last = "nothing"
            except urllib.error.HTTPError as error:
                with error:
                    last = error.read().decode(errors="replace")
            assert time.monotonic() < deadline, last
            time.sleep(0.1)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser for the duration of the block."""
    assert DRIVER is not None, MISSING
    (port,) = free_ports(1)
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    root = f"http://127.0.0.1:{port}"
    arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1360,860"]
    wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments, "binary": BROWSER}}
    try:
        session = ""
        deadline = time.monotonic() + _PATIENCE
        while not session:
            try:
                answer = _send("POST", f"{root}/session", {"capabilities": {"alwaysMatch": wanted}})
                session = f"{root}/session/{answer['sessionId']}"
            except urllib.error.HTTPError:
                raise
            except OSError:  # the driver does not listen yet
                assert time.monotonic() < deadline
                time.sleep(0.1)
        try:
            yield Browser(session)
        finally:
            _send("DELETE", session)
    finally:
        driver.terminate()
        driver.wait(30)


def _send(method: str, address: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        address,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["value"]
