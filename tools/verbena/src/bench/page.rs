// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page of `verbena bench`: one HTML file without a reference to another, with pictures, tables
//! and the results as JSON.

use super::figures::{size_name, three_digits, Figure, Missing, Values};
use super::picture::{bandwidths, escape, ratios};
use super::plan::Scene;
use super::BenchReport;
use std::fmt::Write;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --back: #fff; --grid: #d3d9e0; --ours: #2f62d9; --theirs: #b58e10; }
@media (prefers-color-scheme: dark) { :root { --text: #e8ecf1; --soft: #a3adb8; --back: #14181d; --grid: #37414c; --ours: #5b8cff; --theirs: #ffa000; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 1020px; margin: 24px auto; padding: 0 16px; }
table { border-collapse: collapse; margin: 12px 0; } th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--grid); }
td.n { text-align: right; font-variant-numeric: tabular-nums; } .missing { color: var(--theirs); font-weight: 600; }
.scroll { overflow-x: auto; } svg { display: block; margin: 12px 0; }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; paint-order: stroke; stroke: var(--back); stroke-width: 4px; }
svg .soft { fill: var(--soft); font-size: 12px; } svg .title { font-size: 14px; font-weight: 600; } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
.grid { stroke: var(--grid); } .one { stroke: var(--text); } .better { fill: var(--ours); } .worse { fill: var(--theirs); }
polyline { fill: none; stroke-width: 2; } polyline.verbena { stroke: var(--ours); } polyline.rxe { stroke: var(--theirs); stroke-dasharray: 5 3; }
circle.verbena { fill: var(--ours); } circle.rxe { fill: var(--theirs); } pre { white-space: pre-wrap; }
";

/// Returns the page. `json` is the text of the results, which the page contains.
pub fn page(report: &BenchReport, json: &str) -> String {
    let mut body = format!(
        "<h1>Verbena and rxe: perftest</h1>\n<p>{}</p>\n{}",
        escape(&introduction(report)),
        facts(report)
    );
    if !report.missing.is_empty() {
        body += &missing(&report.missing);
    }
    for scene in &report.scenes {
        body += &section(*scene, &report.figures);
    }
    // A `<` could end the element.
    let data = json.replace('<', "\\u003c");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Verbena bench</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\
         <script type=\"application/json\" id=\"verbena-bench\">\n{data}</script>\n</body>\n</html>\n"
    )
}

fn introduction(report: &BenchReport) -> String {
    let form = if report.is_short {
        " in the short form"
    } else {
        ""
    };
    format!(
        "verbena bench{form} on {}: each test ran {} times for at least {} s with Verbena and, in turns, with the kernel's soft RoCE (rxe) in the same guests. \
         The figures are medians; ± is half the range of the rounds. A ratio above 1 means that Verbena is better. \
         Between guests, rxe runs over QEMU's own network (-netdev stream). Other work on the machine changes the results.",
        report.date, report.rounds, report.seconds
    )
}

fn facts(report: &BenchReport) -> String {
    let mut rows = String::new();
    for fact in report.host.lines(&report.guest) {
        let (name, value) = fact.split_once(": ").unwrap_or((&fact, ""));
        let _ = writeln!(
            rows,
            "<tr><th>{}</th><td>{}</td></tr>",
            escape(name),
            escape(value)
        );
    }
    let guests = format!("{} virtual CPUs, {} MB", report.cpus, report.memory_mb);
    let _ = writeln!(rows, "<tr><th>each guest</th><td>{guests}</td></tr>");
    format!("<table>\n{rows}</table>\n")
}

fn missing(missing: &[Missing]) -> String {
    let items: Vec<String> = missing
        .iter()
        .map(|one| format!("<li>{}</li>\n", escape(&one.describe())))
        .collect();
    format!(
        "<h2 class=\"missing\">Missing figures</h2>\n<ul>\n{}</ul>\n",
        items.concat()
    )
}

fn section(scene: Scene, figures: &[Figure]) -> String {
    let own: Vec<Figure> = figures
        .iter()
        .filter(|figure| figure.scene == scene.name)
        .cloned()
        .collect();
    if own.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "<h2>{}</h2>\n<div class=\"scroll\">\n{}</div>\n",
        escape(scene.title),
        ratios(&own)
    );
    if let Some(curves) = bandwidths(&own) {
        let _ = writeln!(
            text,
            "<h3>Bandwidth over the message size</h3>\n<div class=\"scroll\">\n{curves}</div>"
        );
    }
    text += "<div class=\"scroll\">\n<table>\n<tr><th>test</th><th>size</th><th>Verbena</th><th>rxe</th><th>ratio</th></tr>\n";
    for figure in &own {
        text += &row(figure);
    }
    text + "</table>\n</div>\n"
}

fn row(figure: &Figure) -> String {
    let cell = |text: Option<String>| match text {
        Some(text) => format!("<td class=\"n\">{}</td>", escape(&text)),
        None => String::from("<td class=\"missing\">missing</td>"),
    };
    let values = |values: &Option<Values>| {
        let values = values.as_ref();
        cell(values.map(|values| values.describe(figure.unit)))
    };
    format!(
        "<tr><td>{}</td><td class=\"n\">{}</td>{}{}{}</tr>\n",
        escape(&figure.test.test),
        size_name(figure.test.size),
        values(&figure.verbena),
        values(&figure.rxe),
        cell(figure.ratio.map(three_digits)),
    )
}
