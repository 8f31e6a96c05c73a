// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of the rules names tests; each of them has to exist.

use std::collections::BTreeSet;
use std::format;
use std::fs;
use std::path::{Path, PathBuf};
use std::string::String;

/// The file that holds the module of a test, and the test's name.
fn place(root: &Path, path: &str) -> Option<(PathBuf, String)> {
    let (module, name) = path.rsplit_once("::")?;
    let (source, module) = match module.strip_prefix("nic::") {
        Some(module) => ("tools/nic/src", module),
        None => ("tools/roce/src", module),
    };
    let base = root.join(source).join(module.replace("::", "/"));
    // A module of its own, or the `tests` at the end of the file that it tests.
    let parent = base.parent()?;
    let candidates = [
        base.with_extension("rs"),
        base.join("mod.rs"),
        parent.with_extension("rs"),
        parent.join("mod.rs"),
    ];
    let file = candidates.into_iter().find(|file| file.is_file())?;
    Some((file, name.into()))
}

#[test]
fn every_test_that_the_table_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = fs::read_to_string(root.join("Documentation/rules.md")).unwrap();
    let named: BTreeSet<&str> = table
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|word| word.contains("::tests::") || word.starts_with("nic::"))
        .collect();
    assert!(named.len() > 100);
    let missing: BTreeSet<&str> = named
        .into_iter()
        .filter(|path| {
            !place(&root, path).is_some_and(|(file, name)| {
                let text = fs::read_to_string(file).unwrap();
                text.contains(&format!("fn {name}()")) || text.contains(&format!("fn {name}("))
            })
        })
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}
