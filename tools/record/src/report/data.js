"use strict";
// What was recorded, and how it is written: one base of time (seconds since the first entry) and hexadecimal QPNs and PSNs everywhere.
const data = JSON.parse(document.getElementById("data").textContent);
// Of a row: FLOW is the queue pair whose request has the PSN, AS the look of a reception where it was sent.
const [ENTRY, TIME, QPN, PEER, KIND, TEXT, PSN, COUNT, WAY, FLOW, AS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
// Kinds of rows that are out of the ordinary, and such as a reader looks past.
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
// What a row says, as text.
const told = row => {
	const psn = row[COUNT] || row[WAY] ? psnText(row[PSN]) + " " : "";
	return (row[QPN] ? `QP ${hex(row[QPN])} ` : "") + psn + row[TEXT];
};
