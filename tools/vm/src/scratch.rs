// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A directory for the files of a unit test.

use std::path::PathBuf;

/// A new directory, which is removed with all that is in it when the test ends.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes the directory. Each test of this crate has a `name` of its own.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("verbena-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
