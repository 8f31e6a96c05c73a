// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Selects the bindings of libibverbs' private ABI, and makes the library to link against.
//!
//! `VERBENA_BINDINGS` names the file of bindings (default: `src/ffi/v34.rs`), which
//! `scripts/provider-bindings` generates. Its second line names the release of rdma-core.
//!
//! The provider must have the version node of one private ABI on each symbol that it takes from
//! libibverbs, so that the dynamic linker binds it to no other. To link it, this program makes an
//! empty libibverbs with these symbols. The provider thus can be built for a libibverbs that the
//! machine does not have.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Releases of rdma-core that added an operation to extended queue pairs (44, 45), or an argument to
/// a function that the provider calls.
const CHANGES: [u32; 6] = [44, 45, 54, 57, 59, 64];

/// A file of bindings.
struct Bindings {
    file: PathBuf,
    /// Release of rdma-core, as in `56.1`.
    release: String,
    /// Number of the private ABI.
    private_abi: u32,
    /// Functions of libibverbs.
    functions: Vec<String>,
}

impl Bindings {
    fn read(file: PathBuf) -> Result<Self> {
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let generated = text.lines().nth(1).unwrap_or_default();
        let release = between(generated, "from rdma-core ", ". Do not edit")
            .ok_or("line 2 does not name a release of rdma-core")?;
        let functions: Vec<_> = text
            .lines()
            .filter_map(|line| between(line.trim_start(), "pub fn ", "("))
            // Methods of generated structures have parameters on the same line.
            .filter(|name| {
                ["ibv_", "verbs_", "_verbs_"]
                    .iter()
                    .any(|p| name.starts_with(p))
            })
            .map(str::to_owned)
            .collect();
        let private_abi = functions
            .iter()
            .find_map(|name| name.strip_prefix("verbs_register_driver_")?.parse().ok())
            .ok_or("the function verbs_register_driver_N is missing")?;
        Ok(Self {
            release: release.to_owned(),
            file,
            private_abi,
            functions,
        })
    }

    /// Number before the point of the release.
    fn major(&self) -> Result<u32> {
        let major = self.release.split('.').next().unwrap_or_default();
        Ok(major
            .parse()
            .map_err(|_| format!("'{}' is no release", self.release))?)
    }
}

/// Returns the part of `text` from `start`, with which it must begin or which it must contain, to
/// the next `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    Some(text.split_once(start)?.1.split_once(end)?.0)
}

/// Makes `libibverbs.so` in `directory`: a library without code that has all functions of the
/// bindings.
fn make_library(bindings: &Bindings, directory: &Path) -> Result<()> {
    let (source, map) = (
        directory.join("libibverbs.c"),
        directory.join("libibverbs.map"),
    );
    let mut functions = String::new();
    let mut names = String::new();
    for name in &bindings.functions {
        writeln!(functions, "void {name}(void) {{}}")?;
        writeln!(names, "\t{name};")?;
    }
    std::fs::write(&source, functions)?;
    let node = format!("IBVERBS_PRIVATE_{}", bindings.private_abi);
    std::fs::write(&map, format!("{node} {{\nglobal:\n{names}local: *;\n}};\n"))?;
    let linker = PathBuf::from(std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into()));
    let status = Command::new(&linker)
        .args([
            "-shared",
            "-nostdlib",
            "-fPIC",
            "-Wl,-soname,libibverbs.so.1",
        ])
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg("-o")
        .arg(directory.join("libibverbs.so"))
        .arg(&source)
        .status()
        .map_err(|e| format!("{}: {e}", linker.display()))?;
    if !status.success() {
        return Err(format!(
            "{} could not link {}: {status}",
            linker.display(),
            source.display()
        )
        .into());
    }
    Ok(())
}

fn main() -> Result<()> {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let file = std::env::var_os("VERBENA_BINDINGS").unwrap_or_else(|| "src/ffi/v34.rs".into());
    let bindings = Bindings::read(here.join(file))?;
    let directory = PathBuf::from(std::env::var("OUT_DIR")?);
    make_library(&bindings, &directory)?;
    println!("cargo::rerun-if-env-changed=VERBENA_BINDINGS");
    println!("cargo::rerun-if-changed={}", bindings.file.display());
    println!(
        "cargo::rustc-env=VERBENA_BINDINGS={}",
        bindings.file.display()
    );
    println!("cargo::rustc-env=VERBENA_RDMA_CORE={}", bindings.release);
    println!("cargo::rustc-link-search=native={}", directory.display());
    for change in CHANGES {
        println!("cargo::rustc-check-cfg=cfg(rdma_core_{change})");
        if bindings.major()? >= change {
            println!("cargo::rustc-cfg=rdma_core_{change}");
        }
    }
    Ok(())
}
