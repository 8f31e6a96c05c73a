// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies files and directories to and from a node, as tar archives through a command in the node.
//!
//! The guest's root may be hostile to the host. So only plain files, directories and symbolic links
//! are unpacked, below the destination, and never through a symbolic link.

use crate::node_client::NodeCommand;
use crate::node_set::NodeSet;
use crate::output::Stream;
use crate::shell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use tar::{Archive, Builder, Entry, EntryType};

/// Where relative paths in a node begin.
const HOME: &str = "/root";

/// Copies a file or a directory of this machine to a node.
///
/// # Errors
///
/// A file cannot be read or written. The text names it.
pub fn to_node(set: &NodeSet, node: usize, from: &Path, to: &str) -> Result<(), String> {
    let shown = from.display();
    let kind = std::fs::metadata(from).map_err(|e| format!("{shown}: {e}"))?;
    let own_name = std::path::absolute(from)
        .and_then(|path| path.canonicalize().or(Ok(path)))
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_else(|| String::from("."));
    let own_name = match from.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => own_name,
    };
    let target = target_in_node(set, node, to, &own_name)?;
    let (reader, writer) = pipe()?;
    let archive = {
        let (from, name) = (from.to_owned(), target.name.clone());
        std::thread::spawn(move || pack(writer, &from, &name, kind.is_dir()))
    };
    let command = [
        b"tar -x -p --no-same-owner -f - -C ".as_slice(),
        &quoted(&target.directory),
    ];
    let unpacked = in_node(
        set,
        node,
        &command.concat(),
        Some(Box::new(reader)),
        io::sink(),
    );
    let packed = archive
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("packing failed")));
    // The cause of both is often that the node cannot write.
    unpacked?;
    packed.map_err(|e| format!("{shown}: {e}"))
}

/// Copies a file or a directory of a node to this machine.
///
/// # Errors
///
/// A file cannot be read or written. The text names it.
pub fn from_node(set: &NodeSet, node: usize, from: &str, to: &Path) -> Result<(), String> {
    let own_name = name_in_node(from).ok_or_else(|| {
        format!("vm{node}:{from} has no name of its own: name a file or a directory")
    })?;
    let (directory, name) = match to.is_dir() {
        true => (to.to_owned(), PathBuf::from(&own_name)),
        false => {
            let name = to.file_name();
            let name = name.ok_or_else(|| format!("{} is no directory", to.display()))?;
            let directory = to.parent().unwrap_or(Path::new(""));
            (directory.to_owned(), PathBuf::from(name))
        }
    };
    let directory = match directory.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => directory,
    };
    if !directory.is_dir() {
        return Err(format!("there is no directory {}", directory.display()));
    }
    let (reader, writer) = pipe()?;
    let unpacking = {
        let own_name = own_name.clone();
        std::thread::spawn(move || unpack(reader, &own_name, &directory, &name))
    };
    let parent = match from.rsplit_once('/').map(|(parent, _)| parent) {
        Some("") => "/",
        Some(parent) => parent,
        None => ".",
    };
    let command = [
        b"tar -c --hard-dereference --format=gnu -f - -C ".as_slice(),
        &quoted(parent),
        b" -- ",
        &shell::quote(own_name.as_bytes()),
    ];
    let packed = in_node(set, node, &command.concat(), None, writer);
    let unpacked = unpacking
        .join()
        .unwrap_or_else(|_| Err(String::from("unpacking failed")));
    // An archive that the node could not make is incomplete, too.
    packed?;
    unpacked
}

/// Returns the last part of a path in a node.
fn name_in_node(path: &str) -> Option<String> {
    let name = Path::new(path).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

/// A place in a node: an existing directory, and a name in it.
struct Target {
    directory: String,
    name: String,
}

fn target_in_node(set: &NodeSet, node: usize, to: &str, own_name: &str) -> Result<Target, String> {
    let mut answer = Vec::new();
    let command = [
        b"if test -d ".as_slice(),
        &quoted(to),
        b"; then echo directory; fi",
    ];
    in_node(set, node, &command.concat(), None, &mut answer)?;
    if answer.starts_with(b"directory") {
        return Ok(Target {
            directory: String::from(to),
            name: String::from(own_name),
        });
    }
    let name = name_in_node(to).filter(|_| !to.ends_with('/'));
    let name = name.ok_or_else(|| format!("vm{node} has no directory {to}"))?;
    let directory = match to.rsplit_once('/') {
        Some(("", _)) => String::from("/"),
        Some((directory, _)) => String::from(directory),
        None => String::from("."),
    };
    Ok(Target { directory, name })
}

/// Returns a path for a shell. A path never looks like an option.
fn quoted(path: &str) -> Vec<u8> {
    let plain = match path.starts_with('-') {
        true => format!("./{path}"),
        false => String::from(path),
    };
    shell::quote(plain.as_bytes())
}

/// Runs a command in the home directory of a node. Its standard error becomes the error.
fn in_node(
    set: &NodeSet,
    node: usize,
    command: &[u8],
    input: Option<Box<dyn Read + Send>>,
    mut output: impl Write,
) -> Result<(), String> {
    let mut errors = Vec::new();
    let command = NodeCommand {
        set,
        node,
        command: &String::from_utf8_lossy(command),
        directory: HOME,
        terminal: None,
    };
    let write = |to, bytes: &[u8]| match to {
        Stream::Out => output.write_all(bytes),
        Stream::Err => errors.write_all(bytes),
    };
    let status = command.run(input, write, None, |_| {})?;
    match status {
        0 => Ok(()),
        _ => {
            // The lines after the first repeat that tar failed.
            let errors = String::from_utf8_lossy(&errors);
            Err(format!(
                "vm{node}: {}",
                errors.lines().next().unwrap_or_default()
            ))
        }
    }
}

fn pipe() -> Result<(File, File), String> {
    let made = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC);
    let (reader, writer) = made.map_err(|e| format!("cannot make a pipe: {e}"))?;
    Ok((reader.into(), writer.into()))
}

fn pack(to: impl Write, from: &Path, name: &str, is_directory: bool) -> io::Result<()> {
    let mut archive = Builder::new(to);
    archive.follow_symlinks(false);
    match is_directory {
        true => archive.append_dir_all(name, from)?,
        // A symbolic link that the user names stands for its file.
        false => archive.append_file(name, &mut File::open(from)?)?,
    }
    archive.finish()
}

/// Unpacks an archive whose entries are all below `own_name` as `name` in a directory.
fn unpack(from: impl Read, own_name: &str, directory: &Path, name: &Path) -> Result<(), String> {
    let failed = |e: io::Error| format!("the archive of the node: {e}");
    let mut archive = Archive::new(from);
    let mut left_out = Vec::new();
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?.into_owned();
        let target = safe_target(&path, own_name, directory, name)?;
        match entry.header().entry_type() {
            EntryType::Directory => {
                make_directory(&target)?;
                directories.push((target, entry.header().mode().unwrap_or(0o755)));
            }
            EntryType::Regular
            | EntryType::Continuous
            | EntryType::GNUSparse
            | EntryType::Symlink => {
                unpack_entry(&mut entry, &target)?;
            }
            _ => left_out.push(path.display().to_string()),
        }
    }
    // A directory without the permission to write gets it after its files.
    for (directory, mode) in directories.into_iter().rev() {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode & 0o777);
        std::fs::set_permissions(&directory, permissions)
            .map_err(|e| format!("{}: {e}", directory.display()))?;
    }
    match left_out.as_slice() {
        [] => Ok(()),
        names => Err(format!(
            "only files, directories and symbolic links are copied; left out: {}",
            names.join(", ")
        )),
    }
}

fn make_directory(target: &Path) -> Result<(), String> {
    match std::fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => Ok(()),
        _ => std::fs::create_dir(target).map_err(|e| format!("{}: {e}", target.display())),
    }
}

fn unpack_entry(entry: &mut Entry<'_, impl Read>, target: &Path) -> Result<(), String> {
    entry.set_preserve_permissions(false);
    let unpacked = entry.unpack(target);
    unpacked
        .map(drop)
        .map_err(|e| format!("{}: {e}", target.display()))
}

/// Returns where an entry belongs: `name` in place of `own_name`, in a directory of the host.
///
/// # Errors
///
/// The entry is not below `own_name`, or a symbolic link leads to it.
fn safe_target(
    path: &Path,
    own_name: &str,
    directory: &Path,
    name: &Path,
) -> Result<PathBuf, String> {
    let refused = || format!("the node sent the file {:?}, which was not asked for", path);
    let rest = path.strip_prefix(own_name).map_err(|_| refused())?;
    let mut target = directory.join(name);
    for component in rest.components() {
        let Component::Normal(part) = component else {
            return Err(refused());
        };
        let is_link = std::fs::symlink_metadata(&target).is_ok_and(|found| found.is_symlink());
        if is_link {
            return Err(format!(
                "{} is a symbolic link, below which no file is copied",
                target.display()
            ));
        }
        target.push(part);
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::symlink;

    /// Packs and unpacks a directory tree.
    fn copied(scratch: &Scratch, from: &Path, name: &str) -> Result<PathBuf, String> {
        let mut bytes = Vec::new();
        pack(&mut bytes, from, "top", from.is_dir()).map_err(|e| e.to_string())?;
        unpack(bytes.as_slice(), "top", &scratch.0, Path::new(name))?;
        Ok(scratch.0.join(name))
    }

    #[test]
    fn a_tree_survives_with_a_new_name() {
        let scratch = Scratch::new("copy-tree");
        let from = scratch.0.join("from");
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        std::fs::write(from.join("a/b/file"), "text").unwrap();
        symlink("b/file", from.join("a/link")).unwrap();
        let to = copied(&scratch, &from, "to").unwrap();
        assert_eq!(std::fs::read(to.join("a/b/file")).unwrap(), b"text");
        let link = std::fs::read_link(to.join("a/link")).unwrap();
        assert_eq!(link, Path::new("b/file"));
        // A second copy replaces the files of the first.
        std::fs::write(from.join("a/b/file"), "more text").unwrap();
        copied(&scratch, &from, "to").unwrap();
        assert_eq!(std::fs::read(to.join("a/b/file")).unwrap(), b"more text");
        let file = copied(&scratch, &from.join("a/link"), "file").unwrap();
        assert_eq!(std::fs::read(file).unwrap(), b"more text");
    }

    #[test]
    fn a_node_writes_nothing_outside_of_the_destination() {
        let scratch = Scratch::new("copy-hostile");
        let outside = scratch.0.join("outside");
        let inside = scratch.0.join("inside");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::create_dir_all(&inside).unwrap();
        let unpack_file = |name: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            // `set_path` refuses such names.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            let mut bytes = Vec::new();
            let mut archive = Builder::new(&mut bytes);
            archive.append(&header, &b"x"[..]).unwrap();
            archive.finish().unwrap();
            drop(archive);
            unpack(bytes.as_slice(), "top", &inside, Path::new("to"))
        };
        for name in ["top/../../outside/x", "/etc/x", "other", "../top"] {
            let error = unpack_file(name).unwrap_err();
            assert!(error.contains("not asked for"), "{name}: {error}");
        }
        std::fs::create_dir(inside.join("to")).unwrap();
        symlink(&outside, inside.join("to/link")).unwrap();
        let error = unpack_file("top/link/x").unwrap_err();
        assert!(error.contains("symbolic link"), "{error}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        unpack_file("top/x").unwrap();
        assert_eq!(std::fs::read(inside.join("to/x")).unwrap(), b"x");
    }
}
