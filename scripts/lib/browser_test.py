# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of `scripts/browser test`, in the browser root. `browser_test.py DIR` opens the pages that reports.py has made there, and pages with
planted errors, each of which must be found. Prints `ok NAME` or `FAILED NAME: why` for each, and ends with `N passed, N failed`.
"""
import itertools
import json
import math
import os
import re
import sys

import table_page
from browser import Broken, Browser

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../guest")
from verbena_guest.results import Results  # noqa: E402

DIR = sys.argv[1]
# Texts that the errors of each scenario's report must contain.
ERRORS = {
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
# The rows of the ladder, once all are made. A row counts if it has text; an arrow or a cross counts if the browser draws it. If there are
# more than `few` rows, only each hundredth is checked in detail.
LADDER = """(few => {
	const rows = [...document.querySelectorAll("#rows .row")], close = rows.filter((_, n) => rows.length <= few || n % 100 === 0);
	const drawn = row => {
		const after = getComputedStyle(row.querySelector("i"), "::after"), before = getComputedStyle(row.querySelector("i"), "::before");
		return after.content === '""' && parseFloat(after.width) > 0 && before.borderTopStyle !== "none" && after.clipPath !== "none";
	};
	const bare = close.filter(row => (row.matches(".packet") || row.matches(".lost.touched")) && !drawn(row));
	const text = row => row.querySelector("p").textContent;
	const odd = close.filter(row => /undefined|NaN|\\bQP (?!0x)|PSN (?!0x[0-9a-f]{6} |sequence)/.test(row.textContent) || row.querySelector("p").scrollWidth > row.querySelector("p").clientWidth + 1
		|| row.id !== "e" + row.querySelector("a").textContent.trim());
	return { rows: rows.length, packets: document.querySelectorAll("#rows .row.packet").length - bare.filter(row => row.matches(".packet")).length,
		lost: document.querySelectorAll("#rows .row.lost").length - bare.filter(row => row.matches(".lost")).length,
		odd: odd.slice(0, 3).map(text), text: rows.slice(0, 2000).map(text).join("\\n") };
})"""
# A reader can search for the text of a row, and copy it.
SEARCH = """(() => {
	const packets = [...document.querySelectorAll("#rows .row.packet")], row = packets[packets.length - 1];
	if (!row) return "";
	const text = row.querySelector("p").textContent, alike = packets.filter(one => one.textContent.includes(text)).length;
	getSelection().removeAllRanges();
	if (!window.find(text) || !getSelection().anchorNode.parentElement.closest(".row")?.textContent.includes(text)) return `${text} is not found by a search`;
	getSelection().selectAllChildren(row);
	if (!getSelection().toString().replace(/\\s+/g, " ").includes(`${row.id.slice(1)} `) || !getSelection().toString().includes(text)) return `${text} cannot be copied`;
	getSelection().removeAllRanges();
	const find = document.getElementById("find");
	find.value = text;
	find.dispatchEvent(new Event("input"));
	const answer = document.getElementById("where").textContent, found = stops.length, isMarked = document.querySelector(".row.marked")?.textContent.includes(text);
	find.value = "";
	find.dispatchEvent(new Event("input"));
	return isMarked && found >= alike && answer.endsWith("that match") ? "" : `the field "Find" finds ${found} of ${alike} rows: ${answer}`;
})()"""
# Uses the page as a reader may: each choice, each button, each link, another size of the window.
USE = """(async () => {
	const change = (id, value) => { const it = document.getElementById(id); it.value = value; it.dispatchEvent(new Event("change")); };
	for (const id of ["only", "which", "over"]) for (const one of [...document.querySelectorAll(`#${id} option`)].slice(0, 20)) change(id, one.value);
	change("only", 0);
	const received = document.getElementById("received");
	received.click();
	const sent = shown.length;
	received.click();
	for (const button of document.querySelectorAll("button")) button.click();
	const wrong = [];
	for (const link of document.querySelectorAll("#errors a, #rules a")) {
		link.click();
		await new Promise(done => setTimeout(done, 5));
		const row = shown[marked], entry = Number(link.textContent.slice(6));
		// An entry without a row leads to the next one that has one.
		if (location.hash !== "#e" + entry || !row || row[ENTRY] < entry || marked > 0 && shown[marked - 1][ENTRY] >= entry) wrong.push(link.textContent);
		const at = document.querySelector(".row.marked").getBoundingClientRect(), box = document.getElementById("ladder").getBoundingClientRect();
		if (at.top < box.top || at.bottom > box.bottom) wrong.push(`${link.textContent} is not in view`);
	}
	window.dispatchEvent(new Event("resize"));
	return { wrong, receptions: data.rows.filter(row => row[KIND] === "in").length === shown.length - sent };
})()"""
PAGE = """(() => {
	const text = id => document.getElementById(id).innerText, count = {};
	for (const one of document.querySelectorAll("*")) count[one.tagName] = (count[one.tagName] || 0) + 1;
	const row = document.querySelector(".row.marked")?.getBoundingClientRect(), box = document.getElementById("ladder").getBoundingClientRect();
	const said = [...document.querySelectorAll("#errors p, #errors li")].map(one => one.textContent);
	const moments = [...document.getElementById("errors").textContent.matchAll(/at ([0-9.]+) s \\(entry (\\d+)\\)/g)].map(found => [found[1], Number(found[2])]);
	const times = new Map(data.rows.map(row => [row[ENTRY], row[TIME]]));
	return { head: text("head"), title: document.title, name: text("name"), rules: text("rules"), errors: text("errors"), count, ran: document.body.dataset.ran || "", where: text("where"),
		wrong: data.rows.some(row => wrong.has(row[KIND])), first: marked >= 0 && wrong.has(shown[marked][KIND]), inView: row && row.top >= box.top && row.bottom <= box.bottom,
		twice: said.filter((line, n) => said.indexOf(line) !== n), decimal: /QP (?!0x)\\d/.test(document.body.textContent.replace(document.getElementById("data").textContent, "")),
		late: moments.filter(([time, entry]) => times.has(entry) && document.getElementById("e" + entry)?.querySelector("b").textContent.trim() !== time),
		fold: Math.max(0, ...[...document.querySelectorAll(".advice, .fault:first-child")].map(one => one.getBoundingClientRect().bottom)),
		errorCount: data.errors.length };
})()"""
# The plot: its axes with their numbers and titles, and the places of its points.
PLOT = """(() => {
	const all = name => [...document.querySelectorAll(`#plot ${name}`)].map(one => one.textContent);
	if (!flows.size) return null;
	document.getElementById("plot").scrollIntoView({ block: "center" });
	const first = Number(document.getElementById("which").options[0].value), box = view.picture.getBoundingClientRect(), point = view.points[Math.floor(view.points.length / 2)];
	const isOdd = flow => flow.points.some(one => wrong.has(one[3]) || one[3] === "again"), failed = data.errors.some(([who]) => who === "QP " + hex(first));
	return { isChosen: failed || isOdd(flows.get(first)) || ![...flows.values()].some(isOdd), psn: all(".psn"), time: all(".time"), title: all(".title"), paths: document.querySelectorAll("#plot path.points").length, entry: point[4][ENTRY],
		x: box.left + view.x(along(point)) * box.width / view.width, y: box.top + view.y(point[1] + point[2] / 2) * box.height / HIGH, left: box.left + EDGE.left, right: box.right - EDGE.right, part };
})()"""
# On a phone: returns what cannot be read or hit, or overlaps.
PHONE = """(() => {
	const box = one => one.getBoundingClientRect(), all = name => [...document.querySelectorAll(name)], wrong = [];
	const fold = Math.max(0, ...all(".advice, .fault:first-child").map(one => box(one).bottom + scrollY));
	if (fold > 800) wrong.push(`the first error and the advice end at ${fold} pixels`);
	for (const one of all(".wide")) if (one.scrollWidth > one.clientWidth) wrong.push(`a table is cut off: ${one.textContent.slice(0, 60)}`);
	for (const one of all("select, button, input[type=search], .tools label")) {
		const { width, height } = box(one);
		if (height && Math.min(width, height) < 40) wrong.push(`too small for a finger: ${one.id || one.textContent} (${width} x ${height})`);
	}
	for (const row of all("#rows .row").slice(0, 200)) {
		const [entry, time] = [...row.children].map(box);
		if (Math.abs(entry.top - time.top) > 1) { wrong.push(`the time of ${row.id} is below its number`); break; }
	}
	const names = all("#lanes span").map(box);
	if (names.some((one, n) => n && one.left < names[n - 1].right)) wrong.push("names of lanes overlap");
	if (flows.size && all("#plot .time").length < 2) wrong.push("the axis of the plot has no scale");
	return wrong;
})()"""
# Returns texts with too little contrast to their background, among all that are or may come into view.
CONTRAST = """(least => {
	const parts = colour => colour.match(/[\\d.]+(?:e-?\\d+)?/g).map(Number).map((part, n) => n < 3 && colour.startsWith("rgb") ? part / 255 : part);
	const light = colour => colour.slice(0, 3).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4).reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0);
	const over = (top, below) => [0, 1, 2].map(n => top[n] * (top[3] ?? 1) + below[n] * (1 - (top[3] ?? 1)));
	const ground = one => {
		const own = one ? parts(getComputedStyle(one).backgroundColor) : [1, 1, 1];
		return (own[3] ?? 1) === 1 ? own : over(own, ground(one.parentElement));
	};
	const rows = document.querySelectorAll("#rows .row"), looks = new Map([...rows].map(row => [row.className.replace(/ [ft]\\d+/g, ""), row])), wrong = [];
	const check = (one, colour, text) => {
		const [low, high] = [light(over(parts(colour), ground(one))), light(ground(one))].sort((a, b) => a - b), contrast = (high + 0.05) / (low + 0.05);
		if (contrast < least) wrong.push(`${text.slice(0, 40)} (${one.className || one.tagName}): ${contrast.toFixed(1)}`);
	};
	// Of the rows, one for each class, unmarked and marked.
	const texts = [...document.querySelectorAll("body *:not(script, style, .row, .row *)")].concat(...[...looks.values()].map(row => [...row.children]));
	const look = one => {
		const text = [...one.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join("").trim(), style = getComputedStyle(one);
		if (text) check(one, one instanceof SVGElement ? style.fill : style.color, text);
		if (one.placeholder) check(one, getComputedStyle(one, "::placeholder").color, one.placeholder);
	};
	texts.forEach(look);
	for (const row of looks.values()) {
		const was = row.classList.contains("marked");
		row.classList.add("marked");
		[...row.children].forEach(look);
		row.classList.toggle("marked", was);
	}
	return wrong.slice(0, 5);
})"""
# The colours of the states of queue pairs in the page.
STATES = """(() => Object.fromEntries([...document.querySelectorAll(".bar span")].map(one => [one.className, one])
	.map(([name, one]) => [name, getComputedStyle(one).backgroundColor]).filter(([, colour]) => colour.startsWith("rgb("))))()"""
COLOURS = """(names => {
	const style = getComputedStyle(document.documentElement);
	return Object.fromEntries(names.map(name => [name, style.getPropertyValue("--" + name).trim()]));
})"""
# Colours that must be told apart, colours of text, and backgrounds. EYES: linear light as seen by most people and by people without one
# kind of cone (Machado, Oliveira and Fernandes 2009).
APART, TEXT, GROUND = ("new", "again", "ack", "nak", "rnr", "in", "ink"), ("ink", "soft", "link"), ("bg", "panel")
EYES = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# The least distance of two colours in CIELAB; the least contrast of lines (WCAG 1.4.11) and of text (1.4.3).
DISTANCE, LINE, READABLE = 25, 3, 4.5


class Wrong(Exception):
    """A page has an error."""


def must(holds, text):
    if not holds:
        raise Wrong(text)


def linear(colour):
    parts = (int(colour[n:n + 2], 16) / 255 for n in (1, 3, 5)) if len(colour) == 7 else (int(c, 16) / 15 for c in colour[1:])
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(light):
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def contrast(one, other):
    low, high = sorted(luminance(linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour, eye):
    light = linear(colour)
    r, g, b = (min(1, max(0, sum(part * factor for part, factor in zip(light, row)))) for row in eye)
    x, y, z = ((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, luminance((r, g, b)), (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089)
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def judge_colours(colours, scheme):
    for name in (*APART, *TEXT):
        for ground in GROUND[:1] if name in APART and name not in TEXT else GROUND:
            least = READABLE if name in TEXT else LINE
            must(contrast(colours[name], colours[ground]) >= least, f"{name} on {ground} has a contrast below {least} ({scheme}): {colours[name]}")
    judge_distances({name: colours[name] for name in APART}, scheme)


def judge_distances(colours, scheme):
    for eye, seen in EYES.items():
        for one, other in itertools.combinations(colours, 2):
            distance = math.dist(lab(colours[one], seen), lab(colours[other], seen))
            must(distance >= DISTANCE, f"{one} and {other} look alike ({scheme}, {eye}): {distance:.0f}")


def judge_plot(page):
    plot = page.evaluate(PLOT)
    if not plot:
        return
    must(plot["isChosen"], "the plot begins with a queue pair that has no error and no unusual packet")
    must(len(plot["psn"]) > 1 and all(re.fullmatch("0x[0-9a-f]{6}", text) for text in plot["psn"]), f"PSNs at the axis of the plot: {plot['psn']}")
    must(len(plot["time"]) > 0, f"times at the axis of the plot: {plot['time']}")
    must("PSN" in plot["title"] and any(title.endswith(", s") or title == "entry" for title in plot["title"]), f"titles of the axes: {plot['title']}")
    must(plot["paths"] > 0, "the plot has no points")

    def mouse(kind, x, y, **more):
        page.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    mouse("mouseMoved", plot["x"], plot["y"])
    under = page.evaluate("document.getElementById('point').textContent")
    must(re.match(r"entry \d+, [\d.]+ s: QP 0x", under), f"the point under the pointer says: {under!r}")
    middle = (plot["left"] + plot["right"]) / 2
    mouse("mousePressed", middle - 60, plot["y"], button="left", clickCount=1)
    mouse("mouseMoved", middle + 60, plot["y"], button="left")
    mouse("mouseReleased", middle + 60, plot["y"], button="left", clickCount=1)
    begin, end = page.evaluate("part")
    must(plot["part"][0] < begin < end < plot["part"][1] or plot["part"] == [begin, end] and end - begin <= 1000, f"a part of the plot: {[begin, end]} of {plot['part']}")
    page.evaluate("document.getElementById('whole').click()")
    must(page.evaluate("part") == plot["part"], "the button `whole` does not restore the whole plot")


def judge_widths(page):
    """Checks a phone and wide windows, in both schemes."""
    for width, scheme in (420, "dark"), (420, "light"), (1600, "dark"):
        page.see(width, 900, scheme)
        must(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"the page is wider than the window of {width} pixels")
        judge_colours(page.evaluate(f"{COLOURS}({json.dumps([*APART, *TEXT, *GROUND])})"), scheme)
        states = page.evaluate(STATES)
        judge_distances({name: "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)) for name, colour in states.items()}, scheme)
        must(not (faint := page.evaluate(f"{CONTRAST}({READABLE})")), f"contrast of text ({scheme}): {faint}")
        if width == 420:
            must(not (wrong := page.evaluate(PHONE)), f"on a phone: {wrong}")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = luminance([int(part) / 255 for part in re.findall(r"\d+", ground)[:3]])
        must((light < 0.2) == (scheme == "dark"), f"the background is {ground} in the {scheme} scheme")
    page.see(1000, 900, "light")


def judge(browser, path, expected, plain=None):
    """Checks a page. Returns the time until it was shown, and the result of PAGE."""
    page = browser.open(path, 1000, 900)
    try:
        # First, because an error in the page explains the other failures.
        must(not page.complaints(), "; ".join(page.complaints()[:5]))
        must(page.shown is not None, "the page never sets data-shown")
        must(page.whole(), "the page never sets data-whole")
        seen = page.evaluate(PAGE)
        must(not seen["ran"], "a name was executed")
        if seen["wrong"]:
            must(seen["first"] and seen["inView"], "the ladder does not begin with the first error")
        ladder = page.evaluate(f"{LADDER}(2000)")
        for what in "rows", "packets", "lost":
            must(ladder[what] == expected[what], f"{ladder[what]} {what} in the ladder, {expected[what]} in the recording")
        must(not ladder["odd"], f"rows that cannot be read: {ladder['odd']}")
        for part in expected.get("errors", ()):
            must(part in seen["errors"], f"{part!r} is not among the errors: {seen['errors']}")
        must(not seen["twice"], f"appears more than once: {seen['twice']}")
        explained = re.findall(r"\w+ \(0x[0-9a-f]{4}\): [^.\n]+", seen["errors"])
        must(len(explained) == len(set(explained)), f"appears more than once: {explained}")
        if plain:
            must(seen["count"] == plain["count"], f"the elements differ from those without a hostile name: {seen['count']}, not {plain['count']}")
        must(not seen["late"], f"the errors have other times than the ladder: {seen['late']}")
        must(not seen["decimal"], "the number of a queue pair without 0x")
        if "scenario" in expected:
            must(seen["name"] == expected["scenario"] and seen["title"].startswith(expected["scenario"]), f"the head names {seen['name']!r}")
            must(all(rule in seen["rules"] for rule in expected["fired"]), f"rules in the head: {seen['rules']}")
            must(seen["fold"] <= 900, f"the first error and the advice end at {seen['fold']} pixels")
        if "first" in expected:
            must(f"{expected['first']} entries before them were overwritten" in seen["head"], seen["head"])
        if "reason" in expected:
            # textContent, because innerText converts both line separators.
            must(expected["reason"] in page.evaluate("document.getElementById('head').textContent"), f"the reason is not in the head: {seen['head']}")
            must(expected["rule"] in seen["errors"], f"{expected['rule']} is not among the errors: {seen['errors']}")
            must(expected["rule"] in ladder["text"], f"{expected['rule']} is not in the ladder")
        if expected["rows"] <= 2000:
            must(not (lost := page.evaluate(SEARCH)), lost)
        judge_plot(page)
        judge_widths(page)
        used = page.evaluate(USE)
        must(not used["wrong"], f"links to other entries: {used['wrong']}")
        must(used["receptions"], "receptions cannot be left out")
        must(not page.complaints(), "in use: " + "; ".join(page.complaints()[:5]))
        return page.shown, seen
    finally:
        page.close()


# A page with a table (table_page.py): a word that is too long for a line, and a verdict that must not be broken.
TABLE = [["1.1", ("long", "a rule<br><small>" + "word_" * 30 + "</small>"), ("ok", "ok"), ("bad", "FAILED<details open><summary>why</summary><pre>no</pre></details>"),
          ("known", "known"), ("dim", "-")]]
WHOLE = """(() => {
	const range = document.createRange(), box = one => { range.selectNodeContents(one); return range.getClientRects(); };
	return [...document.querySelectorAll("td.bad")].every(one => box(one.firstChild).length === 1);
})()"""


def judge_table(browser, path):
    text = table_page.page("Table", ["All that there is."], ["number", "rule", "processes", "kernel", "unit", "rxe"], ["A part", *TABLE])
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("</body>", "<script>document.body.dataset.shown = 0</script></body>"))
    page = browser.open(path)
    try:
        for width, scheme in itertools.product((420, 1000, 1600), ("light", "dark")):
            page.see(width, 900, scheme)
            must(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"a table is wider than the window of {width} pixels")
            must(not (faint := page.evaluate(f"{CONTRAST}({READABLE})")), f"contrast of text of a table ({scheme}): {faint}")
            must(page.evaluate(WHOLE), f"a word of a table is broken at {width} pixels")
        must(not page.complaints(), str(page.complaints()))
    finally:
        page.close()


def planted(text, expected):
    """Yields pages with an error, made of a good page, with a text that the message about each must contain."""
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
    yield "never", text.replace(f"{end} =", "0 ||"), "never sets data-shown"
    yield "row", text.replace("const end =", "data.rows.splice(data.rows.length - 1, 1);\nconst end ="), rows
    yield "arrow", text.replace('let shape = isPacket ?', "let shape = isPacket && row !== data.rows.find(one => one[COUNT]) ?"), packets
    yield "cross", text.replace(".lost i::after {", ".gone i::after {"), "0 lost in the ladder"
    yield "rest", text.replace("fill(n++)", "n++"), "rows in the ladder"
    yield "begin", text.replace("go(stops.length ? stops[0] : -1)", "go(0)"), "does not begin with"
    yield "words", text.replace(".row p { display: inline-block;", ".row p { white-space: nowrap; overflow: hidden; max-width: 20ch; display: inline-block;"), "rows that cannot be read"
    yield "link", text.replace("row[ENTRY] >= entry)", "row[ENTRY] > entry)"), "links to other entries"
    yield "search", text.replace(".row p { display", ".row p { visibility: hidden; display"), "is not found by a search"
    yield "find", text.replace(".includes(text) : row", '.includes("PSN") : row'), 'the field "Find" finds'
    yield "twice", text.replace("of data.advice) {", "of [...data.advice, ...data.advice]) {"), "appears more than once"
    yield "time", text.replace("(ns / 1e9)", "(ns / 1e9 + 1)"), "other times than the ladder"
    yield "decimal", text.replace('"QP " + hex(qpn)', '"QP " + qpn'), "without 0x"
    yield "fold", text.replace("#errors { display", "#errors { margin-top: 700px; display"), "pixels"
    yield "wide", text.replace("#head {", "#head { min-width: 500px;"), "wider than the window of 420"
    yield "colour", text.replace("--again: #b58e10", "--again: #3d9a6b"), "look alike (light"
    yield "dark", text.replace("--rnr: #de97ff", "--rnr: #4a7cff"), "look alike (dark"
    yield "scheme", text.replace("(prefers-color-scheme: dark)", "print"), "in the dark scheme"
    yield "states", text.replace(".RTS { --c: var(--ack); }", ".RTS { --c: #b3261e; }"), "look alike (dark"
    yield "faint", text.replace(".row.odd > *, .row.marked > * {", ".gone {"), "contrast of text (dark)"
    yield "hint", text.replace("::placeholder { color: var(--soft)", "::placeholder { color: #888"), "contrast of text (dark): ['PSN, opcode"
    yield "late-advice", text.replace(".advice { order: 1; }", ".advice { order: 1; margin-top: 400px; }"), "on a phone: ['the first error"
    yield "table", text.replace("td:last-child { grid-column: 2 / -1;", "td:last-child { width: 500px;"), "a table is cut off"
    yield "finger", text.replace("min-height: 44px", "min-height: 30px"), "too small for a finger"
    yield "broken", text.replace("- 3ch) / var(--lanes), 120px); --text: calc(100cqw - 2ch); width: max(100cqw, var(--before) + var(--across) + 3ch)", "- 2ch) / var(--lanes), 520px); --text: calc(100cqw - 2ch); width: 100cqw"), "is below its number"
    yield "names", text.replace('"--least"', '"--gone"'), "names of lanes overlap"
    yield "explained", text.replace('"errors":[[', '"errors":[["x","Same (0x1302): Twice.",[],["Same (0x1302): Twice. Or not."]],['), "appears more than once: ['"
    yield "scale", text.replace("return [all, Math.max(0", "return [innerWidth < 900 ? all.slice(0, 1) : all, Math.max(0"), "the axis of the plot"
    yield "axis", text.replace('class: "psn"', 'class: "other"'), "at the axis"
    yield "pointer", text.replace("function say(point) {", "function say(point) { return;"), "under the pointer"
    yield "zoom", text.replace("if (Math.abs(left - from) > 6)", "if (0)"), "a part of the plot"


def main():
    with open(f"{DIR}/expected.json", encoding="utf-8") as file:
        expected = json.load(file)
    results = Results("browser")

    def verdict(name, why=""):
        if why:
            results.failed(f"browser/{name}", why)
        else:
            results.passed(f"browser/{name}")

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

        scenarios = [name for name, it in expected.items() if "scenario" in it]
        if sorted(scenarios) != sorted(ERRORS):
            verdict("scenarios", f"expected.json has {sorted(scenarios)}, and the test {sorted(ERRORS)}")
        seen = {}
        for name in scenarios:
            seen[name] = attempt(name, browser, path(name), {**expected[name], "errors": ERRORS.get(name, [])})[1]
        attempt("empty", browser, path("empty"), {**expected["empty"], "errors": ["Nothing was recorded."]})
        attempt("overwritten", browser, path("overwritten"), expected["overwritten"])
        for name in (name for name in expected if name.startswith("hostile-")):
            attempt(name, browser, path(name), expected[name], plain=seen["peer-dies"])
        # As the example makes the page: each packet is sent and received, and each 97th is lost and retransmitted.
        half = 50000
        lost = half // 97
        many = {"rows": 2 * half + 2 * lost + 3, "packets": 2 * half + lost, "lost": lost}
        shown, _ = attempt("many", browser, path("many"), many)
        try:
            judge_table(browser, path("table"))
            verdict("table")
        except (Wrong, Broken) as wrong:
            verdict("table", str(wrong))
        print(f"{many['packets']} packets: shown {shown} ms after the browser began to load the page", flush=True)

        with open(path("peer-dies"), encoding="utf-8") as file:
            text = file.read()
        cases = [(name, page, "peer-dies", said) for name, page, said in planted(text, expected["peer-dies"])]
        with open(path("hostile-2"), encoding="utf-8") as file:
            markup = file.read().replace("text.append(part)", 'text.insertAdjacentHTML("beforeend", part)')
        cases.append(("markup", markup, "hostile-2", "a name was executed"))
        with open(path("device-fatal"), encoding="utf-8") as file:
            chosen = file.read().replace("sort((a, b) => b[0] - a[0])", "sort((a, b) => a[0] - b[0])")
        cases.append(("chosen", chosen, "device-fatal", "has no error and no unusual packet"))
        for name, page, like, said in cases:
            with open(path("planted"), "w", encoding="utf-8") as file:
                file.write(page)
            try:
                judge(browser, path("planted"), {**expected[like], "errors": []}, plain=seen["peer-dies"] if like != "device-fatal" else None)
                verdict(f"planted/{name}", "the planted error was not found")
            except (Wrong, Broken) as wrong:
                verdict(f"planted/{name}", "" if said in str(wrong) else f"the message does not contain {said!r}: {wrong}")
        os.remove(path("planted"))
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
