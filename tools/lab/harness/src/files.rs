// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files with the results of a run.

use crate::junit;
use crate::results::RunResult;
use std::path::Path;

/// Writes `results.json` and `junit.xml` into a directory. A reader sees the old file or the new one.
///
/// # Errors
///
/// A file cannot be written.
pub fn write(run: &RunResult, directory: &Path) -> Result<(), String> {
    let json = serde_json::to_vec_pretty(run).map_err(|e| format!("results.json: {e}"))?;
    replace(&directory.join("results.json"), &json)?;
    replace(&directory.join("junit.xml"), &junit::document(run)?)
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let new = path.with_extension("new");
    let written = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|e| format!("{}: {e}", path.display()))
}
