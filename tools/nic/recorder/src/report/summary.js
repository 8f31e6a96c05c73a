// The top of the page: the source of the recording, the errors, their causes, and the advice.

// Each entry that a sentence names becomes a link to its row.
function sentence(line, parent, name = "p", look = "") {
	const text = element(name, "", parent, look);
	for (const part of line.split(/(?<=\()(entry \d+)(?=\))/)) {
		if (/^entry \d+$/.test(part)) element("a", part, text).href = "#e" + part.slice(6);
		else text.append(part);
	}
	return text;
}

function title() {
	$("name").textContent = data.name;
	document.title = `${data.name}: ${data.errors.length ? data.errors[0][1].replace(/, at [\d.]+ s \(entry \d+\)/, "") : "nothing came to an error"}`;
	for (const [name, action, count, first] of data.rules) {
		const chip = element("span", `${name} (${action}) fired ${count === 1 ? "once" : count + " times"}: `, $("rules"));
		element("a", `entry ${first}`, chip).href = "#e" + first;
	}
	const packets = data.rows.reduce((sum, row) => sum + (row[COUNT] ? 1 : 0), 0);
	const began = data.began ? `, which was at ${new Date(data.began).toISOString()}` : "";
	const facts = [`Port ${data.mac}`, `Taken because: ${data.reason}`];
	if (data.rows.length) {
		facts.push(`${data.rows.length} rows, ${packets} of them packets, in ${seconds(end)} s`);
		facts.push(`Times are in seconds since the first entry${began} (${seconds(data.clock)} s of the device clock)`);
	}
	if (data.first) facts.splice(3, 0, `${data.first} entries before them were overwritten`);
	for (const fact of facts) element("li", fact, $("head"));
}

// An error: the moments of similar errors follow its own.
function errorCard([, what, again, why], parent, nth) {
	const card = element("article", "", parent, why.length ? "card fault two" : "card fault");
	const left = element("div", "", card);
	element("h3", nth ? "What happened then" : "What happened", left);
	sentence(what, left, "p", "what");
	if (again.length) sentence(`The same came again ${again.join(", ")}.`, left, "p", "repeated");
	if (!why.length) return;
	const right = element("div", "", card);
	element("h3", "Why", right);
	const list = element("ul", "", right, "why");
	for (const line of why) sentence(line, list, "li");
}

// Number of errors that are shown before the reader opens the others.
const FIRST = 3;
function errors() {
	const box = $("errors"), left = element("div", "", box);
	if (!data.errors.length) {
		const card = element("article", "", left, "card fine");
		element("h3", "What happened", card);
		element("p", data.rows.length ? "Nothing came to an error." : "Nothing was recorded.", card, "what");
	}
	data.errors.slice(0, FIRST).forEach((one, nth) => errorCard(one, left, nth));
	if (data.errors.length > FIRST) {
		const more = element("details", "", left);
		element("summary", `${data.errors.length - FIRST} more`, more);
		data.errors.slice(FIRST).forEach(one => errorCard(one, more, FIRST));
	}
	if (!data.advice.length) return;
	box.className = "both";
	const card = element("aside", "", box, "card advice");
	element("h3", "What to do", card);
	for (const [text, who] of data.advice) {
		const names = data.advice.length > 1 ? `${who.slice(0, 4).join(", ")}${who.length > 4 ? ", ..." : ""}: ` : "";
		sentence(names + text[0].toUpperCase() + text.slice(1), card);
	}
}
title();
errors();
