// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Test of the provider's check of the libibverbs that loads it.
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::path::{Path, PathBuf};
use std::process::Command;

pub static TESTS: &[GuestTest] = &[GuestTest::new(
    "res/other-libibverbs-is-refused",
    other_library,
)];

const STOCK: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

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
    let dir = std::env::temp_dir().join(format!("verbena-libibverbs-{release}"));
    let name = format!("libibverbs.so.1.14.{release}");
    // An interrupted run may have left the directory.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).at("a directory")?;
    std::fs::copy(STOCK, dir.join(&name)).at("the stock library")?;
    std::os::unix::fs::symlink(&name, dir.join("libibverbs.so.1")).at("a link")?;
    Ok(dir)
}

/// Returns the major number of the stock library's release of rdma-core.
fn stock_release() -> Result<u32, Fail> {
    let file = std::fs::canonicalize(STOCK).at("the stock library")?;
    let name = file.to_string_lossy().into_owned();
    let release = name.rsplit('.').nth(1).and_then(|text| text.parse().ok());
    release.ok_or_else(|| Fail::from(format!("{name} does not name a release")))
}

/// The provider of the stock library works with the releases that have the same private structures,
/// and with no other. The number of the private ABI is that of the stock library in each case.
fn other_library(_rig: &Rig) -> TestResult {
    let (first, last) = match stock_release()? {
        36..44 => (36, 43),
        44 => (44, 44),
        45..57 => (45, 56),
        57..59 => (57, 58),
        59..62 => (59, 61),
        62..64 => (62, 63),
        newer => (newer, newer),
    };
    for (release, fits) in [
        (first - 1, false),
        (first, true),
        (last, true),
        (last + 1, false),
        (99, false),
    ] {
        let release = format!("{release}.4");
        let dir = renamed(&release)?;
        let (opened, said) = devinfo(&dir).at(&release)?;
        ensure_eq!(opened, fits, "with {release}: {}", said.trim());
        let found = format!("verbena: libibverbs {release} ({}/", dir.display());
        for refusal in [found, format!("built for rdma-core {first}")] {
            ensure_eq!(
                said.contains(&refusal),
                !fits,
                "with {release}: {}",
                said.trim()
            );
        }
        std::fs::remove_dir_all(&dir).at("the directory")?;
    }
    Ok(())
}
