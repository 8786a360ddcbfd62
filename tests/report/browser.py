"""Chromium without a window, driven over the W3C WebDriver protocol of chromedriver."""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # continuous integration may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
)
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Space": " "}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key the standard fixes
START_SECONDS, CALL_SECONDS = 60, 120


def find_programs() -> tuple[str, str] | None:
    """Paths of the browser and its driver, or None where one is missing."""
    browser = next(filter(None, map(shutil.which, ("google-chrome", "chromium"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One tab."""

    def __init__(self, port: int, session: str) -> None:
        self.port = port
        self.session = session

    def open(self, page: Path, width: int = 1180, height: int = 900, *, dark: bool = False) -> None:
        """Loads a file in a view of exactly this size, after the log was emptied."""
        self.log()
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.protocol("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("url", url=page.resolve().as_uri())

    def resize(self, width: int, height: int = 900) -> None:
        """A view of exactly this size."""
        self.protocol(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a script returns."""
        return self.call("execute/sync", script=script, args=arguments)

    def click(self, selector: str) -> None:
        self.call(f"element/{self._find(selector)}/click")

    def press(self, key: str) -> None:
        """A key, pressed in whatever has the focus."""
        strokes = [{"type": kind, "value": KEYS[key]} for kind in ("keyDown", "keyUp")]
        self.call("actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def focus(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).focus()", selector)

    def log(self) -> list[str]:
        """Messages of the console since the last call, refused or failed loads among them."""
        return [entry["message"] for entry in self.call("se/log", type="browser")]

    def picture(self, *, whole: bool = False) -> np.ndarray:
        """What is in view, or the whole page at a quarter of its size: ``[height, width, 3]``."""
        from PIL import Image

        options: dict[str, object] = {"optimizeForSpeed": True}  # of the encoding alone
        if whole:
            page = self.protocol("Page.getLayoutMetrics")["cssContentSize"]
            options |= {"captureBeyondViewport": True, "clip": page | {"scale": 0.25}}
        answer = self.protocol("Page.captureScreenshot", **options)
        with Image.open(io.BytesIO(base64.b64decode(answer["data"]))) as image:
            return np.asarray(image.convert("RGB"))

    def pdf(self) -> bytes:
        """The page printed on A4."""
        return base64.b64decode(self.call("print", page={"width": 21.0, "height": 29.7}))

    def protocol(self, command: str, **parameters: object) -> Any:
        """A command of the developer tools."""
        return self.call("goog/cdp/execute", cmd=command, params=parameters)

    def call(self, command: str, **body: object) -> Any:
        """A command of WebDriver and its value."""
        return ask(self.port, "POST", f"/session/{self.session}/{command}", body)

    def _find(self, selector: str) -> str:
        found = self.call("element", using="css selector", value=selector)
        return str(found[ELEMENT])


def ask(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The value that the driver answers.

    Raises:
        RuntimeError: If it answers with an error; says which.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        value = json.load(response)["value"]
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise RuntimeError(f"{method} {path}: {value['error']}: {value['message']}")
    return value


@contextmanager
def start(programs: tuple[str, str], folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in ``folder``; it and its driver end with the block."""
    browser, driver = programs
    options = {"binary": browser, "args": [*FLAGS, f"--user-data-dir={folder}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    with subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            port = _port(process)
            made = ask(port, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            session = str(made["sessionId"])
            try:
                yield Browser(port, session)
            finally:
                ask(port, "DELETE", f"/session/{session}")
        finally:
            process.terminate()


def _port(process: subprocess.Popen[str]) -> int:
    """The port that the driver says it listens on."""
    assert process.stdout is not None
    said = ""
    killer = threading.Timer(START_SECONDS, process.kill)  # its end closes the pipe
    killer.start()
    try:
        for line in process.stdout:
            said += line
            if found := re.search(r"on port (\d+)", line.partition("successfully")[2]):
                return int(found[1])
    finally:
        killer.cancel()
    raise RuntimeError(f"chromedriver did not start: {said}")
