// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attempts that only child processes can make: namespaces and mounts as those of a run, and QEMU in
//! its root.
//!
//! The child is this program with a variable, in namespaces that it makes as a run does. Its own
//! child is the first process in them.

use super::Finding;
use crate::qemu;
use crate::session::{exit_status, make_namespaces};
use nix::mount::{mount, MsFlags};
use nix::sched::{unshare, CloneFlags};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Names the root with QEMU; empty if only namespaces are tried.
const ATTEMPT: &str = "VERBENA_DOCTOR_ATTEMPT";
/// The arguments of QEMU, without blanks in them.
const ARGUMENTS: &str = "VERBENA_DOCTOR_ARGUMENTS";
const DEVICE: &str = "vfio-user-pci";
const PATH_IN_ROOT: &str = "usr/bin";
/// Exit status of an attempt that failed before QEMU ran.
const NO_NAMESPACES: u8 = 117;

/// Returns the exit status of this process if it is an attempt. Must be called before the process
/// has a second thread.
pub fn of_this_process() -> Option<u8> {
    let root = std::env::var_os(ATTEMPT)?;
    let tried = match nix::unistd::getpid().as_raw() {
        1 => try_inside(&root),
        _ => try_outside(),
    };
    Some(tried.unwrap_or_else(|e| {
        eprintln!("{e}");
        NO_NAMESPACES
    }))
}

fn try_outside() -> Result<u8, String> {
    make_namespaces()?;
    let status = Command::new("/proc/self/exe").status();
    status
        .map(exit_status)
        .map_err(|e| format!("cannot start a process in its own namespaces: {e}"))
}

fn try_inside(root: &OsStr) -> Result<u8, String> {
    let failed = |what: &str, e: nix::errno::Errno| {
        format!("cannot {what}: {e}. In a container, start it with --privileged, or with --security-opt unmask=ALL")
    };
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| failed("make a mount namespace", e))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|e| failed("make the mounts private", e))?;
    // In this order: the kernel allows a user namespace a new /proc only where the old one is visible.
    for kind in ["proc", "tmpfs"] {
        mount(Some(kind), "/proc", Some(kind), MsFlags::empty(), none)
            .map_err(|e| failed(&format!("mount {kind}"), e))?;
    }
    if root.is_empty() {
        return Ok(0);
    }
    std::os::unix::fs::chroot(root)
        .and_then(|()| std::env::set_current_dir("/"))
        .map_err(|e| {
            format!(
                "cannot change the root directory to {}: {e}",
                Path::new(root).display()
            )
        })?;
    let program = Path::new("/").join(PATH_IN_ROOT).join(qemu::PROGRAM);
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    let error = Command::new(&program).args(arguments.split(' ')).exec();
    eprintln!("{}: {error}", program.display());
    Ok(126)
}

fn attempt(root: &OsStr, arguments: &str) -> Result<Output, String> {
    Command::new("/proc/self/exe")
        .env(ATTEMPT, root)
        .env(ARGUMENTS, arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot start this program again: {e}"))
}

/// Tries to make the namespaces and the mounts of a run.
pub fn namespaces() -> Finding {
    const NAME: &str = "namespaces";
    let attempted = attempt(OsStr::new(""), "");
    match attempted {
        Ok(output) if output.status.success() => {
            Finding::ok(NAME, "this user can make namespaces and mounts in them")
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            judge_namespaces(NAME, text.trim())
        }
        Err(e) => judge_namespaces(NAME, &e),
    }
}

/// Splits the error of a run into what is wrong and the next step, which is the last sentence.
fn judge_namespaces(name: &'static str, error: &str) -> Finding {
    let (found, remedy) = error
        .rsplit_once(". ")
        .unwrap_or((error, "run this command as root on the machine"));
    Finding::missing(name, found, remedy)
}

/// Runs QEMU with these arguments: in its root, or on this machine if it is installed there.
fn run_qemu(root: &Path, arguments: &str) -> Result<Output, String> {
    if root != Path::new("/") {
        return attempt(root.as_os_str(), arguments);
    }
    let program = root.join(PATH_IN_ROOT).join(qemu::PROGRAM);
    Command::new(&program)
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))
}

/// Returns the version of the QEMU in this root, as in `11.1.3 (Debian 1:11.1.3+ds-2)`, or why it is
/// not known.
///
/// # Errors
///
/// QEMU does not run.
pub fn qemu_version(root: &Path) -> Result<String, String> {
    let output = run_qemu(root, "--version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap_or_default();
    match first.split_once(" version ") {
        Some((_, version)) => Ok(String::from(version)),
        None => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Tries QEMU in its root.
pub fn qemu(root: &Path) -> Finding {
    let program = root.join(PATH_IN_ROOT).join(qemu::PROGRAM);
    if !program.exists() {
        return missing_qemu(format!("there is no {}", program.display()));
    }
    match run_qemu(root, "-device help") {
        Ok(output) => judge_qemu(
            exit_status(output.status),
            &String::from_utf8_lossy(&output.stdout),
            &String::from_utf8_lossy(&output.stderr),
        ),
        Err(e) => missing_qemu(e),
    }
}

fn missing_qemu(found: String) -> Finding {
    const REMEDY: &str = "make the installation again: in a checkout by `scripts/build installation`, else by installing the package again";
    Finding::missing("qemu", found, REMEDY)
}

fn judge_qemu(status: u8, devices: &str, errors: &str) -> Finding {
    match status {
        0 if devices.contains(DEVICE) => Finding::ok("qemu", format!("QEMU has {DEVICE}")),
        0 => missing_qemu(format!(
            "this QEMU has no device {DEVICE}: it is older than QEMU 10.1, or built without vfio-user"
        )),
        NO_NAMESPACES => Finding::poor(
            "qemu",
            "QEMU exists",
            "it could not be tried without namespaces",
            "see namespaces",
        ),
        _ => missing_qemu(format!("QEMU does not run: {}", errors.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn qemu_needs_the_device() {
        let devices = "name \"vfio-user-pci\", bus PCI\n";
        assert_eq!(judge_qemu(0, devices, "").state, State::Ok);
        let old = judge_qemu(0, "name \"vfio-pci\", bus PCI\n", "");
        assert!(old.state == State::Missing && old.found.contains("10.1"));
        let broken = judge_qemu(127, "", "libfoo.so.1: cannot open\n");
        assert!(broken.found.ends_with("libfoo.so.1: cannot open"));
        assert_eq!(judge_qemu(NO_NAMESPACES, "", "").state, State::Poor);
        let none = qemu(Path::new("/no/such/root"));
        assert!(none
            .found
            .contains("/no/such/root/usr/bin/qemu-system-x86_64"));
    }

    #[test]
    fn the_last_sentence_of_a_refusal_is_the_next_step() {
        let finding = judge_namespaces("namespaces", "they are forbidden: EPERM. Ask root");
        assert_eq!(finding.found, "they are forbidden: EPERM");
        assert_eq!(finding.remedy.as_deref(), Some("Ask root"));
        let finding = judge_namespaces("namespaces", "odd");
        assert!(finding.remedy.unwrap().contains("root"));
    }

    #[test]
    fn this_process_is_no_attempt() {
        assert_eq!(of_this_process(), None);
    }
}
