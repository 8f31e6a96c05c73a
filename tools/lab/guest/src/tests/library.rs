// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Test of the provider's check of the libibverbs that loads it.
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::path::{Path, PathBuf};
use std::process::Command;

pub static TESTS: &[GuestTest] = &[GuestTest::new("res/old-libibverbs-is-refused", old_library)];

/// Runs `ibv_devinfo` with the libibverbs of this directory. Returns true if it succeeded, and its
/// standard error.
fn devinfo(library: &Path) -> Result<(bool, String), Fail> {
    let out = Command::new("ibv_devinfo")
        .args(["-d", &env().device])
        .env("LD_LIBRARY_PATH", library)
        .output()
        .at("ibv_devinfo")?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    Ok((out.status.success(), said))
}

/// Creates a directory with the stock library under the name of another release.
fn renamed(release: &str) -> Result<PathBuf, Fail> {
    let stock = Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
    let dir = std::env::temp_dir().join(format!("verbena-libibverbs-{release}"));
    let name = format!("libibverbs.so.1.14.{release}");
    // An interrupted run may have left the directory.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).at("a directory")?;
    std::fs::copy(stock, dir.join(&name)).at("the stock library")?;
    std::os::unix::fs::symlink(&name, dir.join("libibverbs.so.1")).at("a link")?;
    Ok(dir)
}

fn old_library(_rig: &Rig) -> TestResult {
    for (release, fits) in [
        ("39.0", false),
        ("44.0", false),
        ("45.0", true),
        ("56.9", true),
    ] {
        let dir = renamed(release)?;
        let (opened, said) = devinfo(&dir).at(release)?;
        ensure_eq!(opened, fits, "with {release}: {}", said.trim());
        let refusal = format!("verbena: libibverbs {release} ({}/", dir.display());
        ensure_eq!(
            said.contains(&refusal),
            !fits,
            "with {release}: {}",
            said.trim()
        );
        ensure_eq!(
            said.contains("45.0 or newer"),
            !fits,
            "with {release}: {}",
            said.trim()
        );
        std::fs::remove_dir_all(&dir).at("the directory")?;
    }
    Ok(())
}
