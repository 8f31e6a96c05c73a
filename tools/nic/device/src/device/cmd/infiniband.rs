// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands of an InfiniBand port. The device answers those that read the port's configuration. The
//! agents of the port, which the daemon has, answer the others.

use super::*;
use crate::config::NUM_PORTS;
use crate::objects::infiniband::InfiniBandPort;

/// Flags of PROCESS_MAD, as `enum ib_mad_flags`: the agents ignore the M_Key, or the B_Key.
const IGNORE_M_KEY: u8 = 1;

/// Bits of the capability mask (`PortInfo:CapabilityMask`) that tell of software in the guest, so
/// that the driver may change them: IsSM, IsSNMPTunnelingSupported, IsDeviceManagementSupported and
/// IsVendorClassSupported.
pub const SOFTWARE_CAPABILITIES: u32 = 1 << 1 | 1 << 17 | 1 << 19 | 1 << 20;
/// IsCommunicationManagementSupported, which is always set.
const IS_CM_SUPPORTED: u32 = 1 << 16;

/// A management datagram.
pub type MadBytes = [u8; MAD_SIZE];

/// A request to the agents of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentRequest {
    /// Process a management datagram.
    Mad {
        /// The datagram.
        mad: Box<MadBytes>,
        /// True if the agents check the M_Key: the datagram came from the subnet, and the driver
        /// does not waive the check.
        checks_m_key: bool,
    },
    /// Set and clear bits of the capability mask.
    SetCapabilities {
        /// Bits to set.
        set: u32,
        /// Bits to clear.
        clear: u32,
    },
    /// Set the description of the node.
    SetDescription(Box<[u8; NODE_DESCRIPTION_SIZE]>),
}

/// The answer of the agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentReply {
    /// The change was made.
    Done,
    /// The change was refused.
    Refused,
    /// The datagram is not for the agents.
    NotForAgents,
    /// The datagram was processed and has no response.
    Consumed,
    /// The response to the datagram.
    Response(Box<MadBytes>),
}

/// A command that waits for the agents, and the place of the response.
#[derive(Debug)]
pub(crate) struct AgentCommand {
    request: AgentRequest,
    /// DMA address of the response.
    response: u64,
}

/// `enum ib_mad_result`.
mod mad_result {
    pub const SUCCESS: u32 = 1;
    pub const REPLY: u32 = 2;
    pub const CONSUMED: u32 = 4;
}

impl Running {
    /// Returns the request that waits for the agents.
    fn agent_request(&self) -> Option<&AgentRequest> {
        match &self.long {
            Long::Agent(command) => Some(&command.request),
            _ => None,
        }
    }
}

impl Device {
    /// Returns the InfiniBand port of this number.
    fn infiniband_port(&self, port: u8) -> Result<&InfiniBandPort, CmdError> {
        let unsupported = bad(CmdStatus::Unsupported, Syndrome::CmdOpcode);
        let found = self.shared.port.as_infiniband().ok_or(unsupported)?;
        match (1..=NUM_PORTS).contains(&port) {
            true => Ok(found),
            false => Err(NUMBER),
        }
    }

    pub(super) fn query_port(&self, request: &QueryPort) -> Result<PortAttr, CmdError> {
        Ok(self.infiniband_port(request.port)?.attributes)
    }

    pub(super) fn query_pkey(&self, request: &QueryPkey) -> Result<Pkey, CmdError> {
        let port = self.infiniband_port(request.port)?;
        let pkey = port.pkeys.get(usize::from(request.index.get()));
        Ok(Pkey {
            pkey: (*pkey.ok_or(NUMBER)?).into(),
            ..Default::default()
        })
    }

    pub(super) fn query_gid(&self, request: &QueryGid) -> Result<GidEntry, CmdError> {
        let port = self.infiniband_port(request.port)?;
        let gid = port.gids.get(usize::from(request.index.get()));
        Ok(GidEntry {
            gid: *gid.ok_or(NUMBER)?,
        })
    }

    pub(super) fn begin_modify_port(&mut self, request: &ModifyPort) -> Result<Step, CmdError> {
        self.infiniband_port(request.port)?;
        let (set, clear) = (
            request.set_port_cap_mask.get(),
            request.clr_port_cap_mask.get(),
        );
        // No flag of the mask is supported. The capabilities change without one.
        if request.mask.get() != 0
            || (set | clear) & !(SOFTWARE_CAPABILITIES | IS_CM_SUPPORTED) != 0
        {
            return Err(bad(CmdStatus::Unsupported, Syndrome::CmdAttribute));
        }
        if set & clear != 0 {
            return Err(ATTRIBUTE);
        }
        let (set, clear) = (set & SOFTWARE_CAPABILITIES, clear & SOFTWARE_CAPABILITIES);
        if set | clear == 0 {
            return Ok(Step::Done(reply_of(&Empty::default())));
        }
        Ok(ask_agents(AgentRequest::SetCapabilities { set, clear }, 0))
    }

    pub(super) fn begin_set_description(
        &mut self,
        request: &SetNodeDescription,
    ) -> Result<Step, CmdError> {
        self.infiniband_port(1)?;
        let description = Box::new(request.description);
        Ok(ask_agents(AgentRequest::SetDescription(description), 0))
    }

    pub(super) fn begin_process_mad<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ProcessMad,
    ) -> Result<Step, CmdError> {
        self.infiniband_port(request.port)?;
        let unreachable = bad(CmdStatus::BadAddress, Syndrome::CmdTranslation);
        let response = request.out_addr.get();
        if !mem.contains(response, MAD_SIZE as u64) {
            return Err(unreachable);
        }
        let mut mad = Box::new([0; MAD_SIZE]);
        mem.read(request.in_addr.get(), &mut mad[..])
            .map_err(|_| unreachable)?;
        let request = AgentRequest::Mad {
            mad,
            checks_m_key: request.flags & IGNORE_M_KEY == 0,
        };
        Ok(ask_agents(request, response))
    }

    /// Returns the request that waits for [`Device::end_agent_request`]. Later commands wait too, so
    /// the caller has to answer at once.
    pub fn next_agent_request(&self) -> Option<AgentRequest> {
        self.commands.running()?.agent_request().cloned()
    }

    /// Ends the command that waits for the agents of the port. Does nothing if there is none.
    pub fn end_agent_request<M: GuestMemory>(&mut self, mem: &M, reply: AgentReply) {
        let Some(Running { origin, long }) = self.commands.take_running() else {
            return;
        };
        let Long::Agent(command) = long else {
            self.commands.run(Running { origin, long });
            return;
        };
        let outcome = match self.shared.regs().is_fatal() {
            true => Err(bad(CmdStatus::Fatal, Syndrome::DeviceFatal)),
            false => agent_outcome(mem, &command, reply),
        };
        self.reply(mem, origin, outcome);
    }
}

fn ask_agents(request: AgentRequest, response: u64) -> Step {
    Step::Begun(Long::Agent(Box::new(AgentCommand { request, response })))
}

/// Returns the reply of a command that the agents have answered.
fn agent_outcome<M: GuestMemory>(
    mem: &M,
    command: &AgentCommand,
    reply: AgentReply,
) -> Result<Reply, CmdError> {
    let result = match reply {
        AgentReply::Done => return Ok(reply_of(&Empty::default())),
        AgentReply::Refused => return Err(bad(CmdStatus::Denied, Syndrome::SmiNotAllowed)),
        AgentReply::NotForAgents => mad_result::SUCCESS,
        AgentReply::Consumed => mad_result::SUCCESS | mad_result::CONSUMED,
        AgentReply::Response(mad) => {
            mem.write(command.response, &mad[..])
                .map_err(|_| bad(CmdStatus::BadAddress, Syndrome::CmdTranslation))?;
            mad_result::SUCCESS | mad_result::REPLY
        }
    };
    Ok(reply_of(&MadResult {
        result: result.into(),
        ..Default::default()
    }))
}
