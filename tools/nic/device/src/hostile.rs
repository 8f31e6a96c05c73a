// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device that gives wrong answers (only with the feature `hostile`): completions, events and
//! command results that look right but are wrong. They show that the driver validates all of them.
//!
//! The random decisions depend on the seed alone, so that a run can be repeated. About one of
//! [`ODDS`] answers is wrong. The others are correct, so that a driver gets far enough to receive
//! wrong answers of every kind.

use crate::error::{bad, CmdError};
use crate::objects::eq::Event;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;

/// About one of this number of answers is wrong.
const ODDS: u64 = 40;

/// Number of commands after a reset that are answered correctly, so that the driver can bring the
/// device up.
const TRUE_COMMANDS: u32 = 100;

/// Random source of the wrong answers.
#[derive(Clone, Debug)]
pub struct Hostile {
    state: Option<u64>,
    commands: u32,
}

impl Hostile {
    /// Creates a source of wrong answers with this seed; without a seed all answers are correct.
    pub fn new(seed: Option<u64>) -> Self {
        Self {
            state: seed,
            commands: 0,
        }
    }

    /// Returns the source for the time after a reset. The random sequence continues, so that each
    /// reset draws other wrong answers, and the first commands are correct again.
    pub fn next_life(&self) -> Self {
        Self::new(self.state)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        let Some(state) = &mut self.state else {
            return 0;
        };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }

    fn lies(&mut self) -> bool {
        self.state.is_some() && self.roll(ODDS) == 0
    }

    /// Returns a number close to the correct one, or far from it.
    fn number(&mut self, truth: u32) -> u32 {
        match self.roll(5) {
            0 => truth.wrapping_add(1),
            1 => truth.wrapping_sub(1),
            2 => self.roll(64) as u32,
            3 => u32::MAX,
            _ => self.roll(1 << 32) as u32,
        }
    }

    /// Returns a completion, possibly a wrong one, and true if it has to be written twice.
    pub fn cqe(&mut self, mut body: Cqe, mut tail: Tail) -> (Cqe, Tail, bool) {
        if !self.lies() {
            return (body, tail, false);
        }
        match self.roll(9) {
            0 => body.qpn = self.number(body.qpn.get()).into(),
            1 => body.wqe_index = self.number(body.wqe_index.get()).into(),
            2 => body.wr_id = (self.roll(u64::MAX)).into(),
            3 => body.byte_len = self.number(body.byte_len.get()).into(),
            4 => tail.status = self.roll(256) as u8,
            5 => tail.opcode ^= 128,
            6 => tail.opcode = self.roll(256) as u8,
            7 => tail.wc_flags = self.roll(256) as u8,
            _ => return (body, tail, true),
        }
        (body, tail, false)
    }

    /// Returns an event, possibly a wrong one, and a second event to report as well, if any.
    pub fn event(&mut self, mut event: Event) -> (Event, Option<Event>) {
        if !self.lies() {
            return (event, None);
        }
        // DEVICE_FATAL is excluded, because the test would end with the device.
        let kinds: Vec<EventType> = EventType::ALL
            .iter()
            .copied()
            .filter(|k| *k != EventType::DeviceFatal)
            .collect();
        match self.roll(4) {
            0 => event.number = self.number(event.number),
            1 => event.kind = kinds[self.roll(kinds.len() as u64) as usize],
            2 => event.syndrome = self.number(event.syndrome),
            _ => {
                let other = Event {
                    kind: kinds[self.roll(kinds.len() as u64) as usize],
                    number: self.number(event.number),
                    syndrome: 0,
                };
                return (event, Some(other));
            }
        }
        (event, None)
    }

    /// Returns the result of a command, possibly a wrong one.
    pub fn outcome<const N: usize>(
        &mut self,
        outcome: Result<[u8; N], CmdError>,
    ) -> Result<[u8; N], CmdError> {
        self.commands = self.commands.saturating_add(1);
        if self.commands <= TRUE_COMMANDS || !self.lies() {
            return outcome;
        }
        match (self.roll(3), outcome) {
            (0, Ok(mut reply)) => {
                // One word of the part that replies use is replaced.
                let at = self.roll(40) as usize * 4;
                let word = self.number(0).to_le_bytes();
                if let Some(place) = reply.get_mut(at..at + 4) {
                    place.copy_from_slice(&word);
                }
                Ok(reply)
            }
            (1, Err(_)) => Ok([0; N]),
            _ => {
                let kinds = &CmdStatus::ALL[1..];
                let status = kinds[self.roll(kinds.len() as u64) as usize];
                Err(bad(status, Syndrome::CmdAttribute))
            }
        }
    }
}
