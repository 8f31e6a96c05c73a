// The ladder: a row of text for each entry, with an arrow between the lanes of queue pairs. Rows are made in pieces: the pieces in
// view at once, the others when the browser is idle. The browser lays out only the rows in view (content-visibility), but can
// find, select and link all rows.
const ROW = innerWidth > 640 ? 20 : 40, CHUNK = 100;
// Height in pixels of the other rows that are shown above the marked one.
const BEFORE = 160;
// Number of queue pairs with a lane of their own. Queue pairs of other devices and those without room share one lane.
const LANES = 24;
// Time in milliseconds for which rows are made before the browser can handle other events.
const SLICE = 12;
// Up to this number of rows, all rows are laid out at once, so that their heights are known for steps and links.
const FEW = 2000;
const meanings = {
	new: "request", again: "request sent again", ack: "acknowledgement, response", nak: "NAK", rnr: "RNR NAK", in: "received", rule: "rule fired",
	lost: "lost", failed: "error", done: "completion", flushed: "flushed", state: "state", event: "event", work: "work request begun",
};
const drawn = new Set(["new", "again", "ack", "nak", "rnr", "in"]);
const arrow = kind => drawn.has(kind) ? "packet" : kind === "rule" || kind === "lost" ? "touched" : "mark";

// The state of the ladder: rows, lanes, the rows to step between, the marked row, and the pieces.
let shown = [], lanes = new Map(), stops = [], marked = -1, chunks = [], filling = 0;

const model = element("div");
for (const name of ["a", "b", "i", "p"]) element(name, "", model);
const sizes = { entry: String(data.rows.length ? data.rows[data.rows.length - 1][ENTRY] : 0).length + 2, time: seconds(end).length + 2 };
$("ladder").style.setProperty("--entry", sizes.entry + "ch");
$("ladder").style.setProperty("--before", sizes.entry + sizes.time + "ch");
element("style", Array.from({ length: LANES + 1 }, (_, n) => `.f${n}{--f:${n}}.t${n}{--t:${n}}`).join(""), document.head);

function look(row) {
	const kind = row[KIND], own = lanes.get(row[QPN]) ?? lanes.size, other = lanes.get(row[PEER]) ?? lanes.size;
	const isPacket = row[COUNT] > 0, isTouched = row[WAY] && row[PEER] > 0;
	let shape = isPacket ? "packet" : isTouched ? "touched" : row[QPN] ? "mark" : "mark device";
	if (wrong.has(kind)) shape += " odd";
	else if (quiet.has(kind)) shape += " quiet";
	const comes = kind === "in" || row[WAY] === "in", [from, to] = comes ? [other, own] : [own, other];
	if (!isPacket && !isTouched) return `row ${kind} ${shape} f${own} t${own}`;
	return `row ${kind} ${shape} f${from} t${to}${to < from ? " leftwards" : ""}`;
}

function made(row) {
	const one = model.cloneNode(true), [entry, time, , text] = one.childNodes;
	one.id = "e" + row[ENTRY];
	one.className = look(row);
	entry.href = "#e" + row[ENTRY];
	entry.textContent = String(row[ENTRY]).padEnd(sizes.entry);
	time.textContent = seconds(row[TIME]).padStart(sizes.time - 2) + "  ";
	text.textContent = rowText(row);
	return one;
}

// Makes the rows of a piece.
function fill(n) {
	const chunk = chunks[n];
	if (!chunk || chunk.firstChild) return;
	const rows = document.createDocumentFragment();
	for (const row of shown.slice(n * CHUNK, (n + 1) * CHUNK)) rows.append(made(row));
	chunk.append(rows);
	chunk.style.minHeight = "";
	if (Math.floor(marked / CHUNK) === n) mark(true);
}
const seen = new IntersectionObserver(found => {
	for (const { target, isIntersecting } of found) if (isIntersecting) fill(chunks.indexOf(target));
}, { root: $("ladder"), rootMargin: "400px" });
function fillRest(run, n = 0) {
	const until = performance.now() + SLICE;
	while (run === filling && n < chunks.length && performance.now() < until) fill(n++);
	if (run !== filling) return;
	if (n < chunks.length) setTimeout(fillRest, 0, run, n);
	else document.body.dataset.whole = Math.round(performance.now());
}

function choose() {
	const only = Number($("only").value), received = $("received").checked;
	shown = data.rows.filter(row => (received || row[KIND] !== "in") && (!only || row[QPN] === only || row[PEER] === only));
	lanes = new Map();
	let elsewhere = false;
	for (const row of shown) if (row[QPN] && lanes.size < LANES && !lanes.has(row[QPN])) lanes.set(row[QPN], lanes.size);
	for (const row of shown) if (row[QPN] && !lanes.has(row[QPN]) || row[PEER] && !lanes.has(row[PEER])) elsewhere = true;
	$("packets").hidden = !data.rows.length;
	const names = [...lanes.keys()].map(qpn => "QP " + hex(qpn)).concat(elsewhere ? ["elsewhere"] : []);
	$("ladder").style.setProperty("--lanes", Math.max(1, names.length));
	// The names of the lanes are beside each other.
	$("ladder").style.setProperty("--least", Math.max(6, ...names.map(name => name.length)) + 1 + "ch");
	$("lanes").replaceChildren();
	element("span", " entry".padEnd(sizes.entry + 1) + "time, s".padStart(sizes.time - 2), $("lanes"));
	names.forEach((name, n) => element("span", name, $("lanes"), "lane f" + n));

	seen.disconnect();
	chunks = [];
	for (let n = 0; n < shown.length; n += CHUNK) {
		const chunk = element("div", "", null, "chunk"), tall = Math.min(CHUNK, shown.length - n) * ROW + "px";
		chunk.style.setProperty("--tall", tall);
		chunk.style.minHeight = tall;
		chunks.push(chunk);
	}
	$("rows").className = shown.length > FEW ? "" : "few";
	$("rows").replaceChildren(...chunks);
	chunks.forEach(chunk => seen.observe(chunk));
	marked = -1;
	look_for();
	go(stops.length ? stops[0] : -1);
	delete document.body.dataset.whole;
	setTimeout(fillRest, 0, ++filling);
}

// Finds the rows to step between: the rows with the text, or the unusual rows if there is no text.
function look_for() {
	const text = $("find").value.trim().toLowerCase();
	const is = text ? row => `${row[ENTRY]} ${seconds(row[TIME])} ${rowText(row)}`.toLowerCase().includes(text) : row => wrong.has(row[KIND]);
	stops = [];
	shown.forEach((row, n) => { if (is(row)) stops.push(n); });
	count();
}
function count() {
	const nth = stops.indexOf(marked), of = $("find").value.trim() ? "that match" : "out of the ordinary";
	$("where").textContent = nth < 0 ? `${stops.length || "no"} rows ${of}` : `row ${nth + 1} of ${stops.length} ${of}`;
}

const rowOf = n => n >= 0 && n < shown.length ? $("e" + shown[n][ENTRY]) : null;
const mark = is => rowOf(marked)?.classList.toggle("marked", is);
// Marks a row and scrolls it into view, with some rows before it.
function go(n) {
	mark(false);
	marked = n;
	count();
	if (n < 0) return;
	for (const near of [-1, 0, 1]) fill(Math.floor(n / CHUNK) + near);
	mark(true);
	const box = $("ladder"), place = () => rowOf(n).getBoundingClientRect().top - box.getBoundingClientRect().top - BEFORE;
	// Rows that were never in view may be higher than estimated.
	for (let tries = 0; tries < 3 && Math.abs(place()) > 1; tries++) box.scrollTop += place();
}
// Shows the row of an entry, or of the next entry that has a row. A filter that hides the row is reset.
function show(entry) {
	if (!shown.some(row => row[ENTRY] === entry) && data.rows.some(row => row[ENTRY] === entry)) {
		$("only").value = 0;
		$("received").checked = true;
		choose();
	}
	const n = shown.findIndex(row => row[ENTRY] >= entry);
	go(n < 0 ? shown.length - 1 : n);
	$("ladder").scrollIntoView({ block: "nearest" });
}
function step(by) {
	const next = by > 0 ? stops.find(n => n > marked) : stops.findLast(n => n < marked);
	if (next !== undefined) go(next);
}
const linked = () => {
	const entry = /^#e(\d+)$/.exec(location.hash);
	if (entry) show(Number(entry[1]));
};

function key(box, kinds, names) {
	for (const kind of kinds) {
		const one = element("li", "", box), swatch = element("span", "", one, `swatch ${kind} ${arrow(kind)}`);
		element("i", "", swatch);
		one.append(names[kind]);
	}
}

const known = new Set();
for (const row of data.rows) if (row[QPN]) known.add(row[QPN]);
element("option", "all", $("only")).value = 0;
for (const qpn of known) element("option", "QP " + hex(qpn), $("only")).value = qpn;
const kinds = new Set(data.rows.map(row => row[KIND] === "error" ? "failed" : row[KIND]));
key($("key"), Object.keys(meanings).filter(kind => kinds.has(kind)), meanings);
$("only").addEventListener("change", choose);
$("received").addEventListener("change", choose);
$("find").addEventListener("input", () => {
	look_for();
	if (stops.length && !stops.includes(marked)) go(stops.find(n => n > marked) ?? stops[0]);
});
$("find").addEventListener("keydown", event => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); });
// Rows out of view were not laid out, so the marked row may be at another place than estimated.
new IntersectionObserver(([{ isIntersecting }], it) => {
	if (!isIntersecting) return;
	go(marked);
	it.disconnect();
}).observe($("ladder"));
$("back").addEventListener("click", () => step(-1));
$("on").addEventListener("click", () => step(1));
// A link to the row that the address already has does not change the address.
document.addEventListener("click", event => { if (event.target.hash && event.target.hash === location.hash) linked(); });
window.addEventListener("hashchange", linked);
choose();
