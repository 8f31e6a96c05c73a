// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The impairments of all uplinks: the control socket sets them, and all frames that leave by an
//! uplink pass through them, on any thread. The engine sends the delayed frames when they are due.
//! Without impairments the cost is one load of a word.

mod faults;

use crate::switch::MAX_WIRES;
use faults::Faults;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbena_protocol::{Impaired, Impairment, ToldImpairments};

/// The impairment of one uplink.
#[derive(Debug)]
struct Slot {
    faults: Faults,
    /// True if the impairment was removed, and only sends its delayed frames.
    ends: bool,
}

/// The impairments of all uplinks. See the [module](self).
#[derive(Debug, Default)]
pub struct Impairments {
    any: AtomicBool,
    /// Impairment of each uplink, if it has one.
    slots: Mutex<Vec<Option<Slot>>>,
}

impl Impairments {
    fn slots(&self) -> MutexGuard<'_, Vec<Option<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn look(&self, slots: &[Option<Slot>]) {
        let any = slots.iter().any(Option::is_some);
        self.any.store(any, Ordering::Release);
    }

    /// Sets the number of uplinks, none of which is impaired.
    pub fn set_uplinks(&self, count: usize) {
        let mut slots = self.slots();
        slots.clear();
        slots.resize_with(count.min(MAX_WIRES.into()), || None);
        self.look(&slots);
    }

    /// Sets the impairment of an uplink or, for `None`, of all uplinks; removes it if `how` is
    /// `None`. Frames that an earlier impairment has delayed become due at once.
    ///
    /// # Errors
    ///
    /// There is no such uplink, or the impairment is not valid; then nothing has changed.
    pub fn set(&self, uplink: Option<u8>, how: Option<Impairment>) -> Result<(), String> {
        how.map_or(Ok(()), |how| how.check())?;
        let mut slots = self.slots();
        let count = slots.len();
        if count == 0 {
            return Err(String::from(
                "the NIC has no uplink to impair: start verbena-nic with --uplink, or with --drop to lose local packets",
            ));
        }
        let chosen = match uplink.map(usize::from) {
            None => 0..count,
            Some(n) if n < count => n..n + 1,
            Some(n) => {
                return Err(format!(
                    "there is no uplink {n}: there are {count}, numbered from 0"
                ))
            }
        };
        for slot in slots.get_mut(chosen).into_iter().flatten() {
            let before = slot.take().map(|slot| slot.faults);
            if before.is_none() && how.is_none() {
                continue;
            }
            *slot = Some(Slot {
                faults: Faults::behind(before, how.unwrap_or_default()),
                ends: how.is_none(),
            });
        }
        self.look(&slots);
        Ok(())
    }

    /// Returns the impairments of all uplinks.
    pub fn told(&self) -> ToldImpairments {
        let slots = self.slots();
        let uplinks = (0u8..).zip(slots.iter()).map(|(uplink, slot)| {
            let faults = slot.as_ref().filter(|slot| !slot.ends);
            let faults = faults.map(|slot| &slot.faults);
            Impaired {
                uplink,
                impairment: faults.map(Faults::how),
                toll: faults.map(Faults::toll),
            }
        });
        ToldImpairments {
            uplinks: uplinks.collect(),
        }
    }

    /// Takes frames that are to leave by an uplink. Returns false if the uplink is not impaired,
    /// and takes no frame then.
    pub fn take(&self, uplink: usize, frames: &[&[u8]], now: u64) -> bool {
        if !self.is_any() {
            return false;
        }
        let mut slots = self.slots();
        let Some(Some(slot)) = slots.get_mut(uplink) else {
            return false;
        };
        for frame in frames {
            slot.faults.take(frame, now);
        }
        true
    }

    /// Returns the time at which [`Impairments::release`] has a frame to send.
    pub fn next_due(&self) -> Option<u64> {
        if !self.is_any() {
            return None;
        }
        let slots = self.slots();
        let due = slots.iter().flatten().map(|slot| slot.faults.next_due());
        due.flatten().min()
    }

    /// Sends the frames that are due, at most `most` by each uplink. `send` returns how many frames
    /// the uplink has accepted.
    pub fn release(&self, now: u64, most: usize, mut send: impl FnMut(usize, &[&[u8]]) -> usize) {
        if !self.is_any() {
            return;
        }
        let mut slots = self.slots();
        for (uplink, place) in slots.iter_mut().enumerate() {
            let Some(slot) = place else {
                continue;
            };
            slot.faults
                .release(now, most, |frames| send(uplink, frames));
            if slot.ends && slot.faults.next_due().is_none() {
                *place = None;
            }
        }
        self.look(&slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(delay_ns: u64) -> Option<Impairment> {
        Some(Impairment {
            delay_ns,
            ..Impairment::default()
        })
    }

    fn released(all: &Impairments, now: u64) -> Vec<(usize, u8)> {
        let mut left = vec![];
        all.release(now, 9, |uplink, frames| {
            left.extend(frames.iter().map(|frame| (uplink, frame[0])));
            frames.len()
        });
        left
    }

    #[test]
    fn each_uplink_has_its_own_impairment() {
        let all = Impairments::default();
        assert!(all.set(None, delay(5)).unwrap_err().contains("--uplink"));
        all.set_uplinks(3);
        assert!(!all.take(1, &[&[1]], 0) && all.next_due().is_none());
        all.set(Some(1), delay(5)).unwrap();
        assert!(!all.take(0, &[&[1]], 0) && !all.take(9, &[&[1]], 0));
        assert!(all.take(1, &[&[1], &[2]], 10));
        assert_eq!((released(&all, 14), all.next_due()), (vec![], Some(15)));
        assert_eq!(released(&all, 15), [(1, 1), (1, 2)]);
        let told = all.told().uplinks;
        let impaired: Vec<_> = told.iter().map(|u| u.impairment.is_some()).collect();
        assert_eq!(impaired, [false, true, false]);
        assert_eq!(told[1].toll.unwrap().frames, 2);
        let error = all.set(Some(3), delay(5)).unwrap_err();
        assert!(
            error.contains("uplink 3") && error.contains("are 3"),
            "{error}"
        );
        let nonsense = Some(Impairment {
            loss_ppm: u32::MAX,
            ..Impairment::default()
        });
        assert!(all.set(None, nonsense).is_err());
        assert_eq!(all.told().uplinks, told);
    }

    #[test]
    fn after_an_impairment_is_off_waiting_frames_leave_first_and_later_ones_directly() {
        let all = Impairments::default();
        all.set_uplinks(2);
        all.set(None, delay(1000)).unwrap();
        all.take(0, &[&[1], &[2]], 0);
        all.take(1, &[&[3]], 0);
        all.set(Some(0), delay(2000)).unwrap();
        assert_eq!(released(&all, 1), [(0, 1), (0, 2)]);
        all.take(0, &[&[4]], 1);
        all.set(None, None).unwrap();
        assert!(all.told().uplinks.iter().all(|u| u.impairment.is_none()));
        // A frame waits after the frames before it, until these have left.
        assert!(all.take(0, &[&[5]], 2));
        assert_eq!(released(&all, 2), [(0, 4), (0, 5), (1, 3)]);
        assert!(!all.is_any() && !all.take(0, &[&[6]], 3));
    }
}
