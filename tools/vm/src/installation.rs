// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where the parts of a guest come from: QEMU, the kernel, the disk, the NIC.
//!
//! A file of lines `KEY=PATH` names the parts. In a checkout `scripts/build installation` makes them
//! and writes the file `build/installation`. The Debian packages install the parts and the file
//! `share/verbena/installation`. `VERBENA_INSTALLATION` names another such file.

use std::path::{Path, PathBuf};

/// The environment variable that names the file of an installation.
pub const VARIABLE: &str = "VERBENA_INSTALLATION";
/// The file of a checkout.
const IN_CHECKOUT: &str = "build/installation";
/// The file of the packages, from the directory above that of the program.
const IN_PREFIX: &str = "share/verbena/installation";

/// The parts of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// A Debian root with QEMU and the libraries of the other programs. `/` if they are installed on
    /// this machine.
    pub qemu_root: PathBuf,
    /// The unpacked kernel of the guests.
    pub kernel: PathBuf,
    /// The disk image of the guests, which runs do not change.
    pub disk: PathBuf,
    /// The first root of the guests: a cpio archive with the module, the provider and the programs.
    pub initrd: PathBuf,
    /// The program `verbena-nic`.
    pub nic: PathBuf,
    /// The program `verbenactl`.
    pub verbenactl: PathBuf,
    /// The directory for the logs of runs.
    pub runs: PathBuf,
}

impl Installation {
    /// Reads the file of an installation.
    ///
    /// # Errors
    ///
    /// The file cannot be read, a part is not named, or a part does not exist.
    pub fn read(file: &Path) -> Result<Self, String> {
        let shown = file.display();
        let text = std::fs::read_to_string(file)
            .map_err(|e| format!("the installation {shown} cannot be read: {e}"))?;
        let parts = Self::parse(&text).map_err(|e| format!("the installation {shown} {e}"))?;
        for part in parts.all() {
            if let Err(e) = part.metadata() {
                let part = part.display();
                return Err(format!(
                    "the installation {shown} names {part}, which cannot be used: {e}. {}",
                    next_step(file)
                ));
            }
        }
        Ok(parts)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let (_, value) = lines
                .find(|(name, _)| *name == key)
                .ok_or_else(|| format!("has no line `{key}=PATH`"))?;
            match Path::new(value).is_absolute() {
                true => Ok(PathBuf::from(value)),
                false => Err(format!("has `{key}={value}`, which is no absolute path")),
            }
        };
        Ok(Self {
            qemu_root: value("qemu_root")?,
            kernel: value("kernel")?,
            disk: value("disk")?,
            initrd: value("initrd")?,
            nic: value("nic")?,
            verbenactl: value("verbenactl")?,
            runs: value("runs")?,
        })
    }

    /// True if QEMU is installed in the root of this machine, and not in a root of its own.
    pub fn is_in_place(&self) -> bool {
        self.qemu_root == Path::new("/")
    }

    /// Returns the parts that must exist.
    fn all(&self) -> [&Path; 6] {
        let Self {
            qemu_root,
            kernel,
            disk,
            initrd,
            nic,
            verbenactl,
            runs: _,
        } = self;
        [qemu_root, kernel, disk, initrd, nic, verbenactl].map(PathBuf::as_path)
    }
}

/// Returns what makes a missing part of an installation again.
fn next_step(file: &Path) -> &'static str {
    match file.ends_with(IN_PREFIX) {
        true => "Install the packages verbena and verbena-guest again, of the same version",
        false => "In a checkout, root makes it again by `scripts/build installation`",
    }
}

/// Where an installation comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, whose parts are complete.
    File(PathBuf),
    /// A checkout, where `scripts/build installation` makes what is missing or outdated.
    Checkout(PathBuf),
}

impl Source {
    /// Finds the installation of the program `program`: that of [`VARIABLE`], else that of the
    /// checkout in which the program was built, else that of the packages with the program.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn find(variable: Option<PathBuf>, program: &Path) -> Result<Self, String> {
        if let Some(file) = variable {
            return Ok(Self::File(file));
        }
        let mut above = program.ancestors();
        let checkout = above.find(|top| top.join("scripts/in-root").is_file());
        if let Some(top) = checkout {
            return Ok(Self::Checkout(top.to_owned()));
        }
        let prefix = program.ancestors().nth(2).unwrap_or(Path::new("/"));
        let installed = prefix.join(IN_PREFIX);
        if installed.is_file() {
            return Ok(Self::File(installed));
        }
        Err(format!(
            "{} is not in a checkout of Verbena, and there is no {}: install the packages verbena and verbena-guest, or let {VARIABLE} name an installation, the file that `scripts/build installation` writes: {IN_CHECKOUT} of a checkout",
            program.display(),
            installed.display()
        ))
    }

    /// Finds the installation of the program that runs.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn of_this_program() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
        Self::find(std::env::var_os(VARIABLE).map(PathBuf::from), &program)
    }

    /// Returns the file that names the parts.
    pub fn file(&self) -> PathBuf {
        match self {
            Self::File(file) => file.clone(),
            Self::Checkout(top) => top.join(IN_CHECKOUT),
        }
    }

    /// Returns the command that makes or updates the parts, if there is one. It needs root.
    pub fn build_command(&self) -> Option<Vec<PathBuf>> {
        match self {
            Self::File(_) => None,
            Self::Checkout(top) => Some(vec![
                top.join("scripts/build"),
                PathBuf::from("installation"),
            ]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    const TEXT: &str = "# comment\nqemu_root=/q\nkernel=/k\ndisk=/d\ninitrd=/i\nnic=/n\nverbenactl=/v\nruns=/r=1\n";

    #[test]
    fn each_part_has_a_line() {
        let parts = Installation::parse(TEXT).unwrap();
        assert_eq!(parts.qemu_root, Path::new("/q"));
        assert_eq!(parts.runs, Path::new("/r=1"));
        assert_eq!(parts.all().len(), 6);
        let text = TEXT.replace("disk=", "drive=");
        let error = Installation::parse(&text).unwrap_err();
        assert_eq!(error, "has no line `disk=PATH`");
        let error = Installation::parse(&TEXT.replace("=/k", "=k")).unwrap_err();
        assert!(error.contains("`kernel=k`"), "{error}");
    }

    #[test]
    fn a_missing_file_or_part_is_named() {
        let scratch = Scratch::new("installation");
        let dir = &scratch.0;
        let file = dir.join("installation");
        let error = Installation::read(&file).unwrap_err();
        assert!(error.contains("installation cannot be read"), "{error}");
        std::fs::write(&file, TEXT).unwrap();
        let error = Installation::read(&file).unwrap_err();
        assert!(
            error.contains("names /q") && error.contains("scripts/build"),
            "{error}"
        );
        let here = dir.display().to_string();
        let lines = TEXT.lines().skip(1).map(|line| {
            let (key, _) = line.split_once('=').unwrap();
            format!("{key}={here}\n")
        });
        let text = lines.collect::<Vec<String>>().concat();
        std::fs::write(&file, text).unwrap();
        assert_eq!(Installation::read(&file).unwrap().nic, *dir);
    }

    #[test]
    fn an_installed_program_finds_the_file_of_its_packages_and_builds_nothing() {
        let scratch = Scratch::new("installed");
        let file = scratch.0.join("usr/share/verbena/installation");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, TEXT.replace("=/q", "=/")).unwrap();
        let source = Source::find(None, &scratch.0.join("usr/bin/verbena")).unwrap();
        assert_eq!(source.file(), file);
        assert_eq!(source.build_command(), None);
        let error = Installation::read(&source.file()).unwrap_err();
        assert!(error.contains("Install the packages"), "{error}");
    }

    #[test]
    fn a_root_of_its_own_is_not_in_place() {
        let parts = Installation::parse(TEXT).unwrap();
        assert!(!parts.is_in_place());
        let parts = Installation::parse(&TEXT.replace("=/q", "=/")).unwrap();
        assert!(parts.is_in_place());
    }

    #[test]
    fn the_variable_comes_before_the_checkout() {
        let scratch = Scratch::new("source");
        let top = &scratch.0;
        let program = top.join("build/cargo/release/verbena");
        let error = Source::find(None, &program).unwrap_err();
        assert!(error.contains(VARIABLE), "{error}");
        assert!(error.contains("install the packages"), "{error}");
        std::fs::create_dir_all(top.join("scripts")).unwrap();
        std::fs::write(top.join("scripts/in-root"), "").unwrap();
        let source = Source::find(None, &program).unwrap();
        assert_eq!(source.file(), top.join("build/installation"));
        let command = source.build_command().unwrap();
        assert_eq!(command[0], top.join("scripts/build"));
        let source = Source::find(Some(PathBuf::from("/x")), &program).unwrap();
        assert_eq!(
            (source.file(), source.build_command()),
            (PathBuf::from("/x"), None)
        );
    }
}
