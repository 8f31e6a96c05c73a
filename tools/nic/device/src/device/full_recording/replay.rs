// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replays a full recording on the device model: makes the recorded calls, feeds the model the
//! recorded values, and compares its actions with the recorded ones.

use super::replay_memory::{ReplayError, ReplayMemory};
use crate::device::full_recording::config;
use crate::error::{bad, CmdError};
use crate::{Config, Device, Next};
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Rule, RuleSet};
use verbena_recorder::full::{forge, sent_item, FullRecordingReader, Item, RecordedPayload};
use verbena_recorder::{EntryKind, FlightEntry, ENTRY_WORDS, MAX_ENTRIES};

/// Result of a replay in which the model did everything as recorded.
#[derive(Clone, Debug, Default)]
pub struct ReplaySummary {
    /// Number of entries in the recording.
    pub entries: u64,
    /// Reason of the end of the recording. None if the recording was cut off between two pieces, as
    /// when a NIC is killed.
    pub end: Option<String>,
    /// Number of device resets.
    pub resets: u64,
    /// Number of work requests that the device began.
    pub work_requests: u64,
    /// Number of packets that were sent.
    pub packets: u64,
    /// Number of payload bytes in the packets that were sent.
    pub bytes: u64,
    /// Number of completions.
    pub completions: u64,
    /// Number of asynchronous events.
    pub events: u64,
    /// Number of times that at least one interrupt was raised.
    pub interrupts: u64,
    /// Number of frames that left the device.
    pub frames: u64,
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
    pub power_on: u64,
    /// Device clock at the end of the recording, in nanoseconds.
    pub now: u64,
    /// Number of the first entry in `recorded`, as the flight recorder counts entries.
    pub first: u64,
    /// Last entries of a flight recorder that ran during the replay.
    pub recorded: VecDeque<[u64; ENTRY_WORDS]>,
    /// Rules that the entries in `recorded` name.
    pub rules: Vec<Rule>,
}

impl ReplaySummary {
    /// Takes the entries that the flight recorder has got since the last call, and keeps the last
    /// [`MAX_ENTRIES`].
    fn drain(&mut self, device: &Device) {
        let seen = self.first + self.recorded.len() as u64;
        let Some(more) = device.flight_recording(seen, usize::MAX) else {
            return;
        };
        for words in &more.entries {
            match FlightEntry::unpack(words).map(|entry| entry.kind) {
                Some(EntryKind::Work { .. }) => self.work_requests += 1,
                Some(EntryKind::Sent(packet)) => {
                    self.packets += u64::from(packet.count.max(1));
                    self.bytes += u64::from(packet.bytes);
                }
                Some(EntryKind::Completed { .. }) => self.completions += 1,
                Some(EntryKind::Event { .. }) => self.events += 1,
                _ => {}
            }
        }
        if !more.entries.is_empty() {
            self.rules = more.rules;
        }
        self.recorded.extend(more.entries);
        let over = self.recorded.len().saturating_sub(MAX_ENTRIES);
        self.recorded.drain(..over);
        self.first += over as u64;
    }
}

/// Outcome of a call of the model.
enum CallOutcome<T> {
    Returned(T),
    /// The model panicked in the call.
    Panicked,
}

/// Makes a call. Returns an error if the model did something else in it than was recorded.
fn call<T>(call: impl FnOnce() -> T) -> Result<CallOutcome<T>, ReplayError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Ok(CallOutcome::Returned(value)),
        Err(cause) => match cause.downcast::<ReplayError>() {
            Ok(stopped) => Err(*stopped),
            Err(_) => Ok(CallOutcome::Panicked),
        },
    }
}

/// Decodes the recorded outcome of a command. None if the status or the syndrome does not exist.
fn outcome(status: u32, syndrome: u16) -> Option<Result<(), CmdError>> {
    let status = CmdStatus::from_raw(status)?;
    if status == CmdStatus::Ok {
        return Some(Ok(()));
    }
    let syndrome = Syndrome::from_raw(syndrome)?;
    Some(Err(bad(status, syndrome)))
}

struct Player<'a> {
    mem: ReplayMemory<'a>,
    device: Device,
    found: ReplaySummary,
}

/// Replays a recording on a new device. `rules` parses rules in JSON.
///
/// # Errors
///
/// The file is no recording or is damaged, or the device does something else than was recorded.
pub fn replay(
    bytes: &[u8],
    rules: impl Fn(&str) -> Result<RuleSet, String>,
) -> Result<ReplaySummary, ReplayError> {
    let reader =
        FullRecordingReader::new(bytes).map_err(|bad| ReplayError::Bad { entry: 0, bad })?;
    let mem = ReplayMemory::new(reader);
    let no_begin = ReplayError::Bad {
        entry: 0,
        bad: verbena_recorder::full::FullRecordingError::NoBegin,
    };
    let Some(Item::Begin {
        mac,
        flags,
        drop_percent,
        seed,
        power_on,
        ..
    }) = mem.next()?
    else {
        return Err(no_begin);
    };
    let config = config(mac.0, flags, drop_percent, seed).ok_or(no_begin)?;
    let config = Config {
        record: MAX_ENTRIES,
        ..config
    };
    let mut player = Player {
        mem,
        found: ReplaySummary {
            mac: config.mac,
            power_on,
            ..ReplaySummary::default()
        },
        device: Device::new(config, Default::default()),
    };
    while let Some(item) = player.mem.next()? {
        if let Item::End { reason } = item {
            player.found.end = Some(reason.into());
            break;
        }
        player.go_on(&item, &rules)?;
        player.found.drain(&player.device);
    }
    player.found.entries = player.mem.count();
    Ok(player.found)
}

impl<'a> Player<'a> {
    /// Makes the call that an entry stands for, and compares its result with the recording.
    fn go_on(
        &mut self,
        item: &Item<'a>,
        rules: impl Fn(&str) -> Result<RuleSet, String>,
    ) -> Result<(), ReplayError> {
        match *item {
            Item::Reset {} => {
                self.found.resets += 1;
                self.reset()
            }
            Item::Enable {
                spoken,
                base,
                slots,
            } => self.call(|device, mem| device.enable_cmdq_as(mem, spoken, base, slots)),
            Item::Command { slot } => self.call(|device, _| device.command(slot)),
            Item::Ring { uar } => self.call(|device, _| device.ring(uar)),
            Item::Doorbells { more } => self.call(|device, _| device.count_doorbells(more)),
            Item::Slice { now } => {
                self.found.now = now;
                self.ask(
                    |device, mem| device.run_slice(mem, now),
                    |next: Next| Item::Next {
                        busy: next.busy,
                        deadline: next.deadline,
                        untaken: next.untaken,
                    },
                )
            }
            Item::Sleep {} => self.ask(
                |device, mem| device.fall_asleep(mem),
                |yes| Item::Told { yes },
            ),
            Item::Frames { now, count } => self.frames(now, count),
            Item::AddRules { now, owner, json } => {
                let set = rules(json).map_err(|e| self.mem.differs(item, e))?;
                self.ask(
                    |device, _| device.add_rules(&set, owner, now).is_ok(),
                    |yes| Item::Told { yes },
                )
            }
            Item::RemoveRule { name } => self.call(|device, _| {
                device.remove_rule(name);
            }),
            Item::RemoveRulesOf { owner } => self.call(|device, _| device.remove_rules_of(owner)),
            Item::ClearRules {} => self.call(|device, _| device.clear_added_rules()),
            Item::Fail { syndrome } => {
                let cause = Syndrome::from_raw(syndrome);
                let cause = cause.ok_or_else(|| self.mem.differs(item, "an unknown syndrome"))?;
                self.call(|device, mem| device.fail(mem, cause))
            }
            Item::Decided { status, syndrome } => {
                let outcome = outcome(status, syndrome);
                let outcome = outcome.ok_or_else(|| self.mem.differs(item, "an unknown status"))?;
                self.call(|device, mem| device.end_claim(mem, outcome))
            }
            Item::Raised { vectors } => {
                self.found.interrupts += 1;
                let raised = self.device.take_interrupts();
                let same = raised == vectors;
                self.same(same, item, || format!("interrupts {raised:#x}"))
            }
            Item::Sent { .. } => {
                self.found.frames += 1;
                let frame = self.device.next_frame();
                let found = frame.as_ref().map(|frame| sent_item(frame));
                let same = found == Some(*item);
                self.same(same, item, || format!("{found:x?}"))
            }
            _ => self.same(false, item, || String::from("the end of the call")),
        }
    }

    fn same(
        &self,
        same: bool,
        item: &Item<'_>,
        found: impl FnOnce() -> String,
    ) -> Result<(), ReplayError> {
        match same {
            true => Ok(()),
            false => Err(self.mem.differs(item, found())),
        }
    }

    /// Makes a call that has no recorded result.
    fn call(
        &mut self,
        make: impl FnOnce(&mut Device, &ReplayMemory<'a>),
    ) -> Result<(), ReplayError> {
        let (device, mem) = (&mut self.device, &self.mem);
        match call(|| make(device, mem))? {
            CallOutcome::Returned(()) => Ok(()),
            CallOutcome::Panicked => self.panicked(),
        }
    }

    /// Makes a call and compares its result with the next entry.
    fn ask<T>(
        &mut self,
        make: impl FnOnce(&mut Device, &ReplayMemory<'a>) -> T,
        answer: impl FnOnce(T) -> Item<'static>,
    ) -> Result<(), ReplayError> {
        let (device, mem) = (&mut self.device, &self.mem);
        let found = match call(|| make(device, mem))? {
            CallOutcome::Returned(value) => answer(value),
            CallOutcome::Panicked => return self.panicked(),
        };
        let expected = self.next(&found)?;
        self.same(expected == found, &expected, || format!("{found:x?}"))
    }

    /// Returns the next entry, to be compared with the result of the call. An error if there is none.
    fn next(&self, found: &Item<'_>) -> Result<Item<'a>, ReplayError> {
        let next = self.mem.next()?;
        let end = Item::End { reason: "" };
        next.ok_or_else(|| self.mem.differs(&end, format!("{found:x?}")))
    }

    fn panicked(&self) -> Result<(), ReplayError> {
        let found = Item::Panicked {};
        let expected = self.next(&found)?;
        let described = || String::from("a panic of the device model");
        self.same(expected == found, &expected, described)
    }

    fn reset(&mut self) -> Result<(), ReplayError> {
        let device = &mut self.device;
        if let CallOutcome::Panicked = call(|| device.reset())? {
            let config = device.shared.config().clone();
            let mut new = Device::new(config, device.shared.regs().clone());
            device.hand_over_observers(&mut new);
            new.reset();
            // The panic may have left the old device in a state in which even its drop would fail.
            std::mem::forget(std::mem::replace(device, new));
        }
        Ok(())
    }

    fn frames(&mut self, now: u64, count: u32) -> Result<(), ReplayError> {
        let mut frames = Vec::new();
        for _ in 0..count {
            match self.mem.next()? {
                Some(Item::Frame {
                    head,
                    between,
                    tail,
                }) => frames.push(frame(head.0, between, tail.0)),
                Some(other) => return Err(self.mem.differs(&other, "the next frame of the call")),
                None => {
                    return Err(self
                        .mem
                        .differs(&Item::End { reason: "" }, "the next frame of the call"))
                }
            }
        }
        self.call(|device, mem| {
            device.receive_frames(mem, frames.iter().map(Vec::as_slice), now);
        })
    }
}

/// Rebuilds a frame from the recorded parts.
fn frame(head: &[u8], between: RecordedPayload<'_>, tail: &[u8]) -> Vec<u8> {
    let forged;
    let between = match between {
        RecordedPayload::Unreachable => &[][..],
        RecordedPayload::Bytes(bytes) | RecordedPayload::Sums(bytes) => bytes.0,
        // No frame of the port is longer than this, but the file may contain any length.
        RecordedPayload::Sum(length, sum) => {
            forged = forge(length.min(1 << 16) as usize, sum);
            &forged
        }
    };
    [head, between, tail].concat()
}
