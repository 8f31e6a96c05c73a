"use strict";
const began = performance.now();
const data = JSON.parse(document.getElementById("data").textContent);
const [TIME, QPN, PEER, KIND, TEXT, PSN, COUNT] = [0, 1, 2, 3, 4, 5, 6];
const ROW = 16, HEAD = 22;
const colours = {
	new: "#246", again: "#d70", ack: "#2a7", nak: "#c22", rnr: "#a0a", in: "#bbb", rule: "#c22",
	done: "#2a7", failed: "#c22", work: "#999", state: "#05c", event: "#a0a",
};
const meanings = {
	new: "request", again: "request sent again", ack: "acknowledgement or response", nak: "NAK", rnr: "RNR NAK", in: "received",
	rule: "rule fired", failed: "completion in error", state: "state", event: "event",
};
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
const time = ns => ((ns - start) / 1e3).toFixed(1) + " us";

const when = data.powerOn ? new Date(data.powerOn + start / 1e6).toISOString() : "?";
$("head").textContent = `Port ${data.mac}; ${data.reason}. ${data.rows.length} entries in ${time(end)} since ${when}; ` +
	`${data.first} before them were overwritten. Times are since the first entry.`;
for (const [kind, meaning] of Object.entries(meanings))
	element("span", "\u25a0 " + meaning, $("key")).style.color = colours[kind];
if (!data.errors.length) element("p", "No queue pair came to an error.", $("errors"));
for (const [qpn, ...lines] of data.errors) {
	const box = element("div", "", $("errors"));
	box.className = "error";
	element("b", "QP " + hex(qpn), box);
	for (const line of lines) element("p", line, box);
}

// Queue pairs in the order in which they come; those of elsewhere have no line of their own.
const columns = new Map();
for (const row of data.rows) if (row[QPN] && !columns.has(row[QPN])) columns.set(row[QPN], columns.size);
for (const qpn of columns.keys()) {
	element("option", "QP " + hex(qpn), $("which")).value = qpn;
	element("option", "QP " + hex(qpn), $("only")).value = qpn;
}
const all = element("option", "all queue pairs");
all.value = 0;
$("only").prepend(all);
$("only").value = 0;

// A canvas as sharp as the screen, of which the place in the page says how wide it is.
function paper(canvas, height) {
	const scale = window.devicePixelRatio || 1, width = canvas.parentElement.clientWidth;
	canvas.width = width * scale;
	canvas.height = height * scale;
	canvas.style.height = height + "px";
	const pen = canvas.getContext("2d");
	pen.scale(scale, scale);
	pen.font = "11px sans-serif";
	pen.clearRect(0, 0, width, height);
	return [pen, width, height];
}

let shown = [];
function choose() {
	const only = Number($("only").value), received = $("received").checked;
	shown = data.rows.filter(row => (received || row[KIND] !== "in") && (!only || row[QPN] === only || row[PEER] === only));
	$("tall").style.height = shown.length * ROW + HEAD + "px";
	rungs();
}

// The rows that are in view, and no others.
function rungs() {
	const box = $("ladder"), [pen, width, height] = paper($("rungs"), box.clientHeight);
	const left = 90, room = Math.max(40, (width - left - 380) / Math.max(1, columns.size));
	const x = qpn => columns.has(qpn) ? left + room / 2 + columns.get(qpn) * room : left + columns.size * room;
	const from = Math.floor(box.scrollTop / ROW), count = Math.ceil(height / ROW);
	pen.strokeStyle = "#ddd";
	for (const qpn of columns.keys()) {
		pen.beginPath();
		pen.moveTo(x(qpn), HEAD);
		pen.lineTo(x(qpn), height);
		pen.stroke();
	}
	for (let n = from; n < Math.min(shown.length, from + count); n++) {
		const row = shown[n], y = HEAD + (n - from) * ROW + ROW / 2;
		pen.fillStyle = pen.strokeStyle = colours[row[KIND]] || "#222";
		const psn = row[PSN] || row[COUNT] ? `, PSN ${hex(row[PSN])}` : "";
		pen.fillText(time(row[TIME]), 4, y + 4);
		pen.fillText(`QP ${hex(row[QPN])} ${row[TEXT]}${psn}`, left + columns.size * room + 20, y + 4);
		if (!row[COUNT]) {
			pen.fillRect(x(row[QPN]) - 3, y - 3, 6, 6);
			continue;
		}
		const [a, b] = row[KIND] === "in" ? [x(row[PEER]), x(row[QPN])] : [x(row[QPN]), x(row[PEER])];
		pen.setLineDash(row[KIND] === "in" ? [2, 3] : []);
		pen.beginPath();
		pen.moveTo(a, y);
		pen.lineTo(b, y);
		pen.stroke();
		pen.setLineDash([]);
		const back = b < a ? 6 : -6;
		pen.beginPath();
		pen.moveTo(b, y);
		pen.lineTo(b + back, y - 3);
		pen.lineTo(b + back, y + 3);
		pen.fill();
	}
	pen.fillStyle = "#fff";
	pen.fillRect(0, 0, width, HEAD);
	pen.fillStyle = "#222";
	for (const qpn of columns.keys()) pen.fillText("QP " + hex(qpn), x(qpn) - 16, 14);
}

function psns() {
	const [pen, width, height] = paper($("psn"), 260), qpn = Number($("which").value), left = 70, bottom = 20;
	const kinds = ["new", "again", "ack", "nak", "rnr", "rule"];
	const rows = data.rows.filter(row => row[QPN] === qpn && kinds.includes(row[KIND]) && (row[COUNT] || row[KIND] === "rule"));
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
		// Answers to the peer have the peer's PSNs.
		if (n < low || n > high || row[KIND] === "ack") continue;
		pen.fillStyle = colours[row[KIND]];
		const top = y(n + row[COUNT]), size = row[KIND] === "rule" ? 6 : 2;
		pen.fillRect(x(row[TIME]) - size / 2, top - (size > 2 ? 3 : 0), size, Math.max(size, y(n) - top));
	}
	pen.fillStyle = "#222";
	pen.fillText(hex((first + high) & 0xffffff), 4, 14);
	pen.fillText(hex((first + low) & 0xffffff), 4, height - bottom);
	pen.fillText("0", left, height - 4);
	pen.fillText(time(end), width - 90, height - 4);
}

function lives() {
	const line = 18, [pen, width] = paper($("lives"), data.lives.length * line + 24), left = 90;
	const shades = { RESET: "#ddd", INIT: "#bcd", RTR: "#8be", RTS: "#2a7", SQD: "#aa5", SQE: "#d70", ERR: "#c22", destroyed: "#fff" };
	const x = ns => left + (ns - start) / Math.max(1, end - start) * (width - left - 10);
	data.lives.forEach(([qpn, ...states], n) => {
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
		pen.fillRect(at, data.lives.length * line + 6, 12, 12);
		pen.fillStyle = "#222";
		pen.fillText(state, at + 16, data.lives.length * line + 16);
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
window.addEventListener("resize", () => { rungs(); psns(); lives(); });
choose();
psns();
lives();
document.body.dataset.shown = Math.round(performance.now() - began);
