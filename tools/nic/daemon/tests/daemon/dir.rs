// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A directory for the sockets of a test. The tests of `src/places.rs` use it too.

use std::fs;
use std::path::PathBuf;

/// A directory for one test, which is removed at the end of the test.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Returns the names of the entries, sorted.
    pub fn list(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
