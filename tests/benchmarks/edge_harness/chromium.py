"""A headless Chromium for tests, over the DevTools protocol on two pipes: no driver, no port, no network."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_LIMIT_S = 60.0


class Chromium:
    """``with Chromium(profile_folder) as browser: page = browser.open(file)``"""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium")
        assert program, "expected Debian's chromium on PATH: apt-get install chromium"
        # The browser reads commands from file descriptor 3 and answers on 4.
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        options = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
            "--disable-extensions --disable-background-networking --disable-component-update --disable-sync "
            "--hide-scrollbars --remote-debugging-pipe"
        )
        shell = f'exec "$0" {options} "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Asked to, it ends its own processes too, which would otherwise go on writing to the profile.
            self.call("Browser.close")
            self._process.wait(_LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._selector.close()
            os.close(self._commands)
            os.close(self._answers)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of one command; what happens meanwhile is kept in ``events``."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _LIMIT_S
        while b"\0" not in self._buffer:
            assert self._selector.select(max(0.0, end - time.monotonic())), "chromium does not answer"
            received = os.read(self._answers, 1 << 20)
            assert received, f"chromium has ended with {self._process.poll()}"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, file: Path, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        return Page(self, file, width, height, dark)


class Page:
    """A loaded page. ``problems`` are its errors: of the script, of the network, of the security policy."""

    def __init__(self, browser: Chromium, file: Path, width: int, height: int, dark: bool) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=file.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, element: str) -> None:
        """A real click in the middle of what the JavaScript expression ``element`` yields."""
        x, y = self.evaluate(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def requests(self) -> list[str]:
        """Every address that was asked for, the page's own first."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def problems(self) -> list[str]:
        found = [
            str(event["params"]["exceptionDetails"]) for event in self._events("Runtime.exceptionThrown")
        ]
        found += [str(event["params"]["entry"]) for event in self._events("Log.entryAdded")]
        return found + [str(event["params"]) for event in self._events("Runtime.consoleAPICalled")]

    def _events(self, method: str) -> list[dict[str, Any]]:
        # Answers come in order: after one of them, every event before it has been read.
        self.evaluate("0")
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event for event in mine if event["method"] == method]

    def _wait_for(self, method: str) -> None:
        for _ in range(10_000):
            if self._events(method):
                return
            self.evaluate("new Promise(resolve => setTimeout(resolve, 10))")
        raise AssertionError(f"no {method}")
