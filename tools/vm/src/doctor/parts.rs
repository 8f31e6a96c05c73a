// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks of the files of an installation, without running them.

use super::Finding;
use crate::installation::Installation;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

const ELF: &[u8] = b"\x7fELF";
const BITS_64: u8 = 2;
const X86_64: u16 = 62;
/// Offset and value of the magic number of a bzImage (Documentation/arch/x86/boot.rst of the kernel).
const BZIMAGE: (u64, &[u8]) = (0x202, b"HdrS");
/// Offset and value of the magic number of ext2, ext3 and ext4, in the superblock at 1024.
const EXT4: (u64, &[u8]) = (1024 + 0x38, &[0x53, 0xef]);
const SMALLEST_DISK: u64 = 64 << 20;
/// The beginnings of archives that the kernel unpacks: cpio, gzip, xz, zstd.
const ARCHIVES: [&[u8]; 4] = [b"070701", b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"];
const REMEDY: &str = "make the installation again: in a checkout by `scripts/build installation`, else by installing the package again";

/// Checks kernel, disk, first root and programs.
pub fn check(parts: &Installation) -> Vec<Finding> {
    vec![
        finding("kernel", &parts.kernel, kernel(&parts.kernel)),
        finding("disk", &parts.disk, disk(&parts.disk)),
        finding("initrd", &parts.initrd, initrd(&parts.initrd)),
        finding("verbena-nic", &parts.nic, program(&parts.nic)),
        finding("verbenactl", &parts.verbenactl, program(&parts.verbenactl)),
    ]
}

fn finding(name: &'static str, file: &Path, checked: Result<&str, String>) -> Finding {
    let shown = file.display();
    match checked {
        Ok(what) => Finding::ok(name, format!("{shown} is {what}")),
        Err(e) => Finding::missing(name, format!("{shown} {e}"), REMEDY),
    }
}

/// Reads up to `length` bytes at an offset.
fn read(file: &Path, offset: u64, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    let opened = File::open(file);
    let read = opened.and_then(|file| file.read_at(&mut bytes, offset));
    bytes.truncate(read.map_err(|e| format!("cannot be read: {e}"))?);
    Ok(bytes)
}

fn is_elf(file: &Path) -> Result<bool, String> {
    let header = read(file, 0, 20)?;
    let machine = header
        .get(18..20)
        .map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    Ok(header.starts_with(ELF) && header.get(4) == Some(&BITS_64) && machine == Some(X86_64))
}

fn kernel(file: &Path) -> Result<&'static str, String> {
    if is_elf(file)? || read(file, BZIMAGE.0, 4)? == BZIMAGE.1 {
        return Ok("a kernel for x86_64");
    }
    Err(String::from(
        "is no kernel for x86_64 (neither ELF nor bzImage)",
    ))
}

fn disk(file: &Path) -> Result<&'static str, String> {
    let length = std::fs::metadata(file).map_or(0, |found| found.len());
    if length < SMALLEST_DISK {
        return Err(format!(
            "has {length} bytes, too few for the disk of a guest"
        ));
    }
    match read(file, EXT4.0, 2)? == EXT4.1 {
        true => Ok("a disk with ext4"),
        false => Err(String::from("is no disk with ext4")),
    }
}

fn initrd(file: &Path) -> Result<&'static str, String> {
    let begin = read(file, 0, 6)?;
    match ARCHIVES.iter().any(|magic| begin.starts_with(magic)) {
        true => Ok("an archive"),
        false => Err(String::from("is no archive that a kernel unpacks")),
    }
}

fn program(file: &Path) -> Result<&'static str, String> {
    if !is_elf(file)? {
        return Err(String::from("is no program for x86_64"));
    }
    let mode = std::fs::metadata(file).map_or(0, |found| found.permissions().mode());
    match mode & 0o111 {
        0 => Err(String::from("is not executable")),
        _ => Ok("a program for x86_64"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::path::PathBuf;

    fn file(scratch: &Scratch, bytes: &[u8]) -> PathBuf {
        let file = scratch.0.join("part");
        std::fs::write(&file, bytes).unwrap();
        file
    }

    fn elf(bits: u8, machine: u16) -> Vec<u8> {
        let mut bytes = ELF.to_vec();
        bytes.resize(18, 0);
        bytes[4] = bits;
        bytes.extend_from_slice(&machine.to_le_bytes());
        bytes
    }

    #[test]
    fn a_kernel_is_elf_or_bzimage() {
        let scratch = Scratch::new("doctor-kernel");
        assert!(kernel(&file(&scratch, &elf(2, 62))).is_ok());
        let mut image = vec![0; 0x202];
        image.extend_from_slice(b"HdrS");
        assert!(kernel(&file(&scratch, &image)).is_ok());
        for bad in [elf(2, 183), elf(1, 62), b"text".to_vec(), Vec::new()] {
            assert!(kernel(&file(&scratch, &bad)).is_err());
        }
        let error = kernel(Path::new("/no/such")).unwrap_err();
        assert!(error.starts_with("cannot be read"), "{error}");
    }

    #[test]
    fn a_disk_has_a_size_and_a_magic_number() {
        let scratch = Scratch::new("doctor-disk");
        let mut bytes = vec![0; 1080];
        bytes.extend_from_slice(&[0x53, 0xef]);
        let path = file(&scratch, &bytes);
        assert!(disk(&path).unwrap_err().contains("1082 bytes"));
        let opened = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        opened.set_len(SMALLEST_DISK).unwrap();
        assert!(disk(&path).is_ok());
        opened.write_at(&[0], 1080).unwrap();
        assert!(disk(&path).unwrap_err().contains("ext4"));
    }

    #[test]
    fn archives_and_programs_are_known_by_their_beginning() {
        let scratch = Scratch::new("doctor-begin");
        assert!(initrd(&file(&scratch, b"070701...")).is_ok());
        assert!(initrd(&file(&scratch, b"\x28\xb5\x2f\xfd...")).is_ok());
        assert!(initrd(&file(&scratch, b"text")).is_err());
        let path = file(&scratch, &elf(2, 62));
        assert!(program(&path).unwrap_err().contains("executable"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(program(&path).is_ok());
        assert!(program(&file(&scratch, b"#!/bin/sh\n")).is_err());
    }
}
