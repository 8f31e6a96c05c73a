// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A whole run: starts all guests, streams their outputs, waits for them, and judges them.

use crate::guest::{Guest, Shared};
use crate::judge::{self, Verdict};
use crate::options::Run;
use crate::output::{OutputStreams, Stream};
use crate::process::{command, NicProcess};
use crate::root::Places;
use crate::signals::Signals;
use crate::summary;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Exit status after the reader of an output has closed its pipe: that of SIGPIPE.
const READER_GONE: u8 = 141;

/// What a caller may show while guests boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Guests boot. Called several times a second.
    Booting {
        /// Time since power-on.
        elapsed: Duration,
        /// The accelerator.
        accelerator: String,
        /// Guests that are up, and all guests.
        up: (usize, usize),
    },
    /// All guests are up. Also reported when the run ends.
    Done,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit status: that of the command, 124, or 125; of several guests the greatest.
    pub status: u8,
    /// What the host found wrong, for standard error.
    pub errors: Vec<String>,
    /// What happened and where its files are, if something failed.
    pub summary: Vec<String>,
}

impl Shared<'_> {
    /// Returns the progress of guests, of which `up` are up.
    pub fn booting(&self, powered_on: Instant, up: usize) -> Progress {
        Progress::Booting {
            elapsed: powered_on.elapsed(),
            accelerator: self.host.accelerator.to_string(),
            up: (up, self.run.guests),
        }
    }
}

/// Returns the beginning of a loopback address that other runs have only by chance.
pub fn random_loopback() -> String {
    loopback(RandomState::new().hash_one(()))
}

fn loopback(random: u64) -> String {
    format!("127.{}.{}", random % 250 + 2, random / 250 % 250 + 2)
}

impl Outcome {
    /// Returns the outcome of a run that was aborted.
    pub fn aborted(status: u8) -> Self {
        Self {
            status,
            errors: Vec::new(),
            summary: Vec::new(),
        }
    }
}

/// The guests of a run.
#[derive(Debug)]
pub struct Guests<'a> {
    /// Each guest, in the order of their numbers.
    pub each: Vec<Guest<'a>>,
    /// The NIC that serves all of them, if they share one.
    pub nic_of_all: Option<NicProcess>,
}

/// Boots the guests and runs their commands, in the root directory of the run. `progress` is called
/// while they boot.
///
/// # Errors
///
/// A guest cannot be started.
pub fn boot(
    shared: &Shared<'_>,
    signals: &Signals,
    mut progress: impl FnMut(Progress),
) -> Result<Outcome, String> {
    let run = shared.run;
    prepare(shared)?;
    let mut streams = OutputStreams::default();
    for number in run.numbers().filter(|&number| !run.is_shell_of(number)) {
        let logs = shared.places_of(number).logs;
        let prefix = match run.guests {
            1 => String::new(),
            _ => format!("{}| ", run.name(number)),
        };
        streams.add(&logs.join("stdout"), Stream::Out, &prefix)?;
        streams.add(&logs.join("stderr"), Stream::Err, &prefix)?;
    }
    let input = match run.is_shell {
        true => None,
        false => command_input()?,
    };
    let mut guests = start_all(shared, input)?;
    let aborted = wait_for_all(&mut guests.each, shared, signals, &streams, &mut progress);
    progress(Progress::Done);
    if let Some(status) = aborted? {
        guests.each.iter_mut().for_each(Guest::abort);
        return Ok(Outcome::aborted(status));
    }
    let outcome = conclude(shared, guests);
    streams.finish();
    Ok(outcome)
}

/// Makes the directories and files of all guests.
///
/// # Errors
///
/// A file cannot be written.
pub fn prepare(shared: &Shared<'_>) -> Result<(), String> {
    if shared.run.guests > 1 {
        let together = shared.places.logs.join("together");
        std::fs::create_dir_all(&together).map_err(|e| format!("{}: {e}", together.display()))?;
    }
    for number in shared.run.numbers() {
        Guest::prepare(shared, number)?;
    }
    Ok(())
}

/// Ends the NICs of guests that have ended, and judges the run.
pub fn conclude(shared: &Shared<'_>, mut guests: Guests<'_>) -> Outcome {
    let nic_failure = guests.nic_of_all.and_then(NicProcess::end);
    let verdicts: Vec<Verdict> = guests
        .each
        .iter_mut()
        .map(|guest| {
            let failure = guest.end_nic().or_else(|| nic_failure.clone());
            judge::judge(shared, guest, failure)
        })
        .collect();
    let statuses = verdicts.iter().map(|verdict| verdict.status);
    let status = statuses.max().unwrap_or(0);
    let errors = verdicts
        .iter()
        .flat_map(|verdict| verdict.errors.clone())
        .collect();
    let summary = match shared.run.is_recorded {
        true => summary::summarize(shared, &guests.each, &verdicts, status),
        false => Vec::new(),
    };
    Outcome {
        status,
        errors,
        summary,
    }
}

/// Starts the NIC of all guests, if they share one, and the guests. vm1 starts last, so that its
/// command finds its peers sooner.
///
/// # Errors
///
/// A process cannot be started. The text has the end of the NIC's log.
pub fn start_all<'a>(shared: &'a Shared<'a>, input: Option<OwnedFd>) -> Result<Guests<'a>, String> {
    let started = start_each(shared, input);
    started.map_err(|e| with_nic_log(&e, shared.run, shared.places))
}

fn start_each<'a>(
    shared: &'a Shared<'a>,
    mut input: Option<OwnedFd>,
) -> Result<Guests<'a>, String> {
    let nic_of_all = match shared.run.has_shared_nic() {
        true => Some(shared.start_nic_of_all()?),
        false => None,
    };
    let mut each = Vec::new();
    for number in shared.run.numbers().rev() {
        let input = if number == 1 { input.take() } else { None };
        let guest = Guest::start(shared, number, input)?;
        if shared.run.is_captured {
            capture(shared, &guest)?;
        }
        each.insert(0, guest);
    }
    Ok(Guests { each, nic_of_all })
}

/// Starts to capture the packets of a guest's NIC. The capture ends with the NIC.
fn capture(shared: &Shared<'_>, guest: &Guest<'_>) -> Result<(), String> {
    let [_, _, control] = guest.places.nic_sockets();
    command(
        &shared.places.verbenactl,
        &guest.places.logs.join("nic.log"),
    )?
    .arg("--socket")
    .arg(control)
    .arg("capture")
    .arg(guest.places.logs.join("rdma.pcapng"))
    .spawn()
    .map(drop)
    .map_err(|e| format!("the capture cannot be started: {e}"))
}

/// Waits until all guests have ended. Returns an exit status if the run was aborted.
fn wait_for_all(
    guests: &mut [Guest<'_>],
    shared: &Shared<'_>,
    signals: &Signals,
    streams: &OutputStreams,
    progress: &mut impl FnMut(Progress),
) -> Result<Option<u8>, String> {
    let powered_on = Instant::now();
    let mut is_booting = true;
    loop {
        for guest in guests.iter_mut() {
            guest.look()?;
        }
        if guests.iter().all(|guest| guest.end.is_some()) {
            return Ok(None);
        }
        if let Some(signal) = signals.received() {
            return Ok(Some(128 + signal as u8));
        }
        if streams.is_reader_gone() {
            return Ok(Some(READER_GONE));
        }
        if is_booting {
            let up = guests.iter().filter(|guest| guest.is_up()).count();
            is_booting = up < guests.len();
            progress(match is_booting {
                true => shared.booting(powered_on, up),
                false => Progress::Done,
            });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Adds the end of the NIC's log to an error.
fn with_nic_log(error: &str, run: &Run, places: &Places) -> String {
    let mut logs = vec![places.logs.join("nic.log")];
    logs.extend(
        run.numbers()
            .map(|number| places.logs.join(run.name(number)).join("nic.log")),
    );
    let mut text = String::from(error);
    for log in logs.iter().filter(|log| log.exists()) {
        text += &format!("\n{}", judge::end_of_log(places, log));
    }
    text
}

/// Returns a pipe with the standard input of this process, unless that is a terminal or /dev/null.
fn command_input() -> Result<Option<OwnedFd>, String> {
    let failed = |e: io::Error| format!("cannot read standard input: {e}");
    let stdin = io::stdin();
    let own = stdin.as_fd().try_clone_to_owned().map_err(failed)?;
    if io::IsTerminal::is_terminal(&stdin) || is_null(&own).map_err(failed)? {
        return Ok(None);
    }
    // QEMU reads a pipe, because it changes the mode of the file that it reads, which other processes
    // may have open.
    let (reader, writer) =
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|e| failed(e.into()))?;
    std::thread::spawn(move || {
        let (mut from, mut to) = (std::fs::File::from(own), std::fs::File::from(writer));
        // The guest may end before its input.
        let _ = io::copy(&mut from, &mut to);
    });
    Ok(Some(reader))
}

fn is_null(input: &OwnedFd) -> io::Result<bool> {
    let own = std::fs::File::from(input.try_clone()?).metadata()?;
    let null = Path::new("/dev/null").metadata()?;
    Ok(own.file_type().is_char_device() && own.rdev() == null.rdev())
}

/// Files that are removed when a run ends.
#[derive(Debug)]
pub struct Temporary<'a> {
    /// The checked options.
    pub run: &'a Run,
    /// Where the files are.
    pub places: &'a Places,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        let logs = &self.places.logs;
        // What is missing was not made.
        let _ = std::fs::remove_dir_all(logs.join("together"));
        let _ = std::fs::remove_file(logs.join("initrd.cpio"));
        for number in self.run.numbers() {
            let _ = std::fs::remove_file(logs.join(self.run.name(number)).join("initrd.cpio"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_valid() {
        assert_eq!(loopback(0), "127.2.2");
        assert_eq!(loopback(250 * 250 - 1), "127.251.251");
        assert_eq!(
            loopback(u64::MAX),
            format!("127.{}.{}", u64::MAX % 250 + 2, u64::MAX / 250 % 250 + 2)
        );
    }

    #[test]
    fn only_the_null_device_is_no_input() {
        let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
        assert!(is_null(&open("/dev/null")).unwrap());
        assert!(!is_null(&open("/dev/zero")).unwrap());
        assert!(!is_null(&open("/etc/passwd")).unwrap());
    }
}
