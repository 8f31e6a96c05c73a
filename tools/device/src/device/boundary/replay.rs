// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Drives the device model with a full recording: makes the calls that were made, gives it what it read then, and holds what it does
//! against what it did.

use super::replayed::{Played, Stopped};
use crate::device::boundary::config;
use crate::error::{bad, CmdError};
use crate::{Config, Device, Next};
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Rule, RuleSet};
use verbena_record::full::{forge, sent, Item, Payload, Reader};
use verbena_record::{Entry, What, MAX_ENTRIES, WORDS};

/// What a replay has come to, if all was as recorded.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Entries of the recording.
    pub entries: u64,
    /// Why it ends. None: it was cut off between two pieces, as when a NIC is killed.
    pub end: Option<String>,
    /// Resets of the device.
    pub resets: u64,
    /// Work requests that were begun.
    pub work_requests: u64,
    /// Packets that were sent.
    pub packets: u64,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// Completions.
    pub completions: u64,
    /// Asynchronous events.
    pub events: u64,
    /// Interrupts, as often as any were raised.
    pub interrupts: u64,
    /// Frames that left.
    pub frames: u64,
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// Time of day, in nanoseconds since 1970, at which the device clock was 0.
    pub power_on: u64,
    /// The device clock at the end.
    pub now: u64,
    /// What a flight recorder had at the end: the number of the first entry, and entries.
    pub first: u64,
    /// See there.
    pub recorded: VecDeque<[u64; WORDS]>,
    /// Rules that these name.
    pub rules: Vec<Rule>,
}

impl Replayed {
    /// Takes what the flight recorder has since the last call.
    fn drain(&mut self, device: &Device) {
        let seen = self.first + self.recorded.len() as u64;
        let Some(more) = device.recorded(seen, usize::MAX) else {
            return;
        };
        for words in &more.entries {
            match Entry::unpack(words).map(|entry| entry.what) {
                Some(What::Work { .. }) => self.work_requests += 1,
                Some(What::Sent(packet)) => {
                    self.packets += u64::from(packet.count.max(1));
                    self.bytes += u64::from(packet.bytes);
                }
                Some(What::Completed { .. }) => self.completions += 1,
                Some(What::Event { .. }) => self.events += 1,
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

/// What became of a call.
enum Came<T> {
    Back(T),
    /// The model panicked.
    Panicked,
}

/// Makes a call. Errors: something else happened in it than was recorded.
fn call<T>(call: impl FnOnce() -> T) -> Result<Came<T>, Stopped> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Ok(Came::Back(value)),
        Err(cause) => match cause.downcast::<Stopped>() {
            Ok(stopped) => Err(*stopped),
            Err(_) => Ok(Came::Panicked),
        },
    }
}

/// How a command ended, by its numbers. None: there are no such ones.
fn outcome(status: u32, syndrome: u16) -> Option<Result<(), CmdError>> {
    let status = CmdStatus::from_raw(status)?;
    if status == CmdStatus::Ok {
        return Some(Ok(()));
    }
    let syndrome = Syndrome::from_raw(syndrome)?;
    Some(Err(bad(status, syndrome)))
}

struct Player<'a> {
    mem: Played<'a>,
    device: Device,
    found: Replayed,
}

/// Drives a device by a recording. `rules` reads rules from JSON.
///
/// # Errors
///
/// The recording is none, or the device does something else.
pub fn replay(
    bytes: &[u8],
    rules: impl Fn(&str) -> Result<RuleSet, String>,
) -> Result<Replayed, Stopped> {
    let reader = Reader::new(bytes).map_err(|bad| Stopped::Bad { entry: 0, bad })?;
    let mem = Played::new(reader);
    let no_begin = Stopped::Bad {
        entry: 0,
        bad: verbena_record::full::Bad::Begin,
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
        found: Replayed {
            mac: config.mac,
            power_on,
            ..Replayed::default()
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
    /// Does what an entry outside of calls asks for, and compares what it tells.
    fn go_on(
        &mut self,
        item: &Item<'a>,
        rules: impl Fn(&str) -> Result<RuleSet, String>,
    ) -> Result<(), Stopped> {
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
            Item::ClearRules {} => self.call(|device, _| device.clear_rules()),
            Item::Fail { syndrome } => {
                let cause = Syndrome::from_raw(syndrome);
                let cause = cause.ok_or_else(|| self.mem.differs(item, "no such syndrome"))?;
                self.call(|device, mem| device.fail(mem, cause))
            }
            Item::Decided { status, syndrome } => {
                let outcome = outcome(status, syndrome);
                let outcome = outcome.ok_or_else(|| self.mem.differs(item, "no such status"))?;
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
                let came = frame.as_ref().map(|frame| sent(frame));
                let same = came == Some(*item);
                self.same(same, item, || format!("{came:x?}"))
            }
            _ => self.same(false, item, || String::from("the end of the call")),
        }
    }

    fn same(
        &self,
        same: bool,
        item: &Item<'_>,
        came: impl FnOnce() -> String,
    ) -> Result<(), Stopped> {
        match same {
            true => Ok(()),
            false => Err(self.mem.differs(item, came())),
        }
    }

    /// A call without an answer.
    fn call(&mut self, make: impl FnOnce(&mut Device, &Played<'a>)) -> Result<(), Stopped> {
        let (device, mem) = (&mut self.device, &self.mem);
        match call(|| make(device, mem))? {
            Came::Back(()) => Ok(()),
            Came::Panicked => self.panicked(),
        }
    }

    /// A call with an answer.
    fn ask<T>(
        &mut self,
        make: impl FnOnce(&mut Device, &Played<'a>) -> T,
        answer: impl FnOnce(T) -> Item<'static>,
    ) -> Result<(), Stopped> {
        let (device, mem) = (&mut self.device, &self.mem);
        let came = match call(|| make(device, mem))? {
            Came::Back(value) => answer(value),
            Came::Panicked => return self.panicked(),
        };
        let expected = self.next(&came)?;
        self.same(expected == came, &expected, || format!("{came:x?}"))
    }

    /// The next entry, where something has come.
    fn next(&self, came: &Item<'_>) -> Result<Item<'a>, Stopped> {
        let next = self.mem.next()?;
        let end = Item::End { reason: "" };
        next.ok_or_else(|| self.mem.differs(&end, format!("{came:x?}")))
    }

    fn panicked(&self) -> Result<(), Stopped> {
        let came = Item::Panicked {};
        let expected = self.next(&came)?;
        let told = || String::from("a panic of the model");
        self.same(expected == came, &expected, told)
    }

    fn reset(&mut self) -> Result<(), Stopped> {
        let device = &mut self.device;
        if let Came::Panicked = call(|| device.reset())? {
            let config = device.shared.config.clone();
            let mut new = Device::new(config, device.shared.regs.clone());
            device.pass_tap(&mut new);
            new.reset();
            // What is left of the old one may be broken beyond being dropped.
            std::mem::forget(std::mem::replace(device, new));
        }
        Ok(())
    }

    fn frames(&mut self, now: u64, count: u32) -> Result<(), Stopped> {
        let mut frames = Vec::new();
        for _ in 0..count {
            match self.mem.next()? {
                Some(Item::Frame {
                    head,
                    between,
                    tail,
                }) => frames.push(frame(head.0, between, tail.0)),
                Some(other) => return Err(self.mem.differs(&other, "no frame")),
                None => return Err(self.mem.differs(&Item::End { reason: "" }, "no frame")),
            }
        }
        self.call(|device, mem| {
            device.receive_frames(mem, frames.iter().map(Vec::as_slice), now);
        })
    }
}

/// A frame of what was recorded of it.
fn frame(head: &[u8], between: Payload<'_>, tail: &[u8]) -> Vec<u8> {
    let forged;
    let between = match between {
        Payload::Unreachable => &[][..],
        Payload::Bytes(bytes) | Payload::Sums(bytes) => bytes.0,
        // No frame is longer than the port's; a file may say anything.
        Payload::Sum(length, sum) => {
            forged = forge(length.min(1 << 16) as usize, sum);
            &forged
        }
    };
    [head, between, tail].concat()
}
