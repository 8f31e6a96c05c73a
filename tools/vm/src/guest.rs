// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One guest: its NIC, its QEMU, and what became of them.

use crate::boots::whole_boots;
use crate::guest_files::{self, ShellTerminal};
use crate::nic::{self, GuestPlaces};
use crate::options::{Accelerator, Run};
use crate::process::{command, NicProcess};
use crate::qemu::{self, Host};
use crate::root::Places;
use crate::session::exit_status;
use crate::watcher::Watcher;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How often a boot that the emulator broke is repeated.
const MAX_REPEATED_BOOTS: u32 = 3;

/// The end of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestEnd {
    /// QEMU has ended, with this exit status.
    Ended(u8),
    /// The guest was ended after the time limit of the run.
    TimedOut,
    /// The guest was ended for this reason.
    Failed(String),
}

/// What all guests of a run share.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The checked options.
    pub run: &'a Run,
    /// The files, by their paths in the root directory of the run.
    pub places: &'a Places,
    /// The host.
    pub host: &'a Host,
    /// Beginning of the loopback addresses of this run.
    pub loopback: String,
    /// The terminal of a shell.
    pub terminal: ShellTerminal,
}

/// A guest that has been started.
#[derive(Debug)]
pub struct Guest<'a> {
    shared: &'a Shared<'a>,
    /// Number of the guest, from 1.
    pub number: usize,
    /// Its directories.
    pub places: GuestPlaces,
    /// Where its command reads, if it reads.
    input: Option<OwnedFd>,
    nic: Option<NicProcess>,
    qemu: Child,
    watcher: Watcher,
    powered_on: Instant,
    repeated_boots: u32,
    /// The end, once the guest has ended.
    pub end: Option<GuestEnd>,
    /// Why a guest that stays has ended.
    pub reason: Option<String>,
}

impl<'a> Guest<'a> {
    /// Makes the directories and files of a guest.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn prepare(shared: &Shared<'_>, number: usize) -> Result<(), String> {
        let places = shared.places_of(number);
        let failed = |e: std::io::Error| format!("{}: {e}", places.logs.display());
        for directory in [&places.logs, &places.sockets] {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        for log in ["stdout", "stderr", "kernel.log"] {
            File::create(places.logs.join(log)).map_err(failed)?;
        }
        let archive = guest_files::archive(shared.run, number, &shared.terminal);
        let initrd = places.logs.join("initrd.cpio");
        std::fs::copy(&shared.places.initrd, &initrd).map_err(failed)?;
        let opened = OpenOptions::new().append(true).open(&initrd);
        opened
            .and_then(|mut file| file.write_all(&archive))
            .map_err(failed)
    }

    /// Starts the NIC of a guest that has its own, and QEMU. The command reads from `input`.
    ///
    /// # Errors
    ///
    /// The NIC or QEMU cannot be started.
    pub fn start(
        shared: &'a Shared<'a>,
        number: usize,
        input: Option<OwnedFd>,
    ) -> Result<Self, String> {
        let places = shared.places_of(number);
        let nic = match shared.run.has_shared_nic() {
            true => None,
            false => Some(start_nic(shared, number, &places)?),
        };
        let (qemu, watcher) = start_qemu(shared, number, &places, input.as_ref())?;
        Ok(Self {
            shared,
            number,
            places,
            input,
            nic,
            qemu,
            watcher,
            powered_on: Instant::now(),
            repeated_boots: 0,
            end: None,
            reason: None,
        })
    }

    /// True once the guest has reported that it is up.
    pub fn is_up(&self) -> bool {
        self.watcher.is_up()
    }

    /// Looks at the guest: notes its end, ends it if it has to be ended, repeats a broken boot.
    ///
    /// # Errors
    ///
    /// The guest has to boot again, and cannot be started.
    pub fn look(&mut self) -> Result<(), String> {
        if self.end.is_some() {
            return Ok(());
        }
        let ended = self.qemu.try_wait();
        let end = match ended.map_err(|e| format!("cannot wait for QEMU: {e}"))? {
            Some(status) => {
                let code = exit_status(status);
                if code == 0 && self.boots_again()? {
                    return Ok(());
                }
                GuestEnd::Ended(code)
            }
            None => match self.reason_to_end() {
                Some(end) => {
                    self.kill_qemu();
                    end
                }
                None => return Ok(()),
            },
        };
        self.note_end(end);
        Ok(())
    }

    fn note_end(&mut self, end: GuestEnd) {
        self.end = Some(end);
        if self.shared.run.guests > 1 {
            // The other guests wait for this file. The guest may have written it itself.
            let together = self.shared.places.logs.join("together");
            let file = together.join(format!("ended.vm{}", self.number));
            let _ = OpenOptions::new().create(true).append(true).open(file);
        }
    }

    /// Ends the guest, if it has not ended yet, for this reason.
    pub fn switch_off(&mut self, reason: &str) {
        if self.end.is_none() {
            self.kill_qemu();
            self.note_end(GuestEnd::Failed(String::from(reason)));
        }
    }

    /// Returns how the guest's own NIC has ended, although nobody asked it to.
    pub fn nic_trouble(&mut self) -> Option<String> {
        self.nic.as_mut().and_then(NicProcess::trouble)
    }

    fn reason_to_end(&mut self) -> Option<GuestEnd> {
        let now = Instant::now();
        let limit = self.shared.run.timeout_s.map(Duration::from_secs);
        if limit.is_some_and(|limit| now.duration_since(self.powered_on) >= limit) {
            return Some(GuestEnd::TimedOut);
        }
        self.watcher.look(now).map(GuestEnd::Failed)
    }

    /// Starts the guest again if the emulator broke its boot.
    fn boots_again(&mut self) -> Result<bool, String> {
        let log = self.places.logs.join("kernel.log");
        if self.shared.host.accelerator != Accelerator::Tcg
            || !whole_boots(&std::fs::read(&log).unwrap_or_default()).is_last_broken
            || self.repeated_boots == MAX_REPEATED_BOOTS
        {
            return Ok(false);
        }
        self.repeated_boots += 1;
        let note = format!(
            "the emulator executed an int3 that the kernel had removed (see {}): the guest boots again\n",
            self.shared.places.on_host(&log).display()
        );
        let errors = OpenOptions::new()
            .append(true)
            .open(self.places.logs.join("stderr"));
        let _ = errors.and_then(|mut file| file.write_all(note.as_bytes()));
        if let Some(nic) = &mut self.nic {
            nic.kill();
            *nic = start_nic(self.shared, self.number, &self.places)?;
        }
        (self.qemu, self.watcher) =
            start_qemu(self.shared, self.number, &self.places, self.input.as_ref())?;
        Ok(true)
    }

    fn kill_qemu(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }

    /// Ends the guest at once.
    pub fn abort(&mut self) {
        self.kill_qemu();
        if let Some(nic) = &mut self.nic {
            nic.kill();
        }
    }

    /// Ends the guest's own NIC. Returns what was wrong with its end.
    pub fn end_nic(&mut self) -> Option<String> {
        self.nic.take().and_then(NicProcess::end)
    }
}

impl Shared<'_> {
    /// Returns the directories of a guest.
    pub fn places_of(&self, number: usize) -> GuestPlaces {
        GuestPlaces::new(self.run, number, &self.places.logs, &self.places.sockets)
    }

    /// Starts the NIC of all guests.
    ///
    /// # Errors
    ///
    /// The NIC cannot be started, or does not open its sockets.
    pub fn start_nic_of_all(&self) -> Result<NicProcess, String> {
        let guests: Vec<(usize, GuestPlaces)> = self
            .run
            .numbers()
            .map(|number| (number, self.places_of(number)))
            .collect();
        let sockets: Vec<_> = guests
            .iter()
            .flat_map(|(_, places)| places.nic_sockets())
            .collect();
        let arguments = nic::arguments(self.run, &guests, &self.loopback);
        let log = self.places.logs.join("nic.log");
        NicProcess::start(&self.places.nic, &arguments, &sockets, &log)
    }
}

fn start_nic(
    shared: &Shared<'_>,
    number: usize,
    places: &GuestPlaces,
) -> Result<NicProcess, String> {
    let arguments = nic::arguments(shared.run, &[(number, places.clone())], &shared.loopback);
    let log = places.logs.join("nic.log");
    NicProcess::start(&shared.places.nic, &arguments, &places.nic_sockets(), &log)
}

fn start_qemu(
    shared: &Shared<'_>,
    number: usize,
    places: &GuestPlaces,
    input: Option<&OwnedFd>,
) -> Result<(Child, Watcher), String> {
    let watch = places.sockets.join("watch");
    let _ = std::fs::remove_file(&watch);
    let kernel_log = places.logs.join("kernel.log");
    let watcher = Watcher::new(
        watch,
        &kernel_log,
        shared.run.silence_s,
        shared.host.accelerator,
    );
    let mut command = command(qemu::PROGRAM, &places.logs.join("qemu.log"))?;
    command.args(qemu::arguments(
        shared.run,
        number,
        shared.host,
        shared.places,
        places,
        input.is_some(),
    ));
    if shared.run.is_shell_of(number) {
        command.stdin(Stdio::inherit()).stdout(Stdio::inherit());
    } else {
        // Ctrl-C is for the run, which then ends QEMU.
        command.process_group(0);
    }
    if let Some(input) = input {
        let own = input
            .try_clone()
            .map_err(|e| format!("cannot share a pipe: {e}"))?;
        command.stdin(own);
    }
    let qemu = command
        .spawn()
        .map_err(|e| format!("QEMU cannot be started: {e}"))?;
    Ok((qemu, watcher))
}
