# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A browser without a screen, driven by the DevTools protocol through a pair of pipes. Runs in the browser root (scripts/rootfs browser).

`Browser.open(page)` is a page that has come to its end (`data-shown` of its body), with all that the browser had to say of it.
"""
import base64
import json
import os
import select
import subprocess
import tempfile
import time

import png

# Pipes, so that there is no port for anybody else; no network but what a page asks for, which is a failure.
OPTIONS = ("--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
           "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
           "--font-render-hinting=none", "--disable-lcd-text")
# Seconds for an answer, and for a page to be shown.
LIMIT, PATIENCE = 120, 20


class Broken(Exception):
    """The browser does not do what it is told."""


class Browser:
    def __init__(self):
        self.home = tempfile.TemporaryDirectory()
        told, tells = os.pipe(), os.pipe()
        # The browser reads what it is told from descriptor 3 and answers by 4.
        command = 'exec 3<&"$0" 4>&"$1" && shift && exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", command, str(told[0]), str(tells[1]), "chromium-headless-shell", *OPTIONS, f"--user-data-dir={self.home.name}"],
            pass_fds=(told[0], tells[1]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(told[0])
        os.close(tells[1])
        self.write, self.read = told[1], tells[0]
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
        """The next message, or None when it is that late."""
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
        """Has something done; events that come meanwhile are kept."""
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
    """A page, in a context of its own. `before` is a script that runs before those of the page."""

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
        # A page that never says so is looked at all the same; one that has said what is wrong will not.
        while not (shown := self.evaluate("document.readyState === 'complete' && document.body.dataset.shown")):
            browser.listen(0.02)
            late = time.monotonic() - began
            if late > PATIENCE or late > 1 and self.complaints():
                break
        self.shown = int(shown) if shown else None
        self.took = time.monotonic() - began
        browser.listen(0.1)

    def mine(self):
        """The events of this page, which are forgotten."""
        events = [event for event in self.browser.events if event.get("sessionId") == self.session]
        self.browser.events = [event for event in self.browser.events if event.get("sessionId") != self.session]
        return events

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def evaluate(self, script):
        """What a script in the page comes to; it may be a promise."""
        done = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise Broken(f"{script[:200]}: {told(done['exceptionDetails'])}")
        return done["result"].get("value")

    def whole(self):
        """Whether all rows come to be made (`data-whole` of the body)."""
        until = time.monotonic() + PATIENCE
        while not (whole := self.evaluate("'whole' in document.body.dataset")) and time.monotonic() < until:
            self.browser.listen(0.05)
        return whole

    def see(self, width, height, scheme):
        """The page in another window, of a reader who likes it "light" or "dark"."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def complaints(self):
        """What a reader's console would show in red or yellow, and what of the page is not in it: one line each."""
        self.browser.listen(0)
        self.found += self.mine()
        wrong = []
        for event in self.found:
            what, how = event["method"], event["params"]
            if what == "Runtime.exceptionThrown":
                wrong.append(f"exception: {told(how['exceptionDetails'])}")
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
        """The page from its top, so large, at least the colours of `keep` as they are. Returns the colours that the file has."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = base64.b64decode(self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"])
        data, colours = png.smaller(taken, keep)
        with open(path, "wb") as file:
            file.write(data)
        return colours

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)


def told(details):
    return details.get("exception", {}).get("description") or details["text"]
