// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pictures of the page of `verbena bench`, as SVG for HTML: bars with the ratios to rxe, and
//! curves of the bandwidth over the message size. Colours are those of the style sheet of the page.

use super::figures::{amount, size_name, three_digits, Figure, Values};
use std::fmt::Write;

/// Pixels: height of a bar with its gap, width of the bars, of their labels and of the figures.
const BAR_HEIGHT: f64 = 24.0;
const BAR_WIDTH: f64 = 320.0;
const LABEL_WIDTH: f64 = 190.0;
const FIGURES_WIDTH: f64 = 300.0;
/// Pixels below the bars: numbers and title of the axis.
const AXIS_HEIGHT: f64 = 44.0;
/// Pixels of a diagram of curves, and around it.
const CURVES: (f64, f64) = (250.0, 190.0);
const MARGIN: (f64, f64) = (64.0, 46.0);

/// Escapes text for HTML and for attributes in double quotes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn text(x: f64, y: f64, look: &str, content: &str) -> String {
    let content = escape(content);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{look}\">{content}</text>\n")
}

fn line(from: (f64, f64), to: (f64, f64), look: &str) -> String {
    let ((x1, y1), (x2, y2)) = (from, to);
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{look}\"/>\n"
    )
}

/// A logarithmic axis.
struct Axis {
    low: f64,
    high: f64,
    length: f64,
}

impl Axis {
    /// Returns an axis for these values, which are above 0, with some room at the ends.
    fn new(values: impl Iterator<Item = f64> + Clone, length: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        Self {
            low: low / 1.15,
            high: high * 1.25,
            length,
        }
    }

    fn at(&self, value: f64) -> f64 {
        self.length * (value / self.low).ln() / (self.high / self.low).ln()
    }

    /// Returns the numbers to print: powers of ten, with 2 and 5 if the axis is short.
    fn ticks(&self) -> Vec<f64> {
        let steps: &[f64] = match self.high / self.low {
            ..60.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = (-3..8).map(|power| 10f64.powi(power));
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * power));
        all.filter(|tick| (self.low..=self.high).contains(tick))
            .collect()
    }
}

/// Returns a picture of the ratios to rxe. A figure without a ratio has a text in the place of the bar.
pub fn ratios(figures: &[Figure]) -> String {
    let known = figures.iter().filter_map(|figure| figure.ratio);
    let axis = Axis::new(known.chain([1.0, 2.0]), BAR_WIDTH);
    let height = BAR_HEIGHT * figures.len() as f64;
    let x = |ratio: f64| LABEL_WIDTH + axis.at(ratio);
    let mut drawn = String::new();
    for tick in axis.ticks() {
        let look = if tick == 1.0 { "one" } else { "grid" };
        drawn += &line((x(tick), 0.0), (x(tick), height), look);
        drawn += &text(x(tick), height + 16.0, "soft middle", &tick.to_string());
    }
    let title = "Verbena / rxe (logarithmic); above 1 Verbena is better";
    drawn += &text(
        LABEL_WIDTH + BAR_WIDTH / 2.0,
        height + 34.0,
        "soft middle",
        title,
    );
    for (n, figure) in figures.iter().enumerate() {
        let top = BAR_HEIGHT * n as f64;
        drawn += &bar(figure, top, &x);
    }
    picture(
        (
            LABEL_WIDTH + BAR_WIDTH + FIGURES_WIDTH,
            height + AXIS_HEIGHT,
        ),
        "How many times better Verbena is than rxe",
        &drawn,
    )
}

fn bar(figure: &Figure, top: f64, x: &impl Fn(f64) -> f64) -> String {
    let label = format!("{}, {}", figure.test.test, size_name(figure.test.size));
    let mut drawn = text(LABEL_WIDTH - 10.0, top + 16.0, "end", &label);
    let values = |values: &Option<Values>| match values {
        Some(values) => amount(values.median, figure.unit),
        None => String::from("missing"),
    };
    let both = format!("{} / {}", values(&figure.verbena), values(&figure.rxe));
    let Some(ratio) = figure.ratio else {
        return drawn + &text(x(1.0) + 8.0, top + 16.0, "", &both);
    };
    let (begin, end) = (x(1.0).min(x(ratio)), x(1.0).max(x(ratio)));
    let look = if ratio >= 1.0 { "better" } else { "worse" };
    let _ = writeln!(
        drawn,
        "<rect x=\"{begin:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" class=\"{look}\"/>",
        top + 3.0,
        (end - begin).max(1.0),
        BAR_HEIGHT - 7.0
    );
    let times = format!("{}x  ({both})", three_digits(ratio));
    drawn + &text(end + 7.0, top + 16.0, "", &times)
}

/// Returns a picture of the bandwidth over the size for each operation that was measured with two
/// sizes at least, or `None` without any.
pub fn bandwidths(figures: &[Figure]) -> Option<String> {
    let of_bandwidth: Vec<&Figure> = figures
        .iter()
        .filter(|figure| !figure.test.is_latency())
        .collect();
    let mut programs: Vec<&str> = Vec::new();
    for figure in &of_bandwidth {
        let name = figure.test.test.as_str();
        let sizes = of_bandwidth.iter().filter(|other| other.test.test == name);
        if sizes.count() > 1 && !programs.contains(&name) {
            programs.push(name);
        }
    }
    let mut drawn = String::new();
    for (n, program) in programs.iter().enumerate() {
        let own = of_bandwidth
            .iter()
            .filter(|figure| figure.test.test == *program);
        let own: Vec<&Figure> = own.copied().collect();
        let left = n as f64 * (CURVES.0 + MARGIN.0 + 20.0);
        let _ = writeln!(
            drawn,
            "<g transform=\"translate({left:.0} 0)\">\n{}</g>",
            diagram(program, &own)?
        );
    }
    if programs.is_empty() {
        return None;
    }
    let width = programs.len() as f64 * (CURVES.0 + MARGIN.0 + 20.0);
    let size = (width, CURVES.1 + MARGIN.1 + 30.0);
    Some(picture(size, "Bandwidth over the message size", &drawn))
}

/// The devices, by the names of their classes in the style sheet.
const SIDES: [&str; 2] = ["verbena", "rxe"];

/// Returns the median of a device.
fn median(figure: &Figure, side: &str) -> Option<f64> {
    let values = match side {
        "rxe" => &figure.rxe,
        _ => &figure.verbena,
    };
    Some(values.as_ref()?.median)
}

/// Returns a diagram, or `None` if no value is known.
fn diagram(program: &str, figures: &[&Figure]) -> Option<String> {
    let all: Vec<f64> = figures
        .iter()
        .flat_map(|figure| SIDES.into_iter().filter_map(|side| median(figure, side)))
        .collect();
    if all.is_empty() {
        return None;
    }
    let top = 30.0;
    let sizes = figures.iter().map(|figure| f64::from(figure.test.size));
    let (across, up) = (
        Axis::new(sizes, CURVES.0),
        Axis::new(all.iter().copied(), CURVES.1),
    );
    let place = |size: u32, value: f64| {
        let x = MARGIN.0 + across.at(f64::from(size));
        (x, top + CURVES.1 - up.at(value))
    };
    let mut drawn = text(MARGIN.0, 18.0, "title", &format!("{program}, MiB/s"));
    for tick in up.ticks() {
        let y = place(figures[0].test.size, tick).1;
        drawn += &line((MARGIN.0, y), (MARGIN.0 + CURVES.0, y), "grid");
        drawn += &text(MARGIN.0 - 6.0, y + 4.0, "soft end", &tick.to_string());
    }
    for figure in figures {
        let (x, _) = place(figure.test.size, all[0]);
        let name = size_name(figure.test.size);
        drawn += &text(x, top + CURVES.1 + 18.0, "soft middle", &name);
    }
    for name in SIDES {
        let points: Vec<(f64, f64)> = figures
            .iter()
            .filter_map(|figure| Some(place(figure.test.size, median(figure, name)?)))
            .collect();
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            drawn,
            "<polyline points=\"{}\" class=\"{name}\"/>",
            list.join(" ")
        );
        for (x, y) in &points {
            let _ = writeln!(
                drawn,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" class=\"{name}\"/>"
            );
        }
        if let Some((x, y)) = points.last() {
            let label = if name == "rxe" { "rxe" } else { "Verbena" };
            drawn += &text(x - 4.0, y - 8.0, "end", label);
        }
    }
    Some(drawn)
}

fn picture((width, height): (f64, f64), about: &str, drawn: &str) -> String {
    format!(
        "<svg role=\"img\" aria-label=\"{about}\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\">\n{drawn}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{samples, tests};
    use super::super::plan::SCENES;
    use super::*;

    fn figures() -> Vec<Figure> {
        samples().figures(SCENES[0], &tests(), 3).0
    }

    #[test]
    fn each_figure_has_its_bar_or_says_that_it_is_missing() {
        let picture = ratios(&figures());
        assert!(picture.contains("4.00x  (12.0 us / 48.0 us)"), "{picture}");
        assert!(picture.contains("2.00 GiB/s / missing"), "{picture}");
        assert_eq!(picture.matches("<rect").count(), 1);
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
    }

    #[test]
    fn bandwidths_need_two_sizes() {
        let mut all = figures();
        assert_eq!(bandwidths(&all), None);
        let mut second = all[1].clone();
        second.test.size = 64;
        second.verbena.as_mut().unwrap().median = 3.0;
        all.push(second);
        let picture = bandwidths(&all).unwrap();
        assert!(
            picture.contains("ib_write_bw") && picture.contains("64 KiB"),
            "{picture}"
        );
        assert_eq!(picture.matches("<circle").count(), 2);
        for figure in &mut all {
            (figure.verbena, figure.rxe, figure.ratio) = (None, None, None);
        }
        assert_eq!(bandwidths(&all), None);
        assert!(!ratios(&all).contains("<rect"));
    }

    #[test]
    fn axes_have_numbers_inside() {
        let axis = Axis::new([0.5, 700.0].into_iter(), 100.0);
        assert_eq!(axis.ticks(), [1.0, 10.0, 100.0]);
        assert!(axis.at(0.5) > 0.0 && axis.at(700.0) < 100.0);
        let axis = Axis::new([1.0, 2.0].into_iter(), 100.0);
        assert_eq!(axis.ticks(), [1.0, 2.0]);
    }
}
