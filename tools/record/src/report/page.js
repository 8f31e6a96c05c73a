"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [ENTRY, TIME, QPN, PEER, KIND, TEXT, PSN, COUNT, WAY] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
// Pixels: of a row, of what stands above all rows, where the first lane may begin, and what a row's text needs at least.
const ROW = 16, HEAD = 22, LEFT = 140, WORDS = 400;
// So many queue pairs have a lane of their own, and so many a line.
const LANES = 24, LIVES = 500;
const colours = {
	new: "#246", again: "#d70", ack: "#287", nak: "#c22", rnr: "#a0a", in: "#bbb", lost: "#c22", rule: "#c22",
	done: "#287", failed: "#c22", flushed: "#b99", error: "#c22", work: "#ccc", state: "#05c", event: "#a0a",
};
// Of those whose lines are too light to read.
const inks = { in: "#777", work: "#999", flushed: "#a77" };
const meanings = {
	new: "request", again: "request sent again", ack: "acknowledgement or response", nak: "NAK", rnr: "RNR NAK", in: "received",
	rule: "rule fired (\u2715: lost)", failed: "error", flushed: "flushed", state: "state", event: "event",
};
const wrong = new Set(["lost", "rule", "nak", "rnr", "failed", "error", "event"]);
const $ = id => document.getElementById(id);
const hex = n => "0x" + n.toString(16);
const element = (name, text, parent) => {
	const made = document.createElement(name);
	made.textContent = text;
	if (parent) parent.append(made);
	return made;
};
const start = data.rows.length ? data.rows[0][TIME] : 0;
const end = data.rows.length ? data.rows[data.rows.length - 1][TIME] : 0;
const time = ns => ns - start < 1e7 ? ((ns - start) / 1e3).toFixed(1) + " us" : ((ns - start) / 1e6).toFixed(3) + " ms";
const packets = data.rows.reduce((sum, row) => sum + (row[COUNT] ? 1 : 0), 0);

const when = data.powerOn ? new Date(data.powerOn + start / 1e6).toISOString() : "?";
$("head").textContent = `Port ${data.mac}; taken because: ${data.reason}. ${data.rows.length} rows, ${packets} of them packets, in ${time(end)} since ${when}` +
	(data.first ? `; ${data.first} entries before them were overwritten` : "") +
	`. Times are since the first row, which was at ${(start / 1e9).toFixed(6)} s of the device clock.`;
for (const [kind, meaning] of Object.entries(meanings))
	element("span", "\u25a0 " + meaning, $("key")).style.color = inks[kind] || colours[kind];

// Where a sentence names an entry, there is a way to its row.
if (!data.errors.length) element("p", "Nothing came to an error.", $("errors"));
for (const [who, ...lines] of data.errors) {
	const box = element("div", "", $("errors"));
	box.className = "error";
	element("b", who, box);
	for (const line of lines) {
		const text = element("p", "", box);
		for (const part of line.split(/(?<=\()(entry \d+)(?=\))/)) {
			if (!/^entry \d+$/.test(part)) text.append(part);
			else element("button", part, text).addEventListener("click", () => show(Number(part.slice(6))));
		}
	}
}

// Queue pairs in the order in which they come.
const known = new Set();
for (const row of data.rows) if (row[QPN]) known.add(row[QPN]);
for (const qpn of known) {
	element("option", "QP " + hex(qpn), $("which")).value = qpn;
	element("option", "QP " + hex(qpn), $("only")).value = qpn;
}
const all = element("option", "all queue pairs");
all.value = 0;
$("only").prepend(all);
$("only").value = 0;

// A canvas as sharp as the screen.
function paper(canvas, width, height) {
	const scale = window.devicePixelRatio || 1;
	canvas.width = width * scale;
	canvas.height = height * scale;
	canvas.style.width = width + "px";
	canvas.style.height = height + "px";
	const pen = canvas.getContext("2d");
	pen.scale(scale, scale);
	pen.font = "11px sans-serif";
	pen.clearRect(0, 0, width, height);
	return pen;
}

// What the ladder has: rows, lanes, which rows tell of something wrong, and which one is marked.
let shown = [], lanes = new Map(), faults = [], marked = -1, words = WORDS;
const told = row => {
	const psn = row[COUNT] || row[WAY] ? `PSN ${hex(row[PSN])} ` : "";
	return (row[QPN] ? `QP ${hex(row[QPN])} ` : "") + psn + row[TEXT];
};
function choose() {
	const only = Number($("only").value), received = $("received").checked;
	shown = data.rows.filter(row => (received || row[KIND] !== "in") && (!only || row[QPN] === only || row[PEER] === only));
	lanes = new Map();
	faults = [];
	let longest = null;
	shown.forEach((row, n) => {
		// Those of elsewhere share one lane with those for which there is no room.
		if (row[QPN] && lanes.size < LANES && !lanes.has(row[QPN])) lanes.set(row[QPN], lanes.size);
		if (wrong.has(row[KIND])) faults.push(n);
		if (!longest || row[TEXT].length > longest[TEXT].length) longest = row;
	});
	// The name of a rule may be long; letters that are wider than those of the longest have some room.
	const pen = paper($("rungs"), 1, 1);
	words = Math.max(WORDS, longest ? pen.measureText(told(longest)).width * 1.25 + 40 : 0);
	marked = -1;
	// One row more than there are: the last one can be seen as a whole wherever the box ends.
	$("tall").style.height = (shown.length + 1) * ROW + HEAD + "px";
	go(faults.length ? faults[0] : -1);
}

// Brings a row into view and marks it.
function go(n) {
	const nth = faults.indexOf(n);
	marked = n;
	$("ladder").scrollTop = Math.max(0, n - 8) * ROW;
	$("where").textContent = nth < 0 ? `${faults.length} rows` : `row ${nth + 1} of ${faults.length}`;
	rungs();
}
function show(entry) {
	const n = shown.findIndex(row => row[ENTRY] >= entry);
	go(n < 0 ? shown.length - 1 : n);
	$("ladder").scrollIntoView({ block: "nearest" });
}
function step(by) {
	const next = by > 0 ? faults.findIndex(n => n > marked) : faults.findLastIndex(n => n < marked);
	if (next >= 0) go(faults[next]);
}

// The rows that are in view, and no others.
function rungs() {
	const box = $("ladder"), height = box.clientHeight;
	const room = Math.max(70, (box.clientWidth - LEFT - words) / Math.max(1, lanes.size));
	const right = LEFT + lanes.size * room, width = Math.max(box.clientWidth, right + words);
	$("tall").style.width = width + "px";
	const pen = paper($("rungs"), width, height);
	const x = qpn => lanes.has(qpn) ? LEFT + room / 2 + lanes.get(qpn) * room : right;
	const from = Math.floor(box.scrollTop / ROW), count = Math.ceil((height - HEAD) / ROW);
	for (let n = from; n < Math.min(shown.length, from + count); n++) {
		const kind = shown[n][KIND];
		if (n !== marked && !wrong.has(kind)) continue;
		pen.fillStyle = n === marked ? "#fd9" : "#fee";
		pen.fillRect(0, HEAD + (n - from) * ROW, width, ROW);
	}
	pen.strokeStyle = "#ddd";
	for (const qpn of lanes.keys()) {
		pen.beginPath();
		pen.moveTo(x(qpn), HEAD);
		pen.lineTo(x(qpn), height);
		pen.stroke();
	}
	for (let n = from; n < Math.min(shown.length, from + count); n++) {
		const row = shown[n], kind = row[KIND], y = HEAD + (n - from) * ROW + ROW / 2;
		pen.fillStyle = inks[kind] || colours[kind];
		pen.fillText(row[ENTRY], 4, y + 4);
		pen.fillText(time(row[TIME]), 60, y + 4);
		pen.fillText(told(row), right + 20, y + 4);
		pen.fillStyle = pen.strokeStyle = colours[kind];
		rung(pen, row, y, x(row[QPN]), x(row[PEER]));
	}
	pen.fillStyle = "#222";
	for (const qpn of lanes.keys()) pen.fillText("QP " + hex(qpn), x(qpn) - 16, 14);
	pen.fillText("entry", 4, 14);
	pen.fillText("time", 60, 14);
}

// An arrow for packets, a line that a rule ends or marks, or a square.
function rung(pen, row, y, own, other) {
	const comes = row[KIND] === "in" || row[WAY] === "in", [a, b] = comes ? [other, own] : [own, other];
	const line = (from, to) => {
		pen.setLineDash(row[KIND] === "in" ? [2, 3] : []);
		pen.beginPath();
		pen.moveTo(from, y);
		pen.lineTo(to, y);
		pen.stroke();
		pen.setLineDash([]);
	};
	if (row[COUNT]) {
		const back = b < a ? 6 : -6;
		line(a, b);
		pen.beginPath();
		pen.moveTo(b, y);
		pen.lineTo(b + back, y - 3);
		pen.lineTo(b + back, y + 3);
		pen.fill();
		return;
	}
	if (!row[WAY] || !row[PEER]) {
		pen.fillRect(own - 3, y - 3, 6, 6);
		return;
	}
	const middle = a + (b - a) / 2;
	pen.lineWidth = 2;
	if (row[KIND] === "lost") {
		line(a, middle);
		pen.beginPath();
		for (const up of [-5, 5]) {
			pen.moveTo(middle - 5, y - up);
			pen.lineTo(middle + 5, y + up);
		}
		pen.stroke();
	} else {
		line(a, b);
		pen.fillRect(middle - 5, y - 5, 10, 10);
	}
	pen.lineWidth = 1;
}

const inside = canvas => canvas.parentElement.clientWidth - 32;
function psns() {
	const width = inside($("psn")), height = 260, pen = paper($("psn"), width, height), qpn = Number($("which").value), left = 70, bottom = 20;
	const kinds = ["new", "again", "nak", "rnr", "lost", "rule"];
	const rows = data.rows.filter(row => row[QPN] === qpn && kinds.includes(row[KIND]) && (row[COUNT] || row[WAY]));
	const requests = rows.filter(row => row[KIND] === "new" || row[KIND] === "again");
	if (!requests.length) {
		pen.fillText("it sent no request", left, 20);
		return;
	}
	const first = requests[0][PSN], ahead = psn => ((psn - first + 0x800000) & 0xffffff) - 0x800000;
	let low = 0, high = 1;
	for (const row of requests) {
		low = Math.min(low, ahead(row[PSN]));
		high = Math.max(high, ahead(row[PSN]) + row[COUNT]);
	}
	const span = Math.max(1, end - start);
	const x = ns => left + (ns - start) / span * (width - left - 10);
	const y = n => 10 + (high - n) / (high - low) * (height - bottom - 10);
	for (const row of rows) {
		const n = ahead(row[PSN]);
		// What goes to the peer as an answer has the peer's PSNs.
		if (n < low || n > high) continue;
		pen.fillStyle = colours[row[KIND]];
		const top = y(n + row[COUNT]), size = row[COUNT] ? 2 : 6;
		pen.fillRect(x(row[TIME]) - size / 2, top - (size > 2 ? 3 : 0), size, Math.max(size, y(n) - top));
	}
	pen.fillStyle = "#222";
	pen.fillText(hex((first + high) & 0xffffff), 4, 14);
	pen.fillText(hex((first + low) & 0xffffff), 4, height - bottom);
	pen.fillText("0", left, height - 4);
	pen.fillText(time(end), width - 90, height - 4);
}

function lives() {
	const some = data.lives.slice(0, LIVES), line = 18, left = 90;
	$("more").textContent = data.lives.length > LIVES ? `The first ${LIVES} of ${data.lives.length}.` : "";
	const width = inside($("lives")), pen = paper($("lives"), width, some.length * line + 24);
	const shades = { RESET: "#ddd", INIT: "#bcd", RTR: "#8be", RTS: "#2a7", SQD: "#aa5", SQE: "#d70", ERR: "#c22", destroyed: "#fff" };
	const x = ns => left + (ns - start) / Math.max(1, end - start) * (width - left - 10);
	some.forEach(([qpn, ...states], n) => {
		pen.fillStyle = "#222";
		pen.fillText("QP " + hex(qpn), 4, n * line + 13);
		for (let s = 0; s < states.length; s += 2) {
			const until = s + 2 < states.length ? states[s + 2] : end;
			pen.fillStyle = shades[states[s + 1]] || "#999";
			pen.fillRect(x(states[s]), n * line + 3, Math.max(2, x(until) - x(states[s])), line - 6);
		}
	});
	let at = left;
	for (const [state, shade] of Object.entries(shades)) {
		if (state === "destroyed") continue;
		pen.fillStyle = shade;
		pen.fillRect(at, some.length * line + 6, 12, 12);
		pen.fillStyle = "#222";
		pen.fillText(state, at + 16, some.length * line + 16);
		at += 70;
	}
}

const head = element("tr", "", $("cqs"));
for (const name of ["CQ", "completions", "in error", "flushed", "first", "last", "end"]) element("th", name, head);
for (const [cqn, good, bad, flushed, first, last, death] of data.cqs) {
	const line = element("tr", "", $("cqs"));
	for (const text of [cqn, good, bad, flushed, time(first), time(last), death || "alive"]) element("td", text, line);
}

let waiting = false;
$("ladder").addEventListener("scroll", () => {
	if (waiting) return;
	waiting = true;
	requestAnimationFrame(() => { waiting = false; rungs(); });
});
$("only").addEventListener("change", choose);
$("received").addEventListener("change", choose);
$("which").addEventListener("change", psns);
$("back").addEventListener("click", () => step(-1));
$("on").addEventListener("click", () => step(1));
window.addEventListener("resize", () => { rungs(); psns(); lives(); });
choose();
psns();
lives();
// Since the browser began with the page, until it has been painted.
requestAnimationFrame(() => setTimeout(() => { document.body.dataset.shown = Math.round(performance.now()); }));
