// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The private ABIs of libibverbs, and the check that this provider fits the library that a
//! process has loaded.
//!
//! The number of the private ABI does not show the layout of all structures. Within a number the
//! table of operations grows, in alphabetical order, and `struct verbs_qp`, which a provider
//! allocates and libibverbs fills, grew in v44 (`wr_atomic_write`) and in v45 (`wr_flush`), which
//! moved its `comp_mask`. A provider therefore fits the releases of one [`Layout`]. The name of the
//! library's file shows the release, because rdma-core's build puts the release there:
//! `libibverbs.so.1.14.56.1`.

use core::ffi::CStr;
use core::fmt;
use std::path::Path;

/// Releases of rdma-core whose private structures are equal, by the number before the point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Number of the private ABI.
    pub private_abi: u32,
    /// First and last release.
    pub first: u32,
    pub last: u32,
    /// Entries of `struct verbs_context_ops`.
    pub operations: usize,
    /// Offset of `comp_mask` in `struct verbs_qp`, in bytes, on x86-64.
    pub comp_mask: usize,
}

impl Layout {
    const fn new(
        private_abi: u32,
        releases: (u32, u32),
        operations: usize,
        comp_mask: usize,
    ) -> Self {
        let (first, last) = releases;
        Self {
            private_abi,
            first,
            last,
            operations,
            comp_mask,
        }
    }

    const fn has(&self, release: u32) -> bool {
        self.first <= release && release <= self.last
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{} to {}", self.first, self.last)
        }
    }
}

/// All layouts since private ABI 34, from rdma-core's releases.
const LAYOUTS: [Layout; 10] = [
    Layout::new(34, (34, 34), 73, 344),
    Layout::new(34, (35, 35), 75, 344),
    Layout::new(34, (36, 43), 76, 344),
    Layout::new(34, (44, 44), 76, 352),
    Layout::new(34, (45, 56), 76, 360),
    Layout::new(57, (57, 58), 76, 360),
    Layout::new(59, (59, 61), 79, 360),
    Layout::new(59, (62, 63), 81, 360),
    Layout::new(64, (64, 64), 83, 360),
    Layout::new(65, (65, 65), 93, 360),
];

/// Layout of the release from which the bindings of this provider were generated.
pub const OURS: Layout = layout_of(leading_number(env!("VERBENA_RDMA_CORE")));

/// Returns the layout of a release, which [`LAYOUTS`] must have.
const fn layout_of(release: u32) -> Layout {
    let mut i = 0;
    while i < LAYOUTS.len() {
        if LAYOUTS[i].has(release) {
            return LAYOUTS[i];
        }
        i += 1;
    }
    panic!("release.rs has no layout for the release of rdma-core that the bindings are made from")
}

/// Returns the number before the point of `56.1`.
const fn leading_number(text: &str) -> u32 {
    let (text, mut number, mut i) = (text.as_bytes(), 0, 0);
    while i < text.len() && text[i].is_ascii_digit() {
        number = number * 10 + (text[i] - b'0') as u32;
        i += 1;
    }
    number
}

/// Symbols that libraries have from a release on. They decide where the name of the library's file
/// does not show the release.
pub const MARKS: [(u32, &CStr); 2] = [(49, c"ibv_wr_opcode_str"), (62, c"ibv_query_port_speed")];

/// For each of [`MARKS`], whether a library has the symbol.
pub type Marks = [bool; MARKS.len()];

/// Release of rdma-core: major number, minor number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release(pub u32, pub u32);

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

/// True if each release with the private ABI of `ours` that the symbols of a library allow has the
/// layout `ours`.
fn marks_fit(ours: &Layout, marks: Marks) -> bool {
    let allowed = |release: u32| {
        let mut known = MARKS.iter().zip(marks);
        known.all(|((since, _), present)| present == (release >= *since))
    };
    let mut others = LAYOUTS
        .iter()
        .filter(|layout| layout.private_abi == ours.private_abi && *layout != ours);
    (ours.first..=ours.last).any(allowed)
        && !others.any(|other| (other.first..=other.last).any(allowed))
}

/// Returns the reason why this provider cannot work with the libibverbs in `file`, as a sentence,
/// or `None` if it can.
pub fn refusal(file: &Path, marks: Marks) -> Option<String> {
    refusal_by(&OURS, file, marks)
}

/// The same for a provider with the layout `ours`.
fn refusal_by(ours: &Layout, file: &Path, marks: Marks) -> Option<String> {
    let found = match Release::of_file(file) {
        Some(release) if ours.has(release.0) => return None,
        Some(release) => format!("{release}"),
        None if marks_fit(ours, marks) => return None,
        None => "of unknown release".to_owned(),
    };
    Some(format!(
        "verbena: libibverbs {found} ({}) does not fit this provider, which is built for rdma-core {ours}: private ABI {} has \
         several layouts. Install the provider for this libibverbs, or libibverbs of rdma-core {ours}",
        file.display(),
        ours.private_abi
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERN_34: Layout = layout_of(56);

    fn refused(ours: u32, name: &str, marks: Marks) -> Option<String> {
        refusal_by(&layout_of(ours), Path::new(name), marks)
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
    fn layouts_follow_each_other_without_a_gap() {
        for pair in LAYOUTS.windows(2) {
            assert_eq!(pair[0].last + 1, pair[1].first, "after {}", pair[0]);
            assert!(pair[0].private_abi <= pair[1].private_abi);
            assert!(pair[0].operations <= pair[1].operations);
        }
        // A private ABI has the number of its first release.
        for layout in LAYOUTS {
            assert!(LAYOUTS
                .iter()
                .any(|first| first.first == layout.private_abi));
        }
        assert_eq!(leading_number("56.1"), 56);
        assert!(LAYOUTS.contains(&OURS));
    }

    #[test]
    fn releases_with_another_layout_are_refused() {
        for layout in LAYOUTS {
            for release in 30..70 {
                let file = format!("/lib/libibverbs.so.1.14.{release}.2");
                // The release in the name decides, not the symbols.
                for marks in [[false, false], [true, false], [true, true]] {
                    let why = refused(layout.first, &file, marks);
                    let fits = (layout.first..=layout.last).contains(&release);
                    assert_eq!(why.is_none(), fits, "{layout}: {why:?}");
                    let Some(why) = why else { continue };
                    assert!(
                        why.contains(&format!("libibverbs {release}.2 ({file})")),
                        "{why}"
                    );
                    assert!(
                        why.contains(&format!("libibverbs of rdma-core {layout}")),
                        "{why}"
                    );
                }
            }
        }
        let why = refused(45, "/lib/libibverbs.so.1.14.44.0", [true, true]).expect("refused");
        assert!(
            why.contains("built for rdma-core 45 to 56: private ABI 34"),
            "{why}"
        );
    }

    #[test]
    fn without_a_release_in_the_name_symbols_decide() {
        let (old, v49, v62) = ([false, false], [true, false], [true, true]);
        for (ours, fitting) in [
            (36, vec![]),
            (44, vec![]),
            (45, vec![v49]),
            (57, vec![v49]),
            (59, vec![v49]),
            (62, vec![v62]),
            (64, vec![v62]),
            (65, vec![v62]),
        ] {
            for marks in [old, v49, v62, [false, true]] {
                let why = refused(ours, "/opt/lib/libibverbs.so.1", marks);
                assert_eq!(why.is_none(), fitting.contains(&marks), "{ours} {marks:?}");
                let unknown = why.is_none_or(|why| why.contains("of unknown release"));
                assert!(unknown, "{ours} {marks:?}");
            }
        }
        assert_eq!(MODERN_34.private_abi, 34);
    }
}
