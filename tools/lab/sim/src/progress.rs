// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The progress of the simulation in a text file. For each version of the source code (by hash), the
//! file has the ranges of seeds that were run, and the coverage.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};
use verbena_lab_transport::network::coverage::Coverage;

/// The seeds that were run with one source.
#[derive(Debug, Default)]
pub struct SimProgress {
    /// Identification of the source.
    pub source: String,
    /// Coverage of all seeds that were run.
    pub coverage: Coverage,
    /// Seeds that were run, as ranges that do not touch, in order.
    ranges: Vec<(u64, u64)>,
}

impl SimProgress {
    /// Reads a file. The content is ignored if it is of another source or cannot be read.
    pub fn load(path: &Path, source: &str) -> Self {
        let mut state = Self {
            source: source.into(),
            ..Self::default()
        };
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines();
        if lines.next() != Some(&format!("source {source}")) {
            return state;
        }
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok());
            match (words.first().copied(), number(1), number(2)) {
                (Some("seeds"), Some(first), Some(end)) => state.add_range(first, end),
                (Some("time"), Some(time), _) => state.coverage.time_ns = time,
                (Some("met"), Some(topic), Some(a)) => {
                    if let (Some(b), Some(count)) = (number(3), number(4)) {
                        let key = [topic as u8, a as u8, b as u8];
                        state.coverage.add_raw(key, count);
                    }
                }
                _ => {}
            }
        }
        state
    }

    /// Writes the file completely or not at all.
    pub fn store(&self, path: &Path) -> io::Result<()> {
        let mut text = format!("source {}\ntime {}\n", self.source, self.coverage.time_ns);
        for (first, end) in &self.ranges {
            let _ = writeln!(text, "seeds {first} {end}");
        }
        for ([topic, a, b], count) in self.coverage.raw() {
            let _ = writeln!(text, "met {topic} {a} {b} {count}");
        }
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let new = path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(&new, path)
    }

    /// Notes that `first..end` was run.
    pub fn add(&mut self, first: u64, end: u64, coverage: &Coverage) {
        self.coverage.merge(coverage);
        self.add_range(first, end);
    }

    fn add_range(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        self.ranges.push((first, end));
        self.ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (first, end) in self.ranges.drain(..) {
            match merged.last_mut() {
                Some(last) if last.1 >= first => last.1 = last.1.max(end),
                _ => merged.push((first, end)),
            }
        }
        self.ranges = merged;
    }

    /// Returns the number of seeds that were run.
    pub fn completed_seeds(&self) -> u64 {
        self.ranges.iter().map(|(first, end)| end - first).sum()
    }

    /// Returns the seeds below `seeds` that were not run, in blocks.
    pub fn missing(&self, seeds: u64, block: u64) -> Vec<(u64, u64)> {
        let mut blocks = Vec::new();
        let mut from = 0;
        let limit = [(seeds, seeds)];
        for (first, end) in self.ranges.iter().chain(&limit) {
            let to = (*first).min(seeds);
            while from < to {
                let next = (from + block).min(to);
                blocks.push((from, next));
                from = next;
            }
            from = from.max(*end);
        }
        blocks
    }

    /// Returns a summary in one line.
    pub fn summary(&self) -> String {
        let met = match self.coverage.raw().count() {
            0 => String::new(),
            count => format!("{count} features met, "),
        };
        let hours = self.coverage.time_ns as f64 / 3.6e12;
        format!(
            "{} seeds, {hours:.1} hours of virtual time, {met}no broken rule",
            self.completed_seeds()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_joined() {
        let mut state = SimProgress::default();
        for (first, end) in [(10, 20), (0, 5), (5, 10), (40, 50)] {
            state.add(first, end, &Coverage::default());
        }
        assert_eq!(state.ranges, [(0, 20), (40, 50)]);
        assert_eq!(state.completed_seeds(), 30);
    }

    #[test]
    fn missing_seeds_are_returned_in_blocks() {
        let mut state = SimProgress::default();
        state.add(3, 5, &Coverage::default());
        state.add(8, 9, &Coverage::default());
        assert_eq!(
            state.missing(12, 2),
            [(0, 2), (2, 3), (5, 7), (7, 8), (9, 11), (11, 12)]
        );
        assert_eq!(state.missing(4, 10), [(0, 3)]);
        assert_eq!(state.missing(5, 10), [(0, 3)]);
    }

    #[test]
    fn a_stored_state_is_loaded() {
        let dir = std::env::temp_dir().join(format!("verbena-sim-{}", std::process::id()));
        let path = dir.join("state");
        let mut state = SimProgress::load(&path, "abc");
        let mut coverage = Coverage::default();
        coverage.add_raw([1, 2, 3], 4);
        coverage.time_ns = 9;
        state.add(0, 7, &coverage);
        state.store(&path).unwrap();
        let again = SimProgress::load(&path, "abc");
        assert_eq!((again.completed_seeds(), &again.coverage), (7, &coverage));
        assert_eq!(SimProgress::load(&path, "other").completed_seeds(), 0);
        fs::remove_dir_all(dir).unwrap();
    }
}
