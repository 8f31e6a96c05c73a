# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What `scripts/browser test` runs in the browser root: `browser_test.py DIR` opens what reports.py has made there, and pages with a planted error,
each of which has to be found. Prints `ok NAME` or `FAILED NAME: why` for each, and ends with `N passed, N failed`.
"""
import json
import os
import sys

from browser import Broken, Browser

DIR = sys.argv[1]
# Of each scenario what its errors have to say, or that there is none.
TOLD = {
    "address-changes": ["Nothing came to an error."],
    "cq-overflow": ["died, at", "CqOverflow", "CqDied"],
    "device-fatal": ["The device died", "Injected", 'Rule "dead"'],
    "link-flaps": ["RetryExceeded", 'rule "flap"'],
    "lost-ack": ["RetryExceeded", 'rule "lost answer" fired', "What to do"],
    "nak-storm": ["SequenceRetryExceeded", 'rule "storm"'],
    "peer-dies": ["RetryExceeded", 'rule "dead peer" fired', "never received it"],
    "rnr-storm": ["RnrRetryExceeded", 'rule "not ready"'],
    "slow-receiver": ["RetryExceeded", 'rule "busy"'],
    "sqe": ["is in SQE", "IBV_WC_GENERAL_ERR", 'Rule "fails"'],
    "srq-dry": ["RnrRetryExceeded", "posts receives too late or too few"],
    "srq-error": ["SRQ", "died, at", "NakRemoteOperational", 'Rule "dead SRQ"'],
}
# Notes for each row of the ladder, by its place among all: what was written, and whether there was an arrow, or a cross. What is not in view
# as a whole is not there.
NOTES = """
window.drawn = { texts: new Map(), arrows: new Set(), crosses: new Set() };
{
	const pens = CanvasRenderingContext2D.prototype;
	let at = 0, begun = 0;
	const place = (pen, y) => {
		const box = document.getElementById("ladder"), row = Math.floor((y - HEAD) / ROW);
		return pen.canvas.id === "rungs" && row >= 0 && HEAD + (row + 1) * ROW <= box.clientHeight ? Math.floor(box.scrollTop / ROW) + row : -1;
	};
	const note = (name, before) => {
		const as_it_was = pens[name];
		pens[name] = function (...all) {
			before(this, ...all);
			return as_it_was.apply(this, all);
		};
	};
	note("beginPath", () => { begun = 0; });
	note("moveTo", (pen, x, y) => { at = y; begun++; });
	note("fillText", (pen, text, x, y) => {
		const row = place(pen, y - 4);
		if (row < 0) return;
		if (pen.measureText(text).width + x > pen.canvas.width) text += " (cut off)";
		drawn.texts.set(row, (drawn.texts.get(row) || new Set()).add(String(text)));
	});
	note("fill", pen => { if (place(pen, at) >= 0) drawn.arrows.add(place(pen, at)); });
	note("stroke", pen => { if (begun === 2 && place(pen, at - 5) >= 0) drawn.crosses.add(place(pen, at - 5)); });
}
"""
# From the top of the ladder to its end, and what was drawn on the way; of a longer one it draws at once what it would with the next frame.
WALK = """(async long => {
	const box = document.getElementById("ladder"), frame = () => new Promise(requestAnimationFrame);
	for (const kept of Object.values(drawn)) kept.clear();
	rungs();
	for (let top = 0; ; top += Math.max(ROW, Math.floor((box.clientHeight - HEAD) / ROW - 1) * ROW)) {
		box.scrollTop = top;
		if (long) rungs();
		else {
			await frame();
			await frame();
		}
		if (top >= box.scrollHeight - box.clientHeight) break;
	}
	const texts = [...drawn.texts.values()].map(all => [...all].join(" | "));
	const odd = texts.filter(text => text.includes("(cut off)") || text.includes("undefined") || text.includes("NaN"));
	return { rows: drawn.texts.size, packets: drawn.arrows.size, lost: drawn.crosses.size, odd: odd.slice(0, 3), last: texts.slice(-1)[0], text: texts.slice(0, 2000).join("\\n") };
})"""
# What a reader may do: each choice, each button, another size of the window.
USE = """(async () => {
	const change = (id, value) => { const it = document.getElementById(id); it.value = value; it.dispatchEvent(new Event("change")); };
	for (const id of ["only", "which"]) for (const one of document.querySelectorAll(`#${id} option`)) change(id, one.value);
	change("only", 0);
	const received = document.getElementById("received");
	received.click();
	const sent = shown.length;
	received.click();
	for (const button of document.querySelectorAll("button")) button.click();
	const wrong = [];
	for (const link of document.querySelectorAll(".error button")) {
		link.click();
		const row = shown[marked], entry = Number(link.textContent.slice(6));
		// An entry without a row leads to the next one that has one.
		if (!row || row[ENTRY] < entry || marked > 0 && shown[marked - 1][ENTRY] >= entry) wrong.push(link.textContent);
	}
	window.dispatchEvent(new Event("resize"));
	return { wrong, receptions: data.rows.filter(row => row[KIND] === "in").length === shown.length - sent };
})()"""
PAGE = """(() => {
	const text = id => document.getElementById(id).innerText, count = {};
	for (const one of document.querySelectorAll("*")) count[one.tagName] = (count[one.tagName] || 0) + 1;
	const row = shown[marked], box = document.getElementById("ladder"), y = marked * ROW - box.scrollTop;
	return { head: text("head"), errors: text("errors"), count, ran: document.body.dataset.ran || "", where: text("where"),
		wrong: data.rows.some(row => wrong.has(row[KIND])), first: row ? wrong.has(row[KIND]) : false, inView: y >= 0 && y < box.clientHeight - HEAD,
		wide: document.documentElement.scrollWidth > window.innerWidth };
})()"""


class Wrong(Exception):
    """A page is not as it should be."""


def must(holds, text):
    if not holds:
        raise Wrong(text)


def judge(browser, path, expected, height=900, plain=None):
    """All that has to hold of a page; what it takes is told."""
    page = browser.open(path, 1100, height, before=NOTES)
    try:
        # Before anything else: what goes wrong in the page explains the rest.
        must(not page.complaints(), "; ".join(page.complaints()[:5]))
        must(page.shown is not None, "it never says that it is shown")
        seen = page.evaluate(PAGE)
        must(not seen["ran"], "a name was executed")
        must(not seen["wide"], "it is wider than the window")
        if seen["wrong"]:
            must(seen["first"] and seen["inView"], "the ladder does not begin with what went wrong")
        if plain:
            must(seen["count"] == plain["count"], f"other elements than without such a name: {seen['count']}, not {plain['count']}")
        ladder = page.evaluate(f"{WALK}({json.dumps(expected['rows'] > 300)})")
        for what in "rows", "packets", "lost":
            must(ladder[what] == expected[what], f"{ladder[what]} {what} in the ladder, {expected[what]} in the recording")
        must(not ladder["odd"], f"rows that cannot be read: {ladder['odd']}")
        for part in expected.get("told", ()):
            must(part in seen["errors"], f"{part!r} is not among its errors: {seen['errors']}")
        if "first" in expected:
            must(f"{expected['first']} entries before them were overwritten" in seen["head"], seen["head"])
        if "reason" in expected:
            # innerText has neither of the line separators as it is.
            must(expected["reason"] in page.evaluate("document.getElementById('head').textContent"), f"the reason is not in its head: {seen['head']}")
            must(expected["rule"] in seen["errors"], f"{expected['rule']} is not among its errors: {seen['errors']}")
            must(expected["rule"] in ladder["text"], f"{expected['rule']} is not in its ladder")
        used = page.evaluate(USE)
        must(not used["wrong"], f"links to other entries: {used['wrong']}")
        must(used["receptions"], "receptions cannot be left out")
        must(not page.complaints(), "in use: " + "; ".join(page.complaints()[:5]))
        return page.shown, seen
    finally:
        page.close()


def planted(text, expected):
    """Pages with an error in them, made of a good one, by what has to be said of each."""
    rows, packets = f"{expected['rows'] - 1} rows in the ladder", f"{expected['packets'] - 1} packets in the ladder"
    end = "document.body.dataset.shown"
    policy = text[text.index("<meta http-equiv"):text.index("<title>")]

    def late(script):
        return text.replace("</script>\n</body>", f"{script}\n</script>\n</body>")

    yield "console", late('console.error("planted", 1);'), "console.error: planted 1"
    yield "exception", late('throw new Error("planted");'), "exception: Error: planted"
    yield "later", late('setTimeout(() => { null.planted; }, 20);'), "exception: TypeError"
    yield "rejection", late('Promise.reject(new Error("planted"));'), "exception: Error: planted"
    yield "syntax", late("planted planted"), "exception: SyntaxError"
    yield "in-use", text.replace("function step(by) {", "function step(by) { planted();"), "in use: exception: ReferenceError"
    yield "policy", late('new Image().src = "http://192.0.2.1/planted";'), "192.0.2.1/planted"
    yield "image", late('new Image().src = "http://192.0.2.1/planted";').replace(policy, ""), "request: http://192.0.2.1/planted"
    yield "fetch", late('fetch("http://192.0.2.1/planted").catch(() => 0);').replace(policy, ""), "request: http://192.0.2.1/planted"
    yield "font", text.replace("<style>", '<link rel="stylesheet" href="http://192.0.2.1/planted">\n<style>').replace(policy, ""), "request: http://192.0.2.1/planted"
    yield "never", text.replace(f"{end} =", "0 ||"), "never says"
    yield "row", text.replace("const start =", "data.rows.splice(data.rows.length - 1, 1);\nconst start ="), rows
    yield "arrow", text.replace("if (row[COUNT]) {", "if (row[COUNT] && row !== data.rows.find(one => one[COUNT])) {"), packets
    yield "cross", text.replace('if (row[KIND] === "lost")', "if (0)"), "0 lost in the ladder"
    yield "last", text.replace("(shown.length + 1) * ROW", "shown.length * ROW - 9"), rows
    yield "begin", text.replace("go(faults.length ? faults[0] : -1)", "go(0)"), "does not begin with"
    yield "words", text.replace("WORDS = 400", "WORDS = 200").replace("width * 1.25 + 40", "width - 40"), "rows that cannot be read"
    yield "link", text.replace("row[ENTRY] >= entry", "row[ENTRY] > entry"), "links to other entries"


def main():
    with open(f"{DIR}/expected.json", encoding="utf-8") as file:
        expected = json.load(file)
    passed = failed = 0

    def verdict(name, why=""):
        nonlocal passed, failed
        passed, failed = passed + (not why), failed + bool(why)
        print(f"FAILED browser/{name}: {why}" if why else f"ok browser/{name}", flush=True)

    def attempt(name, *judged, **how):
        try:
            shown, seen = judge(*judged, **how)
            verdict(name)
            return shown, seen
        except (Wrong, Broken) as wrong:
            verdict(name, str(wrong))
            return None, None

    with Browser() as browser:
        def path(name):
            return f"{DIR}/{name}.html"

        scenarios = [name for name, it in expected.items() if it.get("scenario")]
        if sorted(scenarios) != sorted(TOLD):
            verdict("scenarios", f"{scenarios}, and not those of which the test knows")
        seen = {}
        for name in scenarios:
            seen[name] = attempt(name, browser, path(name), {**expected[name], "told": TOLD.get(name, [])})[1]
        attempt("empty", browser, path("empty"), {**expected["empty"], "told": ["Nothing came to an error."]})
        attempt("overwritten", browser, path("overwritten"), expected["overwritten"])
        for name in (name for name in expected if name.startswith("hostile-")):
            attempt(name, browser, path(name), expected[name], plain=seen["peer-dies"])
        # As the example makes them: each packet is sent and received, and each 97th was lost and sent again.
        half = 50000
        lost = half // 97
        many = {"rows": 2 * half + 2 * lost + 3, "packets": 2 * half + lost, "lost": lost}
        shown, _ = attempt("many", browser, path("many"), many, height=9000)
        print(f"{many['packets']} packets: shown {shown} ms after the browser began with the page", flush=True)

        with open(path("peer-dies"), encoding="utf-8") as file:
            text = file.read()
        cases = [(name, page, "peer-dies", said) for name, page, said in planted(text, expected["peer-dies"])]
        with open(path("hostile-2"), encoding="utf-8") as file:
            markup = file.read().replace("text.append(part)", 'text.insertAdjacentHTML("beforeend", part)')
        cases.append(("markup", markup, "hostile-2", "a name was executed"))
        for name, page, like, said in cases:
            with open(path("planted"), "w", encoding="utf-8") as file:
                file.write(page)
            try:
                judge(browser, path("planted"), {**expected[like], "told": []}, plain=seen["peer-dies"])
                verdict(f"planted/{name}", "nothing was found")
            except (Wrong, Broken) as wrong:
                verdict(f"planted/{name}", "" if said in str(wrong) else f"{said!r} was not found, but: {wrong}")
        os.remove(path("planted"))
    print(f"{passed} passed, {failed} failed", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
