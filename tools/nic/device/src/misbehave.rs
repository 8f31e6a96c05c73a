// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device that misbehaves in time (only with the feature `misbehave`): it is slow, silent or dead at a moment that a
//! test chooses, to show that the driver lets go of no memory that the device may still write.
//!
//! What it does is set by kind, each with a number: at start, or while the guest runs, from inside it, by words of
//! configuration space (`Documentation/testing.md`). Without the feature a [`Misbehaviour`] has no size, every kind is
//! off, and the hooks are nothing.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Where the words begin in configuration space: above all capabilities, and within the 256 bytes that a kernel reaches
/// that does not map it into memory.
pub const CONFIG_BASE: usize = 0xc0;
/// What the first word reads as: "MISB". Writing 0 to it switches everything off.
pub const CONFIG_MAGIC: u32 = 0x4253_494d;
/// The number that stands for "from now on, always" where a number counts.
pub const ALWAYS: u32 = u32::MAX;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $word:literal $name:literal,)+) => {
        /// How the device can misbehave. The word of a kind lies at [`CONFIG_BASE`] plus four times its number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind = $word,)+
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// The kind with a name.
            pub fn of(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.name() == name)
            }

            /// The name that people use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// So many commands are lost: neither executed nor answered.
    SwallowCommands = 1 "swallow-commands",
    /// So many commands are executed and not answered.
    MuteCommands = 2 "mute-commands",
    /// The next command is executed and answered so many milliseconds late; everything else goes on.
    LateCommand = 3 "late-command",
    /// The next command stalls the engine for so many milliseconds before it is executed.
    StallAtCommand = 4 "stall-at-command",
    /// The four kinds above, and [`Kind::RefuseCommands`], apply to commands with this opcode only.
    OnlyOpcode = 5 "only-opcode",
    /// The engine does nothing at all for so many milliseconds, and then goes on as if nothing had happened.
    Stall = 6 "stall",
    /// Interrupts are withheld; those that were wanted meanwhile are raised when this is switched off.
    NoInterrupts = 7 "no-interrupts",
    /// So many microseconds pass between the odd and the even value of a context's sequence counter.
    SeqSleep = 8 "seq-sleep",
    /// The model panics in the middle of a slice, once so many turns and deliveries less one have passed.
    Panic = 9 "panic",
    /// The engine itself ends, outside of all that catches panics of the model.
    EngineDies = 10 "engine-dies",
    /// A reset by CONTROL does nothing and is never confirmed; only bus mastering stops the DMA.
    ResetUnconfirmed = 11 "reset-unconfirmed",
    /// Bus mastering cannot be switched off: the bit stays set and the DMA goes on.
    BusMasterStuck = 12 "bus-master-stuck",
    /// So many commands are not executed and answered that there are no resources for them.
    RefuseCommands = 13 "refuse-commands",
    /// The next CREATE_CQ is so many milliseconds late, and before it come events of its CQ: a completion and an error.
    EventsAhead = 14 "events-ahead",
    /// The newest version of the contract that the device speaks, if it is one of those that it does speak.
    NewestVersion = 15 "newest-version",
}

/// Words, by number of the kind; the first is the magic's.
const WORDS: usize = 16;

/// What the device does wrong at present; copies share it.
#[derive(Clone, Debug, Default)]
pub struct Misbehaviour {
    #[cfg(feature = "misbehave")]
    words: std::sync::Arc<[AtomicU32; WORDS]>,
}

impl Misbehaviour {
    /// The word of a kind's number. Without the feature there is none, so all that asks for one comes to nothing.
    #[inline(always)]
    fn word(&self, number: usize) -> Option<&AtomicU32> {
        #[cfg(feature = "misbehave")]
        {
            self.words.get(number)
        }
        #[cfg(not(feature = "misbehave"))]
        {
            let _ = number;
            None
        }
    }

    /// The number of a kind; 0: it is off.
    #[inline(always)]
    pub fn get(&self, kind: Kind) -> u32 {
        self.word(kind as usize).map_or(0, |w| w.load(SeqCst))
    }

    /// Sets the number of a kind.
    #[inline(always)]
    pub fn set(&self, kind: Kind, value: u32) {
        if let Some(word) = self.word(kind as usize) {
            word.store(value, SeqCst);
        }
    }

    /// Takes the number of a kind that applies once.
    #[inline(always)]
    pub fn take(&self, kind: Kind) -> u32 {
        self.word(kind as usize).map_or(0, |w| w.swap(0, SeqCst))
    }

    /// Counts one of the times that a kind applies. Whether it applies now.
    #[inline(always)]
    pub fn count(&self, kind: Kind) -> bool {
        let one_less = |n| match n {
            0 => None,
            ALWAYS => Some(ALWAYS),
            n => Some(n - 1),
        };
        self.word(kind as usize)
            .is_some_and(|w| w.fetch_update(SeqCst, SeqCst, one_less).is_ok())
    }

    /// Sleeps for the microseconds of a kind.
    #[inline(always)]
    pub fn sleep_us(&self, kind: Kind) {
        let us = self.get(kind);
        if us != 0 {
            std::thread::sleep(std::time::Duration::from_micros(us.into()));
        }
    }

    /// The word at an offset of configuration space, if there is one.
    pub fn read_config(&self, offset: usize) -> Option<u32> {
        let offset = offset.checked_sub(CONFIG_BASE)?;
        let word = self.word(offset / 4).filter(|_| offset % 4 == 0)?;
        Some(match offset {
            0 => CONFIG_MAGIC,
            _ => word.load(SeqCst),
        })
    }

    /// Sets the word at an offset of configuration space. Whether there is one.
    pub fn write_config(&self, offset: usize, value: u32) -> bool {
        if self.read_config(offset).is_none() {
            return false;
        }
        let words = match (offset - CONFIG_BASE) / 4 {
            0 if value == 0 => 0..WORDS,
            0 => 0..0,
            n => n..n + 1,
        };
        let words = words.filter_map(|n| self.word(n));
        words.for_each(|w| w.store(value, SeqCst));
        true
    }

    /// Whether a kind is on.
    #[inline(always)]
    pub fn is(&self, kind: Kind) -> bool {
        self.get(kind) != 0
    }

    /// Whether misbehaviour of commands applies to this opcode.
    #[inline(always)]
    pub fn applies_to(&self, opcode: u16) -> bool {
        match self.get(Kind::OnlyOpcode) {
            0 => true,
            only => only == u32::from(opcode),
        }
    }
}

/// A kind and its number, as `KIND`, `KIND=NUMBER` or `KIND=always`.
pub fn parse(text: &str) -> Result<(Kind, u32), String> {
    let (name, number) = text.split_once('=').unwrap_or((text, "1"));
    let Some(&kind) = Kind::ALL.iter().find(|k| k.name() == name) else {
        let names: Vec<_> = Kind::ALL.iter().map(|k| k.name()).collect();
        return Err(format!(
            "there is no kind {name:?}: the kinds are {}",
            names.join(", ")
        ));
    };
    let value = match number {
        "always" => ALWAYS,
        _ => number
            .parse()
            .map_err(|_| format!("{number:?} is neither a 32-bit number nor \"always\""))?,
    };
    Ok((kind, value))
}

#[cfg(all(test, feature = "misbehave"))]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_by_kind_and_by_offset() {
        let m = Misbehaviour::default();
        for &kind in Kind::ALL {
            let offset = CONFIG_BASE + 4 * kind as usize;
            assert!(m.write_config(offset, 7));
            assert_eq!((m.get(kind), m.read_config(offset)), (7, Some(7)));
        }
        assert_eq!(m.read_config(CONFIG_BASE), Some(CONFIG_MAGIC));
        assert!(m.write_config(CONFIG_BASE, 0));
        assert!(Kind::ALL.iter().all(|&kind| !m.is(kind)));
        for none in [0, CONFIG_BASE - 4, CONFIG_BASE + 2, CONFIG_BASE + 4 * WORDS] {
            assert!(!m.write_config(none, 1) && m.read_config(none).is_none());
        }
    }

    #[test]
    fn what_counts_applies_so_often() {
        let m = Misbehaviour::default();
        m.set(Kind::Panic, 2);
        assert_eq!([(); 3].map(|()| m.count(Kind::Panic)), [true, true, false]);
        m.set(Kind::Panic, ALWAYS);
        assert!(m.count(Kind::Panic) && m.get(Kind::Panic) == ALWAYS);
    }

    #[test]
    fn kinds_are_named() {
        let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let mut known = verbena_faults::MISBEHAVIOURS.to_vec();
        known.sort_by_key(|name| names.iter().position(|own| own == name));
        assert_eq!(known, names);
        assert_eq!(parse("stall=20"), Ok((Kind::Stall, 20)));
        assert_eq!(parse("no-interrupts"), Ok((Kind::NoInterrupts, 1)));
        assert_eq!(
            parse("mute-commands=always"),
            Ok((Kind::MuteCommands, ALWAYS))
        );
        assert!(parse("stall=x").is_err() && parse("install").is_err());
    }
}
