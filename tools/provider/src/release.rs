// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that this provider fits the release of libibverbs that a process has loaded.
//!
//! The number of the private ABI does not show the release: 34 is the number of rdma-core v34 to
//! v56. But `struct verbs_qp`, which a provider allocates and libibverbs fills, grew in v44
//! (`wr_atomic_write`) and in v45 (`wr_flush`), which moved its `comp_mask`. The name of the
//! library's file shows the release, because rdma-core's build puts the release there:
//! `libibverbs.so.1.14.56.1`.

use core::fmt;
use std::path::Path;

/// Release of rdma-core: major number, minor number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Release(pub u32, pub u32);

/// Oldest release that has the layouts of this provider.
pub const OLDEST: Release = Release(45, 0);

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Release {
    /// Returns the release in the name of a file of libibverbs: the two numbers after `.so.1.14.`.
    /// Any text may come before `.so.` (packages of Python put a hash there). Returns `None` if the
    /// name has another form.
    pub fn of_file(file: &Path) -> Option<Self> {
        let name = file.file_name()?.to_str()?;
        let (_, version) = name.split_once(".so.")?;
        let mut parts = version.split('.').map(str::parse::<u32>);
        let mut next = || parts.next()?.ok();
        let (_abi, _minor) = (next()?, next()?);
        Some(Self(next()?, next()?))
    }
}

/// Returns the reason why this provider cannot work with the libibverbs in `file`, as a sentence,
/// or `None` if it can. `is_recent` is true if the library has a symbol that is newer than
/// [`OLDEST`]; this flag decides where the name of the file does not show the release.
pub fn refusal(file: &Path, is_recent: bool) -> Option<String> {
    let found = match Release::of_file(file) {
        Some(release) if release >= OLDEST => return None,
        Some(release) => format!("{release}"),
        None if is_recent => return None,
        None => "of unknown release".to_owned(),
    };
    Some(format!(
        "verbena: libibverbs {found} ({}) is too old for this provider: release {OLDEST} has changed the layout of queue pairs \
         without a change of the private ABI's number. Install libibverbs {OLDEST} or newer",
        file.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, is_recent: bool) -> Option<String> {
        refusal(Path::new(name), is_recent)
    }

    #[test]
    fn the_release_is_in_the_name_of_the_file() {
        let of = |name: &str| Release::of_file(Path::new(name));
        assert_eq!(of("/usr/lib/libibverbs.so.1.14.56.1"), Some(Release(56, 1)));
        assert_eq!(of("libibverbs.so.1.14.39.0"), Some(Release(39, 0)));
        assert_eq!(
            of("libibverbs-5f3a.so.1.14.44.0"),
            Some(Release(44, 0)),
            "with a hash"
        );
        for other in ["libibverbs.so.1", "libibverbs.so", "a.so.1.14.x.0", "/", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn releases_with_another_layout_are_refused() {
        for name in ["36.0", "43.0", "44.0", "44.4"] {
            let file = format!("/lib/libibverbs.so.1.14.{name}");
            // The release in the name decides, not the symbols.
            let why = refused(&file, true).expect(name);
            assert!(
                why.contains(&format!("libibverbs {name} ({file})")),
                "{why}"
            );
            assert!(why.contains("Install libibverbs 45.0 or newer"), "{why}");
        }
        for name in ["45.0", "56.1", "100.0"] {
            let file = format!("/lib/libibverbs.so.1.14.{name}");
            assert_eq!(refused(&file, false), None);
        }
    }

    #[test]
    fn without_a_release_in_the_name_a_symbol_decides() {
        assert_eq!(refused("/opt/lib/libibverbs.so.1", true), None);
        let why = refused("/opt/lib/libibverbs.so.1", false).expect("refused");
        assert!(why.contains("of unknown release"), "{why}");
    }
}
