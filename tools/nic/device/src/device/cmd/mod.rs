// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command queue: takes a request from its slot, executes the command, writes the reply.
//!
//! A command is validated in full before it changes anything. A command that fails has changed
//! nothing.

mod cq;
mod eq;
mod fault;
pub(crate) mod infiniband;
pub(crate) mod long;
mod mcast;
mod misc;
mod mr;
mod qp;
pub(crate) mod qp_attr;
mod srq;

use crate::device::sched::SLICE_COMMANDS;
use crate::device::Device;
use crate::error::{bad, CmdError, ATTRIBUTE, BUSY, IN_USE, NO_OBJECT, NUMBER, SIZE};
use crate::memory::GuestMemory;
use crate::observation::event::DeviceEvent;
pub(crate) use long::{Long, Running};
use verbena_abi::cmd::*;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Payload of a reply, with zeros after its value.
type Reply = [u8; PAYLOAD_SIZE];

/// Returns the payload of a reply with this value.
fn reply_of<T: IntoBytes + Immutable>(value: &T) -> Reply {
    let mut reply = [0; PAYLOAD_SIZE];
    let bytes = value.as_bytes();
    reply[..bytes.len()].copy_from_slice(bytes);
    reply
}

/// Slot and identity of a command.
#[derive(Clone, Copy, Debug)]
struct CommandOrigin {
    /// DMA address of the command's slot.
    at: u64,
    token: u32,
    opcode: u16,
}

/// Progress of a command after its first call.
enum Step {
    /// The command is done and has this reply.
    Done(Reply),
    /// The command takes more than one slice.
    Begun(Long),
}

impl Device {
    /// Handles a write to CMDQ_ENABLE: checks the version and the command queue that the driver has
    /// set up. Sets READY, or the fatal state with the syndrome of the mistake.
    pub fn enable_cmdq<M: GuestMemory>(&mut self, mem: &M) {
        let regs = self.shared.regs();
        let ((base, slots), spoken) = (regs.cmdq(), regs.version_ok());
        match self.is_recorded() {
            true => self.enable_cmdq_recorded(mem, (spoken, base, slots)),
            false => self.enable_cmdq_as(mem, spoken, base, slots),
        }
    }

    /// As [`Device::enable_cmdq`], with the values that the registers had. `spoken` is true if the
    /// device speaks the driver's version.
    pub(super) fn enable_cmdq_as<M: GuestMemory>(
        &mut self,
        mem: &M,
        spoken: bool,
        base: u64,
        slots: u32,
    ) {
        let regs = self.shared.regs();
        if regs.is_fatal() || self.commands.is_enabled() {
            return;
        }
        if !spoken {
            regs.set_fatal(Syndrome::CmdVersion);
        } else if !(1..=CMDQ_LIMIT).contains(&slots)
            || base % 4096 != 0
            || !mem.contains(base, u64::from(slots) * SLOT_SIZE as u64)
        {
            regs.set_fatal(Syndrome::CmdQueueUnreachable);
        } else {
            self.commands.enable(base, slots);
            regs.set_ready();
        }
    }

    /// Executes commands within the limit of a slice. True if there were any.
    pub(crate) fn run_commands<M: GuestMemory>(&mut self, mem: &M) -> bool {
        let mut spent = 0;
        let mut worked = false;
        while spent < SLICE_COMMANDS {
            if let Some(mut running) = self.commands.take_running() {
                worked = true;
                spent += SLICE_COMMANDS;
                match self.go_on(mem, &mut running.long).transpose() {
                    Some(outcome) => self.reply(mem, running.origin, outcome),
                    None => self.commands.run(running),
                }
                continue;
            }
            let Some(slot) = self.commands.next_rung() else {
                break;
            };
            worked = true;
            if !self.withholds(mem, slot) {
                spent += self.execute(mem, slot);
            }
        }
        worked
    }

    /// Executes the request of a slot, or begins to. Returns the part of [`SLICE_COMMANDS`] that
    /// this took.
    pub(crate) fn execute<M: GuestMemory>(&mut self, mem: &M, slot: u32) -> u32 {
        let Some(at) = self.commands.address(slot) else {
            return 1;
        };
        let mut request = [0; REQUEST_SIZE];
        if mem.read(at, &mut request).is_err() {
            self.shared.fatal(mem, Syndrome::CmdQueueUnreachable);
            return 1;
        }
        let Ok((header, payload)) = RequestHeader::read_from_prefix(&request) else {
            return 1;
        };
        let token = header.token.get();
        if !self.commands.accept(slot, token) {
            return 1;
        }
        self.shared.report(DeviceEvent::CommandAccepted);
        let opcode = header.opcode.get();
        let origin = CommandOrigin { at, token, opcode };
        let opcode = Opcode::from_raw(opcode);
        let outcome = if self.shared.regs().is_fatal() {
            Err(bad(CmdStatus::Fatal, Syndrome::DeviceFatal))
        } else if self.refuses(origin.opcode) {
            Err(bad(CmdStatus::NoResources, Syndrome::CmdNumber))
        } else if let Some(fault) = self.fault_of_command(mem, origin.opcode) {
            Err(fault)
        } else {
            opcode
                .ok_or(bad(CmdStatus::Unsupported, Syndrome::CmdOpcode))
                .and_then(|opcode| self.dispatch(mem, opcode, payload))
        };
        match outcome {
            Ok(Step::Done(reply)) => self.reply(mem, origin, Ok(reply)),
            Ok(Step::Begun(long)) => self.commands.run(Running { origin, long }),
            Err(e) => self.reply(mem, origin, Err(e)),
        }
        match opcode {
            // Such a command may look up thousands of page addresses.
            Some(
                Opcode::CreateEq
                | Opcode::CreateCq
                | Opcode::ResizeCq
                | Opcode::CreateSrq
                | Opcode::ResizeSrq
                | Opcode::CreateQp,
            ) => SLICE_COMMANDS,
            // The turn of the QP has used up this slice.
            _ if self.commands.running().is_some_and(Running::stops) => SLICE_COMMANDS,
            _ => 1,
        }
    }

    /// Writes the reply of a command and raises its interrupt.
    fn reply<M: GuestMemory>(
        &mut self,
        mem: &M,
        origin: CommandOrigin,
        outcome: Result<Reply, CmdError>,
    ) {
        #[cfg(feature = "hostile")]
        let outcome = self.shared.hostile.outcome(outcome);
        if self.mutes(origin.opcode) {
            return;
        }
        let (status, syndrome, reply) = match outcome {
            Ok(reply) => (CmdStatus::Ok, 0, reply),
            Err(e) => (e.status, e.syndrome.to_raw().into(), [0; PAYLOAD_SIZE]),
        };
        self.shared.report(DeviceEvent::CommandDone {
            opcode: origin.opcode,
            status,
            syndrome,
        });
        let answer = ReplyHeader {
            status: status.to_raw().into(),
            syndrome: syndrome.into(),
            ..Default::default()
        };
        let to = origin.at + REQUEST_SIZE as u64;
        let token = to + std::mem::offset_of!(ReplyHeader, token) as u64;
        let written = mem
            .write(to + HEADER_SIZE as u64, &reply)
            .and_then(|()| mem.write(to, &answer.as_bytes()[..HEADER_SIZE - 4]))
            .and_then(|()| mem.store32(token, origin.token.to_le()));
        if written.is_err() {
            self.shared.fatal(mem, Syndrome::CmdQueueUnreachable);
        }
        // Events that the command caused are reported before the interrupt of the command lets the
        // driver go on.
        self.follow_deaths(mem);
        self.shared.flush_events(mem);
        self.shared.interrupt(0);
        self.shared.regs().beat();
    }

    /// Returns the opcode in a slot, or 0 if there is no such slot. No command has opcode 0.
    pub(crate) fn opcode<M: GuestMemory>(&self, mem: &M, slot: u32) -> u16 {
        let header: Option<RequestHeader> = self.in_slot(mem, slot, 0);
        header.map_or(0, |h| h.opcode.get())
    }

    /// Reads a value at an offset of a slot, if there is such a slot: its header or its request.
    pub(crate) fn in_slot<T, M>(&self, mem: &M, slot: u32, offset: usize) -> Option<T>
    where
        T: FromBytes + IntoBytes,
        M: GuestMemory,
    {
        let at = self.commands.address(slot)?;
        mem.read_struct(at + offset as u64).ok()
    }

    fn dispatch<M: GuestMemory>(
        &mut self,
        mem: &M,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<Step, CmdError> {
        match opcode {
            Opcode::QueryDevice => {
                let caps = crate::config::caps(self.shared.config());
                Ok(Step::Done(reply_of(&caps)))
            }
            Opcode::SetTableChunk => run(payload, |r| self.shared.tables.set_chunk(mem, r)),
            Opcode::QueryStats => begin(payload, |r| self.query_stats(mem, r)),
            Opcode::SetGid => begin(payload, |r| self.begin_set_gid(r)),
            Opcode::SetPort => run(payload, |r| self.set_port(r)),
            Opcode::CreateUar => run(payload, |r| self.create_uar(mem, r)),
            Opcode::DestroyUar => run(payload, |r| self.destroy_uar(mem, r)),
            Opcode::CreateEq => run(payload, |r| self.create_eq(mem, r)),
            Opcode::DestroyEq => run(payload, |r| self.destroy_eq(mem, r)),
            Opcode::CreateMr => run(payload, |r| self.create_mr(mem, r)),
            Opcode::DestroyMr => run(payload, |r| self.destroy_mr(mem, r)),
            Opcode::ModifyMr => run(payload, |r| self.modify_mr(mem, r)),
            Opcode::CreateCq => run(payload, |r| self.create_cq(mem, r)),
            Opcode::DestroyCq => run(payload, |r| self.destroy_cq(mem, r)),
            Opcode::ModifyCq => run(payload, |r| self.modify_cq(mem, r)),
            Opcode::QueryCq => run(payload, |r| self.query_cq(mem, r)),
            Opcode::ResizeCq => begin(payload, |r| self.resize_cq(mem, r)),
            Opcode::CreateSrq => run(payload, |r| self.create_srq(mem, r)),
            Opcode::DestroySrq => run(payload, |r| self.destroy_srq(mem, r)),
            Opcode::ModifySrq => run(payload, |r| self.modify_srq(mem, r)),
            Opcode::QuerySrq => run(payload, |r| self.query_srq(mem, r)),
            Opcode::ResizeSrq => run(payload, |r| self.resize_srq(mem, r)),
            Opcode::CreateQp => run(payload, |r| self.create_qp(mem, r)),
            Opcode::DestroyQp => run(payload, |r| self.destroy_qp(mem, r)),
            Opcode::ModifyQp => begin(payload, |r| self.begin_modify_qp(mem, r)),
            Opcode::QueryQp => run(payload, |r| self.query_qp(mem, r)),
            Opcode::InjectFault => run(payload, |r| self.inject_fault(mem, r)),
            Opcode::AttachMcast => run(payload, |r| self.attach_mcast(r)),
            Opcode::DetachMcast => run(payload, |r| self.detach_mcast(r)),
            Opcode::QueryPort => run(payload, |r| self.query_port(r)),
            Opcode::QueryPkey => run(payload, |r| self.query_pkey(r)),
            Opcode::QueryGid => run(payload, |r| self.query_gid(r)),
            Opcode::ModifyPort => begin(payload, |r| self.begin_modify_port(r)),
            Opcode::SetNodeDescription => begin(payload, |r| self.begin_set_description(r)),
            Opcode::ProcessMad => begin(payload, |r| self.begin_process_mad(mem, r)),
            // No feature of this device announces these commands.
            Opcode::ResumePageFault | Opcode::AllocDm | Opcode::FreeDm => {
                Err(bad(CmdStatus::Unsupported, Syndrome::CmdOpcode))
            }
        }
    }

    /// Returns the producer indexes up to which the driver has to drain its event queues.
    pub(crate) fn quiesced(&self, comp_eqn: Option<u32>) -> Quiesced {
        Quiesced {
            async_pi: self.shared.producer_of(ASYNC_EQN).into(),
            comp_pi: comp_eqn
                .map_or(0, |eqn| self.shared.producer_of(eqn))
                .into(),
            ..Default::default()
        }
    }
}

/// Most command slots that a driver can set up.
const CMDQ_LIMIT: u32 = verbena_abi::regs::CMDQ_MAX_SLOTS;

/// Runs a command that ends at once.
fn run<C: Command, R: Into<Answer<C>>>(
    payload: &[u8],
    execute: impl FnOnce(&C) -> Result<R, CmdError>,
) -> Result<Step, CmdError> {
    begin(payload, |request| {
        execute(request).map(|reply| Step::Done(reply_of(&reply.into().0)))
    })
}

/// Runs a command that may take several slices.
fn begin<C: Command>(
    payload: &[u8],
    execute: impl FnOnce(&C) -> Result<Step, CmdError>,
) -> Result<Step, CmdError> {
    let request = C::read_from_prefix(payload).map_err(|_| SIZE)?.0;
    execute(&request)
}

/// Reply of the type that the command has. `()` stands for an empty reply.
struct Answer<C: Command>(C::Reply);

impl<C: Command<Reply = Empty>> From<()> for Answer<C> {
    fn from((): ()) -> Self {
        Self(Empty::default())
    }
}

impl<C: Command<Reply = PortAttr>> From<PortAttr> for Answer<C> {
    fn from(reply: PortAttr) -> Self {
        Self(reply)
    }
}

impl<C: Command<Reply = Pkey>> From<Pkey> for Answer<C> {
    fn from(reply: Pkey) -> Self {
        Self(reply)
    }
}

impl<C: Command<Reply = GidEntry>> From<GidEntry> for Answer<C> {
    fn from(reply: GidEntry) -> Self {
        Self(reply)
    }
}

impl<C: Command<Reply = QueriedQp>> From<QueriedQp> for Answer<C> {
    fn from(reply: QueriedQp) -> Self {
        Self(reply)
    }
}

impl<C: Command<Reply = Quiesced>> From<Quiesced> for Answer<C> {
    fn from(reply: Quiesced) -> Self {
        Self(reply)
    }
}
