// The lives of queue pairs, the counts of CQs, and the steps after the page is complete.
const LIVES = 500;
function lives() {
	const all = data.lives.slice(0, LIVES), times = all.flatMap(([, ...states]) => states.filter((_, n) => n % 2 === 0));
	const first = Math.min(...times), last = Math.max(end, ...times), percent = ns => 100 * ns / Math.max(1, last - first) + "%";
	$("qps").hidden = !all.length;
	$("more").textContent = all.length ? `The bars are from ${seconds(first)} s to ${seconds(last)} s.` : "";
	if (data.lives.length > LIVES) $("more").append(` The first ${LIVES} of ${data.lives.length}.`);
	for (const [qpn, ...states] of all) {
		const life = element("div", "", $("lives"), "life");
		element("strong", "QP " + hex(qpn), life);
		const bar = element("div", "", life, "bar"), list = element("ul", "", life, "states");
		bar.setAttribute("aria-hidden", true);
		for (let s = 0; s < states.length; s += 2) {
			const [from, name] = [states[s], states[s + 1]], until = s + 2 < states.length ? states[s + 2] : last;
			const look = /^[A-Z]+$/.test(name) ? name : "", one = element("li", "", list, look);
			element("b", name, one);
			one.append(` ${seconds(from)} s`);
			if (!look) continue;
			const piece = element("span", "", bar, look);
			piece.style.left = percent(from - first);
			piece.style.width = percent(Math.max(0, until - from));
		}
	}
}

function cqs() {
	$("completions").hidden = !data.cqs.length;
	const head = element("tr", "", $("cqs"));
	for (const name of ["CQ", "completions", "in error", "flushed", "first, s", "last, s", "end"]) element("th", name, head);
	for (const [cqn, good, bad, flushed, first, last, death] of data.cqs) {
		const line = element("tr", "", $("cqs")), any = good + bad + flushed > 0;
		for (const text of [cqn, good, bad, flushed, any ? seconds(first) : "-", any ? seconds(last) : "-", death ? "died " + death : "alive"]) element("td", String(text), line);
	}
}
lives();
cqs();
linked();
let wide = innerWidth;
window.addEventListener("resize", () => {
	if (innerWidth === wide) return;
	wide = innerWidth;
	plot();
});
// Time from the start of the page until the visible part was painted; `whole` is the time until the last row was made.
requestAnimationFrame(() => setTimeout(() => { document.body.dataset.shown = Math.round(performance.now()); }));
