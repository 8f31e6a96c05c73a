// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One VM as the engine sees it: its device, the messages and packets that wait for it, and the
//! time of its next slice. A failure of the VM (a panic, a reset, a stall, an uplink that accepts
//! none of its frames) stays in this module, and the engine goes on with the others.

use super::packet_inbox::PacketInbox;
use crate::flight_recording;
use crate::frame_address::PortLink;
use crate::inbox::PortChange;
use crate::network::{ForwardingCache, Network};
use crate::subnet::HandOver;
use crate::uplink_queues::UplinkQueues;
use crate::vm_device::VmDevice;
use crate::vm_state::VmState;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};
use verbena_abi::regs;
use verbena_abi::stats::NUM_COUNTERS;
use verbena_abi::syndrome::Syndrome;
use verbena_device::misbehave::Kind;
use verbena_device::{Action, Config, Crossing};

/// Largest number of frames that are handled before a slice.
pub(super) const MAX_FRAMES: usize = 64;
/// Largest number of those frames for which guest RAM is locked once: fewer than a slice copies. A
/// frame to a group, which is copied to each of its members, ends the portion.
const MAX_PORTION: usize = 16;

/// Number of copies for members of groups after which frames to groups wait for the next slice. The
/// last frame before that may exceed the number: a frame makes up to 256 copies.
pub(super) const MAX_GROUP_COPIES: u32 = 512;

/// Takes the next frames from `next` and `frames`, as many as may be handled under one lock of
/// guest RAM. After that, `next` is the first frame that is left.
pub(super) fn portion<'a, 'b, I: Iterator<Item = &'a [u8]>>(
    link: PortLink,
    next: &'b mut Option<&'a [u8]>,
    frames: &'b mut I,
) -> impl Iterator<Item = &'a [u8]> + use<'a, 'b, I> {
    let mut is_over = false;
    let portion = std::iter::from_fn(move || {
        let frame = (!is_over).then(|| std::mem::replace(next, frames.next()))?;
        is_over = frame.is_some_and(|frame| link.is_to_group(frame));
        frame
    });
    portion.take(MAX_PORTION)
}

/// Shortest time between two recordings that are saved automatically, in nanoseconds.
const MIN_SAVE_INTERVAL_NS: u64 = 1_000_000_000;

/// One VM with its device. See the [module](self).
pub(super) struct Vm {
    /// Number of the VM in the switch.
    number: u8,
    pub(super) shared: Arc<VmState>,
    pub(super) device: VmDevice,
    pub(super) network: Arc<Network>,
    pub(super) uplink_queues: UplinkQueues,
    /// Packets for the devices of other VMs, each with the number of its VM.
    pub(super) outgoing: Vec<(u8, Crossing)>,
    /// Packets from the devices of other VMs.
    pub(super) packet_inbox: PacketInbox,
    /// Number of resets and failures of the device: packets that it sent before the last are lost.
    pub(super) generation: u64,
    /// Copies that frames have made for members of groups since the last slice.
    pub(super) copies: u32,
    /// Time of the last work, and time at which the device wants its next slice, in nanoseconds.
    pub(super) last_work_ns: u64,
    pub(super) deadline_ns: Option<u64>,
    /// Completions that a program has yet to take, if all posted work requests are done.
    pub(super) untaken: u32,
    /// True if the guest knows that it has to ring doorbells for posts, and the device gets no
    /// slices.
    pub(super) is_asleep: bool,
    /// Time at which a stall began that the NIC does as a misbehaviour.
    stalled_since: Option<Instant>,
    /// True if the recording of this failure of the device is saved; and the time of the last save.
    is_saved: bool,
    last_save_ns: Option<u64>,
    /// Sender for the answer to the client that asked for the counters, which are added up in
    /// portions.
    pub(super) stats_requester: Option<mpsc::Sender<[u64; NUM_COUNTERS]>>,
}

impl Vm {
    /// Returns a VM of this number, with a device as after power-on.
    pub(super) fn new(
        number: u8,
        shared: Arc<VmState>,
        config: Config,
        network: Arc<Network>,
    ) -> Self {
        let mut vm = Self {
            number,
            device: VmDevice::new(
                shared.clone(),
                Config {
                    asks_for_gids: true,
                    ..config
                },
            ),
            shared,
            network,
            uplink_queues: UplinkQueues::default(),
            outgoing: Vec::new(),
            packet_inbox: PacketInbox::default(),
            generation: 0,
            copies: 0,
            last_work_ns: 0,
            deadline_ns: None,
            untaken: 0,
            is_asleep: false,
            stalled_since: None,
            is_saved: false,
            last_save_ns: None,
            stats_requester: None,
        };
        vm.configure_port();
        vm
    }

    fn now(&self) -> u64 {
        self.shared.now()
    }

    /// Takes the VM's turn: handles its mail, then gives the device a slice. Returns true if there
    /// was any work.
    pub(super) fn turn(&mut self) -> bool {
        if self.apply_misbehaviour() {
            return false;
        }
        let slice_requested = self.shared.take_slice_request();
        let worked = self.take_mail() | slice_requested;
        let is_wanted = worked || !self.is_asleep || self.uplink_queues.has_frames();
        if !is_wanted && !self.is_due(self.now()) {
            return false;
        }
        self.slice() || worked
    }

    /// Ends a turn: notes the time of work, or has the device fall asleep after a silence of
    /// `awake_ns` nanoseconds.
    pub(super) fn end_turn(&mut self, worked: bool, now: u64, awake_ns: u64) {
        if worked {
            self.last_work_ns = now;
            self.is_asleep = false;
        } else if !self.is_asleep
            && now.saturating_sub(self.last_work_ns) >= awake_ns
            && !self.is_due(now)
            && !self.uplink_queues.has_frames()
            && self.stalled_since.is_none()
        {
            if self.fall_asleep() {
                self.is_asleep = true;
                self.shared.counts.sleeps.fetch_add(1, Ordering::Relaxed);
            } else {
                // The device found work while falling asleep.
                self.last_work_ns = now;
            }
        }
    }

    fn is_due(&self, now: u64) -> bool {
        self.deadline_ns.is_some_and(|due| due <= now)
    }

    /// True if there is mail or a packet for the VM, and the VM is not stalled.
    pub(super) fn has_messages(&self) -> bool {
        self.stalled_since.is_none()
            && (self.shared.has_messages() || !self.packet_inbox.is_empty())
    }

    /// True if the device is stalled as a misbehaviour.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_since.is_some()
    }

    /// Gives up the device after a panic of the engine, which may have left it in any state.
    #[cold]
    pub(super) fn start_over(&mut self) {
        log::error!("the engine has panicked: the device is dead until its driver resets it");
        self.device.abandon();
        (self.deadline_ns, self.is_asleep) = (None, false);
        self.drop_packets();
        // The engine may have been doing a reset.
        let lost = self.shared.start_over();
        self.shared.regs.set_fatal(Syndrome::EngineFailure);
        if lost {
            self.reset();
        }
        self.save_recording();
        self.device.slice().raise_failure_interrupt();
    }

    /// Saves the recording of a device that has failed, once for each failure.
    #[cold]
    fn save_recording(&mut self) {
        if std::mem::replace(&mut self.is_saved, true) {
            return;
        }
        // A guest whose device fails again and again causes at most one recording a second.
        let now = self.now();
        if self
            .last_save_ns
            .is_some_and(|last| now.saturating_sub(last) < MIN_SAVE_INTERVAL_NS)
        {
            return;
        }
        self.last_save_ns = Some(now);
        if let Some(recorded) = self.device.flight_recording(0, usize::MAX) {
            let cause = self.shared.regs.read(regs::FATAL_SYNDROME);
            let cause = u16::try_from(cause).ok().and_then(Syndrome::from_raw);
            let reason = cause.map_or("?", Syndrome::name);
            let reason = format!("the device died: {reason}");
            flight_recording::save(recorded, &self.shared, self.device.mac(), &reason);
        }
    }

    /// Ends the pause after the last recording that was saved.
    #[cfg(test)]
    pub(super) fn end_save_interval(&mut self) {
        self.last_save_ns = None;
    }

    /// Stalls or panics, if the NIC is to misbehave in this way. Returns true if the VM is stalled.
    #[inline]
    fn apply_misbehaviour(&mut self) -> bool {
        let misbehave = &self.shared.misbehave;
        if misbehave.take(Kind::EngineDies) != 0 {
            std::panic::resume_unwind(Box::new("the engine panics as a misbehaviour"));
        }
        (self.stalled_since.is_some() || misbehave.is(Kind::Stall)) && self.continue_stall()
    }

    /// Ignores everything until the time is over or the stall is cancelled. After that the device
    /// continues its DMA before it handles its mail, unless the gate was closed.
    #[cold]
    fn continue_stall(&mut self) -> bool {
        let since = *self.stalled_since.get_or_insert_with(Instant::now);
        let time = Duration::from_millis(self.shared.misbehave.get(Kind::Stall).into());
        if since.elapsed() < time {
            return true;
        }
        self.stalled_since = None;
        self.shared.misbehave.set(Kind::Stall, 0);
        self.slice();
        false
    }

    /// Handles a bounded part of the mail. Returns true if there was any.
    pub(super) fn take_mail(&mut self) -> bool {
        let mail = self
            .shared
            .take_mail(MAX_FRAMES, self.stats_requester.is_none());
        let mut worked = !mail.actions.is_empty() || !mail.frames.is_empty();
        if let Some(change) = mail.port_change {
            self.change_port(change);
            worked = true;
        }
        for action in mail.actions {
            if action == Action::Reset {
                self.reset();
                log::debug!("the device has been reset");
                continue;
            }
            let mut slice = self.device.slice();
            match action {
                // A reset voids the commands before it.
                _ if self.shared.is_resetting() => {}
                Action::EnableCmdq => {
                    slice.call(|device, ram| device.enable_cmdq(ram));
                }
                Action::Command(slot) => {
                    slice.call(|device, _| device.command(slot));
                }
                Action::None | Action::Reset => {}
            }
        }
        self.receive(mail.frames.iter().map(Vec::as_slice));
        worked |= self.handle_request(mail.request);
        let mut rung = Vec::new();
        let writes = self.shared.take_doorbells(|uar| rung.push(uar));
        if !rung.is_empty() {
            self.device.slice().call(|device, _| {
                rung.iter().for_each(|&uar| device.ring(uar));
                // `ring` has counted one write for each area.
                device.count_doorbells(writes.saturating_sub(rung.len() as u64));
            });
            worked = true;
        }
        worked
    }

    fn reset(&mut self) {
        if self.shared.regs.is_fatal() {
            self.save_recording();
        }
        self.device.reset();
        self.is_saved = false;
        self.deadline_ns = None;
        self.drop_packets();
        self.update_switch_addresses();
        self.network.reset_infiniband_port(self.number);
        self.configure_port();
        self.shared.refusals.clear();
        self.shared.end_reset();
    }

    /// Gives the device the configuration of its InfiniBand port, if it has one.
    fn configure_port(&mut self) {
        if let Some(port) = self.network.infiniband_port(self.number) {
            let mut slice = self.device.slice();
            slice.call(|device, _| device.configure_port(port));
        }
    }

    /// Gives the device the changed configuration of its port, and reports the events.
    fn change_port(&mut self, PortChange { port, events }: PortChange) {
        let mut slice = self.device.slice();
        slice.call(|device, _| device.configure_port(port));
        if slice.is_gate_open() {
            slice.call(|device, ram| device.report_port_events(ram, &events));
            slice.raise_wanted();
        }
    }

    /// Drops all packets from the device and to it, and counts another `generation`.
    fn drop_packets(&mut self) {
        self.generation += 1;
        self.uplink_queues.clear();
        self.outgoing.clear();
        self.packet_inbox.clear();
    }

    /// Gives the switch the device's addresses, if they have changed.
    fn update_switch_addresses(&mut self) {
        let addresses = self
            .device
            .slice()
            .call(|device, _| device.take_addresses());
        if let Some(Some(addresses)) = addresses {
            self.network.set_addresses(self.number, &addresses);
        }
    }

    /// Gives the device frames from an uplink.
    pub(super) fn receive_from_uplink<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a [u8]>,
        now: u64,
    ) {
        if self.is_stalled() {
            // The device gets the frames when the stall is over.
            let link = self.network.port_link();
            frames.for_each(|frame| self.shared.post_of(link, frame.to_vec()));
            return;
        }
        self.receive(frames);
        (self.last_work_ns, self.is_asleep) = (now, false);
    }

    /// Has the device take frames, in portions for which a slice has time: so the map can change
    /// between two portions. Frames to groups wait for the next turn once frames have made
    /// [`MAX_GROUP_COPIES`] copies, so that other VMs get their turns first.
    fn receive<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        let (shared, copies) = (&self.shared, Cell::new(self.copies));
        let link = self.network.port_link();
        let mut frames = frames.filter(|frame| {
            let waits = copies.get() >= MAX_GROUP_COPIES && link.is_to_group(frame);
            if waits {
                shared.post_of(link, frame.to_vec());
            }
            !waits
        });
        let mut next = frames.next();
        while next.is_some() {
            let now = shared.now();
            let mut slice = self.device.slice();
            if !slice.is_gate_open() {
                break;
            }
            let frames = portion(link, &mut next, &mut frames);
            let made = slice.call(|device, ram| device.receive_frames(ram, frames, now));
            let Some(made) = made else {
                break;
            };
            copies.set(copies.get().saturating_add(made));
        }
        self.copies = copies.get();
    }

    /// Gives the device one slice. Returns true if it did any work.
    fn slice(&mut self) -> bool {
        self.copies = 0;
        let now = self.now();
        self.uplink_queues.flush(&self.network, now);
        let mut slice = self.device.slice();
        if !slice.is_gate_open() {
            (self.deadline_ns, self.untaken) = (None, 0);
            return false;
        }
        let (vm, network) = (self.number, &self.network);
        let next = slice.call(|device, ram| {
            let next = device.run_slice(ram, now);
            if let Some(request) = device.next_agent_request() {
                let reply = network.answer_for_agents(vm, &request);
                device.end_agent_request(ram, reply);
            }
            if let Some(entry) = device.next_claim() {
                device.decide_claim(ram, network.claim(vm, &entry).err());
            }
            next
        });
        let next = next.unwrap_or_default();
        let interrupts = slice.raise_wanted();
        let uplink_queues = &mut self.uplink_queues;
        let outgoing = &mut self.outgoing;
        let counters = &self.shared.process.counters;
        slice.call(|device, ram| {
            if let Some(addresses) = device.take_addresses() {
                network.set_addresses(vm, &addresses);
            }
            for violations in device.take_key_violations() {
                network.report_key_violations(vm, &violations);
            }
            while let Some(packet) = device.next_crossing() {
                match network.hand_over(vm, &packet) {
                    HandOver::Device(to) => {
                        device.show_crossing(ram, &packet);
                        outgoing.push((to, packet));
                    }
                    HandOver::Frames => device.make_frames(ram, packet),
                    HandOver::Lost => device.show_crossing(ram, &packet),
                }
            }
            if !uplink_queues.has_frames() {
                let mut cache = ForwardingCache::default();
                while let Some(frame) = device.next_frame() {
                    if network.has_subnet() {
                        for (wire, frame) in network.from_infiniband_port(vm, &frame) {
                            uplink_queues.add_to(wire, Rc::new(frame));
                        }
                        continue;
                    }
                    let to = network.from_engine(vm, &frame, &mut cache);
                    uplink_queues.add(to, &frame);
                }
            }
            let lost = device.take_frames_lost();
            if lost > 0 {
                counters.uplink_dropped.fetch_add(lost, Ordering::Relaxed);
            }
        });
        drop(slice);
        self.uplink_queues.flush(&self.network, now);
        if self.shared.regs.is_fatal() {
            self.save_recording();
        }
        self.shared.counts.slices.fetch_add(1, Ordering::Relaxed);
        self.deadline_ns = next.deadline;
        self.untaken = next.untaken;
        next.busy || interrupts
    }

    /// Marks the device asleep, so that the guest rings doorbells for posts. Returns false if the
    /// device found a post meanwhile.
    fn fall_asleep(&mut self) -> bool {
        let mut slice = self.device.slice();
        // Without DMA there are no posts.
        !slice.is_gate_open()
            || slice
                .call(|device, ram| device.fall_asleep(ram))
                .unwrap_or(true)
    }
}
