// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files that differ between guests: the settings for `scripts/guest/init`, and the command.
//! They follow the archive that all guests unpack.

use crate::archive::Archive;
use crate::nic::mac_address;
use crate::options::{LinkLayer, Run};
use crate::shell;
use std::os::unix::ffi::OsStrExt;

/// The directory in the archive whose files `init` of the archive copies to the guest's disk.
const DIRECTORY: &str = "overlay/usr/lib/verbena";

/// The terminal of an interactive shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellTerminal {
    /// Its kind, as in `TERM`.
    pub kind: String,
    /// Its rows and columns.
    pub size: (u16, u16),
}

/// Returns the archive with the files of a guest.
pub fn archive(run: &Run, number: usize, terminal: &ShellTerminal) -> Vec<u8> {
    let mut archive = Archive::default();
    let add = |archive: &mut Archive, name: &str, contents: &[u8]| {
        archive.add_file(&format!("{DIRECTORY}/{name}"), 0o644, contents);
    };
    add(&mut archive, "run.conf", &settings(run, number, terminal));
    let mut command = Vec::from(run.commands[number - 1].as_deref().unwrap_or_default());
    command.push(b'\n');
    add(&mut archive, "command", &command);
    archive.finish()
}

/// Returns the settings as assignments for bash.
fn settings(run: &Run, number: usize, terminal: &ShellTerminal) -> Vec<u8> {
    let flag = |is_set: bool| if is_set { "1" } else { "" };
    let is_rxe = run.is_peer_rxe && number != 1;
    let link_layer = match run.link_layer {
        LinkLayer::Ethernet => "ethernet",
        LinkLayer::InfiniBand => "ib",
    };
    let mtu = run.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
    let (rows, columns) = terminal.size;
    let pairs = [
        ("module", String::from("1")),
        ("rxe", String::from(flag(run.has_rxe))),
        ("share", String::new()),
        ("interactive", String::from(flag(run.is_shell_of(number)))),
        ("agent", String::from(flag(run.stays))),
        ("slow", String::from("1")),
        ("link_layer", String::from(link_layer)),
        ("sm", String::from("1")),
        ("number", number.to_string()),
        ("vms", run.guests.to_string()),
        ("mac", mac_address(number)),
        ("mtu", mtu),
        (
            "device",
            String::from(if is_rxe { "rxe" } else { "verbena" }),
        ),
        ("terminal", terminal.kind.clone()),
        ("size", format!("{rows} {columns}")),
    ];
    let mut text = Vec::new();
    let mut assign = |name: &str, value: &[u8]| {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value);
        text.push(b'\n');
    };
    for (name, value) in pairs {
        assign(name, &shell::quote(value.as_bytes()));
    }
    let shares = shell::join(run.shares.iter().map(|share| share.as_os_str().as_bytes()));
    assign("shares", &[b"(", shares.as_slice(), b")"].concat());
    let directory = run
        .directory
        .as_ref()
        .map(|path| path.as_os_str().as_bytes());
    assign("directory", &shell::quote(directory.unwrap_or_default()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunOptions;
    use std::path::PathBuf;

    fn terminal() -> ShellTerminal {
        ShellTerminal {
            kind: String::from("xterm"),
            size: (24, 80),
        }
    }

    /// Returns what bash reads from the settings.
    fn read(settings: &[u8], expression: &str) -> String {
        let script = [settings, b"printf '<%s>' ", expression.as_bytes()].concat();
        let script = String::from_utf8(script).unwrap();
        let output = std::process::Command::new("bash")
            .args(["-c", &script])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn bash_reads_the_settings_of_a_peer() {
        let options = RunOptions {
            guests: 2,
            is_peer_rxe: true,
            mtu: Some(9000),
            shares: ["/home/a b", "/srv/it's"].map(PathBuf::from).to_vec(),
            directory: Some(PathBuf::from("/home/a b")),
            ..RunOptions::default()
        };
        let run = options.check().unwrap();
        let second = settings(&run, 2, &terminal());
        let words =
            r#""$number" "$vms" "$device" "$mtu" "$mac" "${shares[@]}" "$directory" "$size""#;
        assert_eq!(
            read(&second, words),
            "<2><2><rxe><9000><52:54:00:12:35:56></home/a b></srv/it's></home/a b><24 80>"
        );
        let first = settings(&run, 1, &terminal());
        assert_eq!(read(&first, r#""$device" "$interactive""#), "<verbena><>");
    }

    #[test]
    fn without_shares_the_list_is_empty() {
        let run = RunOptions::default().check().unwrap();
        let text = settings(&run, 1, &terminal());
        assert_eq!(
            read(&text, r#""${#shares[@]}" "$directory" "$link_layer""#),
            "<0><><ethernet>"
        );
    }

    #[test]
    fn the_command_follows_the_settings() {
        let options = RunOptions {
            commands: vec![Some(String::from("echo 'a b'"))],
            ..RunOptions::default()
        };
        let run = options.check().unwrap();
        let bytes = archive(&run, 1, &terminal());
        let text = String::from_utf8_lossy(&bytes);
        let settings = text.find("overlay/usr/lib/verbena/run.conf").unwrap();
        let command = text.find("echo 'a b'\n").unwrap();
        assert!(settings < command);
    }
}
