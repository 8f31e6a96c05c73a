// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device: its life cycle, and the calls that the daemon around it makes.

mod areas;
pub(crate) mod cmd;
pub mod crossing;
mod fault_effects;
mod fault_hooks;
pub mod figures;
pub mod flight_recording;
pub mod full_recording;
pub mod infiniband;
mod loss;
mod misbehaviour;
mod net;
pub(crate) mod parts;
pub(crate) mod sched;
pub mod snapshot;

use crate::capture::CaptureTap;
use crate::device::parts::addressing::Addressing;
use crate::device::parts::areas::AreaLists;
use crate::device::parts::commands::Commands;
use crate::device::parts::crossing::CrossingPackets;
use crate::device::parts::egress::Egress;
use crate::device::parts::follow::FollowRounds;
use crate::device::parts::turns::Turns;
use crate::device::snapshot::Survey;
use crate::execution::resources::Resources;
use crate::memory::GuestMemory;
use crate::objects::port::Gid;
use crate::objects::qp::Qp;
use crate::observation::event::{Call, DeviceEvent};
use crate::slots::Slots;
use crate::{config, Config, Registers};
use std::rc::Rc;
use std::sync::Arc;
use verbena_abi::syndrome::Syndrome;

/// Result of a slice: when the caller has to call again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// True if the slice did work or left some. The caller calls again at once.
    pub busy: bool,
    /// Time of the next call at the latest, in nanoseconds of the device clock.
    pub deadline: Option<u64>,
    /// Largest number of unpolled CQEs in any of the CQs that the slice wrote to. 0 while posted
    /// work is pending.
    pub untaken: u32,
}

/// The model of one device: registers, objects and pending work.
///
/// The files of this folder implement the device, but none of them reaches into a part: each part
/// has private fields, and its methods keep its invariants (see [`parts`]).
#[derive(Debug)]
pub struct Device {
    pub(crate) shared: Resources,
    pub(crate) qps: Slots<Qp>,
    pub(crate) addressing: Addressing,
    pub(crate) commands: Commands,
    pub(crate) areas: AreaLists,
    pub(crate) turns: Turns,
    pub(crate) rounds: FollowRounds,
    /// Packets to other destinations, which may be other devices of the process.
    crossing: CrossingPackets,
    pub(crate) egress: Egress,
    /// Sum of the counters that the daemon has asked for, while it is being computed.
    pub(crate) survey: Option<Survey>,
}

/// Destination addresses of the frames that the device accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Entries of the GID table that are set.
    pub gids: Vec<Gid>,
    /// Multicast groups that have members in this device.
    pub groups: Vec<[u8; 16]>,
}

impl Device {
    /// Creates a device in the state after power-on.
    pub fn new(config: Config, regs: Arc<Registers>) -> Self {
        let mut device = Self {
            shared: Resources::new(config, regs),
            qps: Slots::new(config::MAX_QP),
            addressing: Addressing::new(),
            commands: Commands::default(),
            areas: AreaLists::default(),
            turns: Turns::new(),
            rounds: FollowRounds::default(),
            crossing: CrossingPackets::default(),
            egress: Egress::default(),
            survey: None,
        };
        device.add_loss();
        device
    }

    /// Drops all objects and returns to the state after power-on. Guest memory is not touched,
    /// because its owner may have reused it.
    pub fn reset(&mut self) {
        self.shared.report(DeviceEvent::Called(Call::Reset));
        let regs = self.begin_anew();
        self.begin_requested_recording();
        regs.reset();
    }

    /// Returns the device to the state after power-on, except for the registers, which are
    /// returned.
    fn begin_anew(&mut self) -> Arc<Registers> {
        let regs = self.shared.regs().clone();
        // Each reset draws other lies. With the same ones a driver would stop at the same place for ever.
        #[cfg(feature = "hostile")]
        let hostile = self.shared.hostile.next_life();
        let mut faults = self.shared.faults.take();
        self.shared.report(DeviceEvent::Reset);
        let observers = self.shared.observers.take_lasting();
        *self = Self::new(self.shared.config().clone(), regs.clone());
        self.shared.observers.put_lasting(observers);
        faults.iter_mut().for_each(|faults| faults.reset());
        self.shared.faults = faults.filter(|faults| !faults.is_idle());
        #[cfg(feature = "hostile")]
        {
            self.shared.hostile = hostile;
        }
        regs
    }

    /// Attaches a tap to the port, which stays over resets. False if the port has a watched tap
    /// already, or if a full recording is on.
    pub fn attach_capture(&mut self, tap: CaptureTap) -> bool {
        let observers = &mut self.shared.observers;
        // A recording would contain the reads of the tap, and its replay would not make them.
        let free = !observers.capture().is_watched() && !observers.full_recording().is_on();
        if free {
            observers.capture_mut().attach(Box::new(tap));
        }
        free
    }

    /// Hands the tap, the rules and the recordings over to the device that takes the place of this
    /// one.
    pub fn hand_over_observers(&mut self, to: &mut Self) {
        let observers = self.shared.observers.take_lasting();
        to.shared.observers.put_lasting(observers);
        to.shared.faults = self.shared.faults.take();
        to.shared
            .set_drop_percent(self.shared.config().drop_percent);
    }

    /// Takes note that the doorbell of a command slot was rung.
    pub fn command(&mut self, slot: u32) {
        self.shared
            .report(DeviceEvent::Called(Call::RingCommand { slot }));
        self.commands.ring(slot);
    }

    /// Takes note of a write to the page of a doorbell area in the doorbell BAR.
    pub fn ring(&mut self, uar: u32) {
        self.shared
            .report(DeviceEvent::Called(Call::RingArea { uar }));
        if let Some(area) = self.shared.uars.get_mut(uar) {
            if !area.rung {
                area.rung = true;
                self.areas.ring(uar);
            }
        }
    }

    /// Counts writes to the doorbell BAR that were collapsed into one call of [`Device::ring`].
    pub fn count_doorbells(&mut self, more: u64) {
        self.shared
            .report(DeviceEvent::Called(Call::CountDoorbells { more }));
    }

    /// Returns the vectors to be raised since the last call, one bit for each vector.
    pub fn take_interrupts(&mut self) -> u32 {
        let vectors = self.shared.interrupts.take();
        if vectors != 0 {
            self.shared
                .report(DeviceEvent::Called(Call::TakeInterrupts { vectors }));
        }
        vectors
    }

    /// Takes the next frame for the uplink.
    pub fn next_frame(&mut self) -> Option<Rc<Vec<u8>>> {
        let frame = self.egress.pop();
        if let Some(frame) = &frame {
            self.shared
                .report(DeviceEvent::Called(Call::TakeFrame(frame)));
        }
        frame
    }

    /// Returns how many frames for the uplink were dropped for lack of room since the last call.
    pub fn take_frames_lost(&mut self) -> u64 {
        self.egress.take_lost()
    }

    /// Returns the addresses of the device if they have changed since the last call. After power-on
    /// the first call returns an empty set.
    pub fn take_addresses(&mut self) -> Option<Addresses> {
        self.addressing.take_change().then(|| Addresses {
            gids: self.shared.port.own(),
            groups: self.addressing.groups().all().copied().collect(),
        })
    }

    /// Puts the device in the fatal state until its reset, because the engine failed. The driver
    /// gets an event and an interrupt if the queues for them still work.
    pub fn fail<M: GuestMemory>(&mut self, mem: &M, cause: Syndrome) {
        self.shared.fatal(mem, cause);
    }
}
