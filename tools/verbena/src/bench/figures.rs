// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The figures of `verbena bench`: medians, spreads and ratios of what perftest measured, and what is
//! missing.

use super::plan::{Scene, Test, DEVICES};
use serde::{Deserialize, Serialize};

/// A line of `perftest-table --bench`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Sample {
    #[serde(flatten)]
    test: Test,
    device: String,
    value: f64,
}

/// The values of one device in all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Values {
    /// Their median.
    pub median: f64,
    /// Half of their range, in percent of the median. `None` for a single value.
    pub spread_percent: Option<f64>,
    /// Each value, in the order of the rounds.
    pub values: Vec<f64>,
}

/// The results of one test in one scene.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the scene.
    pub scene: &'static str,
    /// The test.
    #[serde(flatten)]
    pub test: Test,
    /// `us` or `MiB/s`.
    pub unit: &'static str,
    /// The results of Verbena.
    pub verbena: Option<Values>,
    /// The results of rxe.
    pub rxe: Option<Values>,
    /// How many times better Verbena is.
    pub ratio: Option<f64>,
}

/// A measurement without a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Missing {
    /// Name of the scene.
    pub scene: &'static str,
    /// The test.
    #[serde(flatten)]
    pub test: Test,
    /// The device.
    pub device: &'static str,
    /// Rounds without a result.
    pub rounds: usize,
    /// Why, if the guest has said.
    pub reason: Option<String>,
}

/// What the guests of a scene have printed.
#[derive(Debug, Default)]
pub struct Samples {
    samples: Vec<Sample>,
    /// Lines about failures, and the last lines of standard error.
    errors: Vec<String>,
    /// How the guests ended, if they failed.
    pub trouble: Option<String>,
}

impl Samples {
    /// Takes a line of standard output. Returns true if it is a result.
    pub fn take(&mut self, line: &str) -> bool {
        match serde_json::from_str::<Sample>(line) {
            // A value that no device can have would spoil median and picture.
            Ok(sample) if sample.value.is_finite() && sample.value > 0.0 => {
                self.samples.push(sample);
                true
            }
            _ => false,
        }
    }

    /// Takes a line of standard error.
    pub fn take_error(&mut self, line: &str) {
        if line.starts_with("FAILED")
            || line.starts_with("what happened: ")
            || line.starts_with("error: ")
        {
            self.errors.push(String::from(line));
        }
    }

    /// Returns the first error.
    pub fn first_error(&self) -> Option<&str> {
        self.errors.first().map(String::as_str)
    }

    fn values(&self, test: &Test, device: &str) -> Vec<f64> {
        let of_test = self
            .samples
            .iter()
            .filter(|sample| sample.test == *test && sample.device == device);
        of_test.map(|sample| sample.value).collect()
    }

    fn reason(&self, test: &Test, device: &str) -> Option<String> {
        let name = format!("{} {} B {device}", test.test, test.size);
        let own = self.errors.iter().find(|line| line.contains(&name));
        own.or(self.trouble.as_ref()).cloned()
    }

    /// Returns a figure for each test, and what is missing of `rounds` rounds.
    pub fn figures(
        &self,
        scene: Scene,
        tests: &[Test],
        rounds: usize,
    ) -> (Vec<Figure>, Vec<Missing>) {
        let (mut figures, mut missing) = (Vec::new(), Vec::new());
        for test in tests {
            let [verbena, rxe] = DEVICES.map(|device| {
                let values = self.values(test, device);
                let lacking = rounds.saturating_sub(values.len());
                if lacking > 0 {
                    missing.push(Missing {
                        scene: scene.name,
                        test: test.clone(),
                        device,
                        rounds: lacking,
                        reason: self.reason(test, device),
                    });
                }
                summarise(values)
            });
            let ratio =
                verbena
                    .as_ref()
                    .zip(rxe.as_ref())
                    .map(|(ours, theirs)| match test.is_latency() {
                        true => theirs.median / ours.median,
                        false => ours.median / theirs.median,
                    });
            figures.push(Figure {
                scene: scene.name,
                test: test.clone(),
                unit: test.unit(),
                verbena,
                rxe,
                ratio,
            });
        }
        (figures, missing)
    }
}

fn summarise(values: Vec<f64>) -> Option<Values> {
    let mut sorted = values.clone();
    sorted.sort_by(f64::total_cmp);
    let (least, greatest) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    };
    Some(Values {
        median,
        spread_percent: (sorted.len() > 1).then(|| 50.0 * (greatest - least) / median),
        values,
    })
}

impl Missing {
    /// Describes the measurement.
    pub fn describe(&self) -> String {
        let Test { test, size } = &self.test;
        let reason = self
            .reason
            .as_deref()
            .unwrap_or("the guest has printed no result");
        format!(
            "missing: {}, {test} {size} B, {}, {} round(s): {reason}",
            self.scene, self.device, self.rounds
        )
    }
}

impl Values {
    /// Describes median and spread, as in `43.7 MiB/s ±3%`.
    pub fn describe(&self, unit: &str) -> String {
        let amount = amount(self.median, unit);
        match self.spread_percent {
            Some(spread) => format!("{amount} ±{spread:.0}%"),
            None => amount,
        }
    }
}

/// Formats with three digits and a suitable unit: `15.4 us`, `43.7 MiB/s`, `9.88 GiB/s`.
pub fn amount(value: f64, unit: &str) -> String {
    let (value, unit) = match unit {
        "MiB/s" if value >= 1023.5 => (value / 1024.0, "GiB/s"),
        "MiB/s" if value < 0.9995 => (value * 1024.0, "KiB/s"),
        unit => (value, unit),
    };
    format!("{} {unit}", three_digits(value))
}

/// Formats with three significant digits, and at most three after the point.
pub fn three_digits(value: f64) -> String {
    let digits = match value {
        ..0.9995 => 3,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Returns the name of a message size, as in `64 KiB`.
pub fn size_name(size: u32) -> String {
    match size {
        size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 && size % (1 << 10) == 0 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::plan::SCENES;
    use super::*;

    pub fn samples() -> Samples {
        let mut samples = Samples::default();
        for (device, values) in [
            ("verbena0", [20.0, 10.0, 12.0]),
            ("rxe0", [48.0, 48.0, 50.0]),
        ] {
            for value in values {
                let line = format!("{{\"test\": \"ib_send_lat\", \"size\": 2, \"device\": \"{device}\", \"round\": 0, \"value\": {value}, \"seconds\": 1}}");
                assert!(samples.take(&line));
            }
        }
        let line = "{\"test\": \"ib_write_bw\", \"size\": 65536, \"device\": \"verbena0\", \"round\": 0, \"value\": 2048.0, \"seconds\": 1}";
        assert!(samples.take(line));
        samples.take_error("FAILED: ib_write_bw 65536 B rxe0: the server does not listen");
        samples.take_error("[1/2] round 1");
        samples
    }

    pub fn tests() -> Vec<Test> {
        let tests = SCENES[0].tests(true, "");
        let chosen = [("ib_send_lat", 2), ("ib_write_bw", 65536)];
        let is_chosen = |test: &Test| chosen.contains(&(test.test.as_str(), test.size));
        tests.into_iter().filter(is_chosen).collect()
    }

    #[test]
    fn figures_are_medians_with_spreads_and_ratios() {
        let (figures, _) = samples().figures(SCENES[0], &tests(), 3);
        let [latency, bandwidth] = &figures[..] else {
            panic!("{figures:?}");
        };
        let verbena = latency.verbena.as_ref().unwrap();
        assert_eq!((verbena.median, latency.ratio), (12.0, Some(4.0)));
        assert!((verbena.spread_percent.unwrap() - 41.67).abs() < 0.01);
        assert_eq!(verbena.describe("us"), "12.0 us ±42%");
        let verbena = bandwidth.verbena.as_ref().unwrap();
        assert_eq!(verbena.describe("MiB/s"), "2.00 GiB/s");
        assert_eq!((&bandwidth.rxe, bandwidth.ratio), (&None, None));
    }

    #[test]
    fn what_is_missing_has_its_reason() {
        let (_, missing) = samples().figures(SCENES[0], &tests(), 3);
        let texts: Vec<String> = missing.iter().map(Missing::describe).collect();
        let expected = [
            "missing: guest, ib_write_bw 65536 B, verbena0, 2 round(s): the guest has printed no result",
            "missing: guest, ib_write_bw 65536 B, rxe0, 3 round(s): FAILED: ib_write_bw 65536 B rxe0: the server does not listen",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn other_lines_are_no_results() {
        let mut samples = Samples::default();
        for line in [
            "{\"about\": {}}",
            "text",
            "{\"test\": \"a\", \"size\": 2, \"device\": \"verbena0\", \"value\": 0}",
            "{\"test\": \"a\", \"size\": 2, \"device\": \"verbena0\", \"value\": -1}",
        ] {
            assert!(!samples.take(line), "{line}");
        }
        assert!(samples.figures(SCENES[0], &[], 1).0.is_empty());
    }

    #[test]
    fn amounts_have_three_digits() {
        assert_eq!(amount(1023.4, "MiB/s"), "1023 MiB/s");
        assert_eq!(amount(1023.5, "MiB/s"), "1.00 GiB/s");
        assert_eq!(amount(0.5, "MiB/s"), "512 KiB/s");
        assert_eq!(amount(0.864, "us"), "0.864 us");
        assert_eq!(amount(9.996, "us"), "10.0 us");
        assert_eq!(
            [2, 4096, 3 << 20, 1500].map(size_name),
            ["2 B", "4 KiB", "3 MiB", "1500 B"]
        );
    }
}
