"use strict";
// The recorded data, and its format on the page: times are seconds since the first entry, and QPNs and PSNs are hexadecimal.
const data = JSON.parse(document.getElementById("data").textContent);
// Fields of a row: FLOW is the queue pair whose request has the PSN, AS the kind of the row at the sender of a received packet.
const [ENTRY, TIME, QPN, PEER, KIND, TEXT, PSN, COUNT, WAY, FLOW, AS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
// Kinds of rows that are unusual, and kinds that a reader usually skips.
const wrong = new Set(["lost", "rule", "nak", "rnr", "failed", "error", "event"]);
const quiet = new Set(["in", "work", "flushed"]);
const $ = id => document.getElementById(id);
const hex = n => "0x" + n.toString(16);
const psnText = n => "PSN 0x" + n.toString(16).padStart(6, "0");
const seconds = ns => (ns / 1e9).toFixed(6);
const element = (name, text, parent, look) => {
	const made = document.createElement(name);
	if (text) made.textContent = text;
	if (look) made.className = look;
	if (parent) parent.append(made);
	return made;
};
const end = data.rows.length ? data.rows[data.rows.length - 1][TIME] : 0;
// Returns the text of a row.
const rowText = row => {
	const psn = row[COUNT] || row[WAY] ? psnText(row[PSN]) + " " : "";
	return (row[QPN] ? `QP ${hex(row[QPN])} ` : "") + psn + row[TEXT];
};
