# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Drives a headless browser by the DevTools protocol through a pair of pipes. Runs in the browser root (scripts/rootfs browser).

`Browser.open(page)` opens a page, waits until it has loaded (`data-shown` of its body), and collects the browser's messages about it.
"""
import base64
import json
import os
import select
import subprocess
import tempfile
import time

import png

# Pipes instead of a port, which others could connect to. The browser makes no requests of its own; a request of a page is a failure.
OPTIONS = ("--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
           "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
           "--font-render-hinting=none", "--disable-lcd-text")
# Seconds for an answer, and until a page is shown.
LIMIT, PATIENCE = 120, 20


class Broken(Exception):
    """The browser does not answer, or answers with an error."""


class Browser:
    def __init__(self):
        self.home = tempfile.TemporaryDirectory()
        commands, answers = os.pipe(), os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        command = 'exec 3<&"$0" 4>&"$1" && shift && exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", command, str(commands[0]), str(answers[1]), "chromium-headless-shell", *OPTIONS, f"--user-data-dir={self.home.name}"],
            pass_fds=(commands[0], answers[1]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands[0])
        os.close(answers[1])
        self.write, self.read = commands[1], answers[0]
        self.rest = b""
        self.number = 0
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.write)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read)
        self.home.cleanup()

    def message(self, until):
        """Returns the next message, or None if there is none before the time `until`."""
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, until - time.monotonic()))[0]:
                return None
            more = os.read(self.read, 1 << 20)
            if not more:
                raise Broken("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, session=None, **parameters):
        """Calls a method and returns its result. Events that arrive meanwhile are kept."""
        self.number += 1
        asked = {"id": self.number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data = json.dumps(asked).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data):]
        until = time.monotonic() + LIMIT
        while True:
            message = self.message(until)
            if message is None:
                raise Broken(f"no answer to {method}")
            if message.get("id") == self.number:
                if "error" in message:
                    raise Broken(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def listen(self, seconds):
        until = time.monotonic() + seconds
        while (message := self.message(until)) is not None:
            self.events.append(message)

    def open(self, path, width=1200, height=900, before=""):
        return Page(self, path, width, height, before)


class Page:
    """A page in a context of its own. The script `before` runs before the scripts of the page."""

    def __init__(self, browser, path, width, height, before):
        self.browser = browser
        self.url = f"file://{os.path.realpath(path)}"
        self.target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if before:
            self.ask("Page.addScriptToEvaluateOnNewDocument", source=before)
        browser.listen(0)
        self.mine()
        self.found = []
        began = time.monotonic()
        self.ask("Page.navigate", url=self.url)
        # After PATIENCE, or one second after an error, the page is checked although it is not shown.
        while not (shown := self.evaluate("document.readyState === 'complete' && document.body.dataset.shown")):
            browser.listen(0.02)
            late = time.monotonic() - began
            if late > PATIENCE or late > 1 and self.complaints():
                break
        self.shown = int(shown) if shown else None
        self.took = time.monotonic() - began
        browser.listen(0.1)

    def mine(self):
        """Removes the events of this page from the queue and returns them."""
        events = [event for event in self.browser.events if event.get("sessionId") == self.session]
        self.browser.events = [event for event in self.browser.events if event.get("sessionId") != self.session]
        return events

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def evaluate(self, script):
        """Returns the result of a script in the page; promises are awaited."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise Broken(f"{script[:200]}: {error_text(done['exceptionDetails'])}")
        return done["result"].get("value")

    def whole(self):
        """Waits until all rows are made (`data-whole` of the body), and returns whether they are."""
        until = time.monotonic() + PATIENCE
        while not (whole := self.evaluate("'whole' in document.body.dataset")) and time.monotonic() < until:
            self.browser.listen(0.05)
        return whole

    def see(self, width, height, scheme):
        """Changes the size of the window and the preferred scheme, "light" or "dark"."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def complaints(self):
        """Returns errors and warnings of the console, requests, dialogs and crashes of the page, one line each."""
        self.browser.listen(0)
        self.found += self.mine()
        wrong = []
        for event in self.found:
            what, how = event["method"], event["params"]
            if what == "Runtime.exceptionThrown":
                wrong.append(f"exception: {error_text(how['exceptionDetails'])}")
            elif what == "Runtime.consoleAPICalled" and how["type"] in ("error", "warning", "assert"):
                wrong.append(f"console.{how['type']}: {' '.join(str(a.get('value', a.get('description'))) for a in how['args'])}")
            elif what == "Log.entryAdded" and how["entry"]["level"] in ("error", "warning"):
                wrong.append(f"log: {how['entry']['text']}")
            elif what == "Network.requestWillBeSent" and how["request"]["url"] != self.url:
                wrong.append(f"request: {how['request']['url']}")
            elif what in ("Page.javascriptDialogOpening", "Inspector.targetCrashed"):
                wrong.append(what)
        return wrong

    def picture(self, path, width, height, keep):
        """Saves a picture of the top of the page in this size, with the colours of `keep` unchanged. Returns the colours in the file."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = base64.b64decode(self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"])
        data, colours = png.smaller(taken, keep)
        with open(path, "wb") as file:
            file.write(data)
        return colours

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)


def error_text(details):
    return details.get("exception", {}).get("description") or details["text"]
