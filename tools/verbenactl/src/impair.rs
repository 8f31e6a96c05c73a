// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl impair`: impairments of the frames that leave by the uplinks.

use clap::Args;
use verbena_protocol::{ControlRequest, Impairment, MILLION};

/// Options of the command. Without options the command prints the impairments.
#[derive(Args, Debug)]
pub struct ImpairOptions {
    /// Remove the impairments
    #[arg(value_name = "off", value_parser = ["off"])]
    off: Option<String>,

    /// Only this uplink; the first `--uplink` of the NIC is 0
    #[arg(long, value_name = "N", value_parser = uplink)]
    uplink: Option<u8>,

    /// Lose this share of the frames
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "off")]
    loss: Option<u32>,

    /// Send this share of the frames twice
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "off")]
    duplicate: Option<u32>,

    /// Flip a bit in this share of the frames
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "off")]
    corrupt: Option<u32>,

    /// Send this share of the frames without the delay, before frames that wait; needs --delay
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "off")]
    reorder: Option<u32>,

    /// Delay each frame: 10ms, 50us
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "off")]
    delay: Option<u64>,

    /// Vary the delay by up to this time
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "off")]
    jitter: Option<u64>,

    /// Send no faster than this: 100mbit, 1.5gbit
    #[arg(long, value_name = "RATE", value_parser = rate, conflicts_with = "off")]
    rate: Option<u64>,

    /// Seed of all random decisions; 1 without this option
    #[arg(long, value_name = "N", value_parser = |text: &str| crate::parse_whole(text, 0..=u64::MAX), conflicts_with = "off")]
    seed: Option<u64>,
}

impl ImpairOptions {
    /// Returns the request for these options.
    ///
    /// # Errors
    ///
    /// The options contradict each other.
    pub fn request(&self) -> Result<ControlRequest, String> {
        let uplink = self.uplink;
        let is_given = [
            self.loss.is_some(),
            self.duplicate.is_some(),
            self.corrupt.is_some(),
            self.reorder.is_some(),
            self.delay.is_some(),
            self.jitter.is_some(),
            self.rate.is_some(),
        ];
        if self.off.is_some() {
            return Ok(ControlRequest::Impair { uplink, with: None });
        }
        if !is_given.contains(&true) {
            return match (uplink, self.seed) {
                (None, None) => Ok(ControlRequest::Impairments),
                (Some(_), _) => Err(String::from(
                    "--uplink needs an impairment of that uplink, such as --loss 1, or off",
                )),
                (None, Some(_)) => Err(String::from(
                    "--seed needs an impairment that is drawn from it, such as --loss 1",
                )),
            };
        }
        let with = Impairment {
            loss_ppm: self.loss.unwrap_or(0),
            duplicate_ppm: self.duplicate.unwrap_or(0),
            corrupt_ppm: self.corrupt.unwrap_or(0),
            reorder_ppm: self.reorder.unwrap_or(0),
            delay_ns: self.delay.unwrap_or(0),
            jitter_ns: self.jitter.unwrap_or(0),
            rate_bps: self.rate.unwrap_or(0),
            seed: self.seed.unwrap_or(1),
        };
        with.check()?;
        Ok(ControlRequest::Impair {
            uplink,
            with: Some(with),
        })
    }
}

/// Parses a number that is not negative, with one of some units.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
    let unit = text.get(digits.len()..)?.to_ascii_lowercase();
    let (_, times) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = digits.parse().ok()?;
    let value = (number * times).round();
    (number >= 0.0 && value.is_finite() && value < 1e18).then_some(value)
}

fn uplink(text: &str) -> Result<u8, String> {
    crate::parse_whole(text, 0..=u8::MAX.into()).map(|number| number as u8)
}

fn percent(text: &str) -> Result<u32, String> {
    let share = f64::from(MILLION) / 100.0;
    let ppm = measure(text, &[("", share), ("%", share)]);
    let ppm = ppm.filter(|ppm| *ppm <= f64::from(MILLION));
    ppm.map(|ppm| ppm as u32)
        .ok_or_else(|| format!("{text:?} is not a percentage from 0 to 100, such as 0.1 or 5%"))
}

fn time(text: &str) -> Result<u64, String> {
    let ns = measure(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)]);
    ns.map(|ns| ns as u64)
        .ok_or_else(|| format!("{text:?} is not a time with a unit, such as 50us, 10ms or 1s"))
}

fn rate(text: &str) -> Result<u64, String> {
    let bps = measure(
        text,
        &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)],
    );
    let bps = bps.filter(|bps| *bps >= 1.0);
    bps.map(|bps| bps as u64).ok_or_else(|| {
        format!("{text:?} is not a rate with a unit, such as 500kbit, 100mbit or 1.5gbit")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        impair: ImpairOptions,
    }

    fn request(words: &str) -> Result<ControlRequest, String> {
        let words = std::iter::once("impair").chain(words.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|e| e.to_string())?;
        line.impair.request()
    }

    #[test]
    fn numbers_have_their_units() {
        assert_eq!(
            (percent("0.1"), percent("5%"), percent("100")),
            (Ok(1000), Ok(50_000), Ok(1_000_000))
        );
        assert_eq!(
            (time("50us"), time("1.5ms"), time("2S")),
            (Ok(50_000), Ok(1_500_000), Ok(2_000_000_000))
        );
        assert_eq!(
            (rate("500kbit"), rate("1.5Gbit")),
            (Ok(500_000), Ok(1_500_000_000))
        );
        for bad in ["", "%", "-1", "101", "x", "1e3000", "nan", "inf", "5ms"] {
            assert!(percent(bad).unwrap_err().contains("such as 0.1"), "{bad}");
        }
        for bad in ["", "5", "ms", "-1ms", "1h", "1e300s", "5%"] {
            assert!(time(bad).unwrap_err().contains("such as 50us"), "{bad}");
        }
        for bad in ["", "5", "0bit", "5mb", "mbit"] {
            assert!(rate(bad).unwrap_err().contains("such as 500kbit"), "{bad}");
        }
    }

    #[test]
    fn options_give_a_request_or_an_error() {
        assert_eq!(request(""), Ok(ControlRequest::Impairments));
        let off = |uplink| Ok(ControlRequest::Impair { uplink, with: None });
        assert_eq!(
            (request("off"), request("off --uplink 1")),
            (off(None), off(Some(1)))
        );
        let with = Impairment {
            loss_ppm: 10_000,
            delay_ns: 5_000_000,
            reorder_ppm: 20_000,
            seed: 9,
            ..Impairment::default()
        };
        assert_eq!(
            request("--uplink 2 --loss 1 --delay 5ms --reorder 2% --seed 9"),
            Ok(ControlRequest::Impair {
                uplink: Some(2),
                with: Some(with)
            })
        );
        for (bad, why) in [
            ("on", "off"),
            ("off --loss 1", "cannot be used with"),
            ("--uplink 1", "--loss 1, or off"),
            ("--seed 7", "--loss 1"),
            ("off --seed 7", "cannot be used with"),
            ("--loss 1 --loss", "PERCENT"),
            ("--reorder 5", "delay"),
            ("--jitter 5ms", "delay"),
            ("--uplink 300 --loss 1", "300"),
        ] {
            let error = request(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
