// PSNs over time, for the requests of one queue pair: sent packets, retransmissions and answers. All entries of one slice of the
// device have the same time, so there is also an axis of entries. Each kind is one path with at most as many points as the screen
// has, so that many packets take no longer than few.
const HIGH = 300, EDGE = { left: 84, right: 16, top: 12, bottom: 42 };
// Distance in pixels within which the pointer is at a point.
const REACH = 14;
const plotted = { new: "request", again: "sent again", ack: "ACK received", nak: "NAK received", rnr: "RNR NAK received", rule: "rule fired", lost: "lost" };
const svg = (name, attributes, parent, text) => {
	const one = document.createElementNS("http://www.w3.org/2000/svg", name);
	for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
	if (text) one.textContent = text;
	if (parent) parent.append(one);
	return one;
};

// For each queue pair that sent requests: [time, distance of the PSN from the first one, number of PSNs, kind, row].
const flows = new Map();
for (const row of data.rows) if (row[FLOW] && (row[KIND] === "new" || row[KIND] === "again") && !flows.has(row[FLOW])) flows.set(row[FLOW], { first: row[PSN], points: [] });
for (const row of data.rows) {
	const flow = flows.get(row[FLOW]), isAnswer = row[KIND] === "in" && row[QPN] === row[FLOW], kind = isAnswer ? row[AS] : row[KIND];
	// The point of a received request, and of a sent answer, belongs to the other end.
	if (!flow || !(kind in plotted) || row[KIND] === "in" && !isAnswer || !isAnswer && ["ack", "nak", "rnr"].includes(kind)) continue;
	flow.points.push([row[TIME], ((row[PSN] - flow.first + 0x800000) & 0xffffff) - 0x800000, row[COUNT] || 1, kind, row]);
}

// The visible part of the axis (nanoseconds, or entries), and the places of its points on the screen.
let part = [0, 1], view = null;
const byEntry = () => $("over").value === "1";
const along = point => byEntry() ? point[4][ENTRY] : point[0];

// Returns steps of 1, 2 or 5 times a power of ten, at least `least`, of about the wanted number. At least two steps are shown,
// because a single one is no scale. PSNs have powers of two, because they are hexadecimal.
function ticks(low, high, about, least) {
	const raw = (high - low) / about, ten = 10 ** Math.floor(Math.log10(raw)), step = Math.max(least, [1, 2, 5, 10].map(n => n * ten).find(n => n >= raw));
	const all = [];
	for (let n = Math.ceil(low / step); n * step <= high; n++) all.push(n * step);
	if (all.length < 2 && step > least) return ticks(low, high, about * 2, least);
	return [all, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))];
}
function psnTicks(low, high, first) {
	const step = 2 ** Math.max(0, Math.ceil(Math.log2((high - low) / 6)));
	const all = [];
	// The lines are at PSNs that are multiples of the step.
	for (let n = Math.ceil((low + first) / step) * step - first; n <= high; n += step) all.push(n);
	return all;
}

// Marks that would hide each other are small.
function shapes(kind, x, top, bottom, isMany) {
	const y = (top + bottom) / 2;
	if (isMany && kind !== "new" && kind !== "again") return `M${x - 1} ${y - 1}h2v2h-2z`;
	switch (kind) {
		case "new": case "again": return `M${x} ${Math.max(bottom, top + 3)}V${top}`;
		case "ack": return `M${x - 4} ${top}h8`;
		case "nak": return `M${x - 5} ${y - 4}h10l-5 9z`;
		case "rnr": return `M${x} ${y - 6}l6 6l-6 6l-6 -6z`;
		case "lost": return `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`;
		default: return `M${x - 4} ${y - 4}h8v8h-8z`;
	}
}

function plot() {
	const box = $("plot"), flow = flows.get(Number($("which").value)), width = Math.max(280, box.clientWidth);
	$("psns").hidden = !flow;
	if (!flow) return;
	const [begin, until] = part, points = flow.points.filter(point => along(point) >= begin && along(point) <= until);
	let low = Infinity, high = -Infinity;
	for (const [, psn, count] of points) {
		low = Math.min(low, psn);
		high = Math.max(high, psn + count);
	}
	if (!points.length) [low, high] = [0, 1];
	const inner = [width - EDGE.left - EDGE.right, HIGH - EDGE.top - EDGE.bottom];
	const x = at => EDGE.left + (at - begin) / (until - begin) * inner[0];
	const y = psn => EDGE.top + 8 + (high - psn) / Math.max(1, high - low) * (inner[1] - 16);
	const picture = svg("svg", { viewBox: `0 0 ${width} ${HIGH}`, height: HIGH, role: "img", "aria-label": `PSNs of the requests of QP ${hex(Number($("which").value))} over ${byEntry() ? "entries" : "time"}` });
	for (const psn of psnTicks(low, high, flow.first)) {
		svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(psn), y2: y(psn), class: "grid" }, picture);
		svg("text", { x: EDGE.left - 8, y: y(psn) + 4, "text-anchor": "end", class: "psn" }, picture, "0x" + ((flow.first + psn) & 0xffffff).toString(16).padStart(6, "0"));
	}
	const unit = byEntry() ? 1 : 1e9, [steps, digits] = ticks(begin / unit, until / unit, Math.max(2, inner[0] / 120), byEntry() ? 1 : 1e-9);
	for (const step of steps) {
		const at = x(step * unit);
		svg("line", { x1: at, x2: at, y1: EDGE.top, y2: HIGH - EDGE.bottom, class: "grid" }, picture);
		svg("text", { x: at, y: HIGH - EDGE.bottom + 16, "text-anchor": "middle", class: "time" }, picture, step.toFixed(digits));
	}
	svg("path", { d: `M${EDGE.left} ${EDGE.top}V${HIGH - EDGE.bottom}H${width - EDGE.right}`, class: "axis" }, picture);
	svg("text", { x: EDGE.left + inner[0] / 2, y: HIGH - 8, "text-anchor": "middle", class: "title" }, picture, byEntry() ? "entry" : "time since the first entry, s");
	svg("text", { transform: `translate(13 ${EDGE.top + inner[1] / 2}) rotate(-90)`, "text-anchor": "middle", class: "title" }, picture, "PSN");
	for (const kind of Object.keys(plotted)) {
		const those = points.filter(point => point[3] === kind), isMany = those.length > inner[0] / 8, all = new Set();
		for (const point of those) {
			const [, psn, count] = point;
			all.add(shapes(kind, Math.round(x(along(point)) * 2) / 2, Math.round(y(psn + count)), Math.round(y(psn)), isMany));
		}
		if (all.size) svg("path", { d: [...all].join(""), class: `points ${kind}${isMany ? " many" : ""}` }, picture);
	}
	const chosen = svg("rect", { y: EDGE.top, height: inner[1], width: 0, class: "part" }, picture), here = svg("circle", { r: 8, class: "here", visibility: "hidden" }, picture);
	box.replaceChildren(picture);
	view = { picture, points, x, y, chosen, here, width, inner };
}

// Returns the point that is nearest to a place.
function nearest(left, top) {
	let best = null, least = REACH * REACH;
	for (const point of view.points) {
		const dx = view.x(along(point)) - left;
		if (Math.abs(dx) > REACH) continue;
		const high = view.y(point[1] + point[2]), low = view.y(point[1]), dy = top < high ? high - top : top > low ? top - low : 0;
		// Of several points at one place, an unusual one comes first.
		const far = dx * dx + dy * dy - (wrong.has(point[3]) ? 9 : 0);
		if (far < least) [best, least] = [point, far];
	}
	return best;
}
function say(point) {
	if (!view) return;
	view.here.setAttribute("visibility", point ? "visible" : "hidden");
	$("point").textContent = point ? `entry ${point[4][ENTRY]}, ${seconds(point[0])} s: ${rowText(point[4])}` : "";
	if (!point) return;
	view.here.setAttribute("cx", view.x(along(point)));
	view.here.setAttribute("cy", view.y(point[1] + point[2] / 2));
}
// Shows the part of the axis with requests of the chosen queue pair, and some space around it.
function extent() {
	const points = flows.get(Number($("which").value))?.points ?? [[0, 0, 0, "", [0]]], first = along(points[0]), last = along(points[points.length - 1]);
	const room = Math.max(byEntry() ? 1 : 500, (last - first) / 40);
	return [first - room, last + room];
}
function zoom(begin, until) {
	const [first, last] = extent(), whole = last - first, length = Math.min(whole, Math.max(Math.min(whole, byEntry() ? 4 : 1000), until - begin));
	begin = Math.max(first, Math.min(last - length, begin));
	part = [begin, begin + length];
	plot();
	say(null);
}
const scale = by => {
	const middle = (part[0] + part[1]) / 2, half = (part[1] - part[0]) / 2 * by;
	zoom(middle - half, middle + half);
};

let held = null;
const placeOf = event => {
	const box = view.picture.getBoundingClientRect();
	return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * HIGH / box.height];
};
const placeAlong = left => part[0] + Math.max(0, Math.min(1, (left - EDGE.left) / view.inner[0])) * (part[1] - part[0]);
function pulled(event) {
	const [left, top] = placeOf(event);
	if (held === null) return say(nearest(left, top));
	const from = Math.max(EDGE.left, Math.min(held, left)), to = Math.min(view.width - EDGE.right, Math.max(held, left));
	view.chosen.setAttribute("x", from);
	view.chosen.setAttribute("width", Math.max(0, to - from));
}
function dropped(event) {
	const [left, top] = placeOf(event), from = held;
	held = null;
	if (from === null) return;
	if (Math.abs(left - from) > 6) return zoom(...[placeAlong(from), placeAlong(left)].sort((a, b) => a - b));
	view.chosen.setAttribute("width", 0);
	const point = nearest(left, top);
	say(point);
	if (point) location.hash = "e" + point[4][ENTRY];
}

// The first plot is that of a queue pair with an error, or else of the one with the most unusual rows.
const oddities = ([qpn, flow]) => flow.points.reduce((sum, point) => sum + (wrong.has(point[3]) || point[3] === "again" ? 1 : 1e-6), data.errors.some(([who]) => who === "QP " + hex(qpn)) ? 1e9 : 0);
const byOddity = [...flows].map(one => [oddities(one), one[0]]).sort((a, b) => b[0] - a[0]);
for (const [, qpn] of byOddity) element("option", "QP " + hex(qpn), $("which")).value = qpn;
const inPlots = new Set([...flows.values()].flatMap(flow => [...new Set(flow.points.map(point => point[3]))]));
for (const kind of Object.keys(plotted).filter(kind => inPlots.has(kind))) {
	const one = element("li", "", $("plotkey")), swatch = svg("svg", { width: 14, height: 16 }, one);
	svg("path", { d: shapes(kind, 7, kind === "ack" ? 8 : 2, kind === "ack" ? 8 : 14), class: `points ${kind}` }, swatch);
	one.append(plotted[kind]);
}
// If nearly all rows have one time, the axis of entries shows more.
const crowded = [...flows].some(([qpn, flow]) => qpn === Number($("which").value) && new Set(flow.points.map(point => point[0])).size < 10);
$("over").value = crowded ? 1 : 0;
for (const id of ["which", "over"]) $(id).addEventListener("change", () => zoom(...extent()));
$("nearer").addEventListener("click", () => scale(0.5));
$("farther").addEventListener("click", () => scale(2));
$("whole").addEventListener("click", () => zoom(...extent()));
$("plot").addEventListener("pointerdown", event => {
	if (event.pointerType === "mouse") event.preventDefault();
	held = placeOf(event)[0];
});
$("plot").addEventListener("pointermove", event => { if (view) pulled(event); });
$("plot").addEventListener("pointerleave", () => { if (held === null) say(null); });
window.addEventListener("pointerup", event => { if (view) dropped(event); });
window.addEventListener("pointercancel", () => {
	held = null;
	view?.chosen.setAttribute("width", 0);
});
zoom(...extent());
