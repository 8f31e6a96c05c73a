// SPDX-License-Identifier: GPL-2.0

//! The port of a device with InfiniBand ports. The device keeps the port's state, which a subnet
//! manager sets by management datagrams, and the driver asks for it by commands.

use super::{
    Verbena,
    VerbsDevice, //
};
use crate::{
    abi::{
        cmd::{
            ModifyPort,
            PortAttr as DevicePortAttr,
            ProcessMad,
            QueryGid,
            QueryPkey,
            QueryPort,
            SetNodeDescription, //
        },
        Le16,
        Le32,
        Le64, //
    },
    cmdq::{
        lent::{
            Borrowed,
            Lent, //
        },
        Lender, //
    }, //
};
use base::{
    dma::{
        Chunk,
        Payer, //
    },
    errno::eopnotsupp, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rdma::{
    attr::PortAttr,
    device::Device,
    enums::{
        Mtu,
        PhysState,
        PortCaps,
        PortSpeed,
        PortState,
        PortWidth, //
    },
    infiniband::{
        self,
        MadOutcome,
        MadRequest,
        PortChange,
        GRH_SIZE,
        MAD_SIZE,
        NODE_DESCRIPTION_SIZE, //
    },
};

/// The only port of the device.
const PORT: u8 = 1;

/// Limit of entries of the GID table. An address vector names its entry in 8 bits
/// (`ib_global_route.sgid_index`).
const MAX_GIDS: u32 = 1 << u8::BITS;

/// Limit of P_Keys. The core reads all of them whenever the table changes.
const MAX_PKEYS: u16 = 128;

/// Capabilities that consumers may set and clear (IBTA 11.2.2.3).
const MODIFIABLE: PortCaps = PortCaps::SM
    .union(PortCaps::CM)
    .union(PortCaps::SNMP_TUNNEL)
    .union(PortCaps::DEVICE_MGMT)
    .union(PortCaps::VENDOR_CLASS)
    .union(PortCaps::CLIENT_REG);

/// Offsets in the memory of a management datagram: the request, the response, and the GRH of the
/// request.
const REQUEST_AT: usize = 0;
const RESPONSE_AT: usize = MAD_SIZE;
const GRH_AT: usize = 2 * MAD_SIZE;

/// Results of PROCESS_MAD, with the bits of `enum ib_mad_result`.
const RESULT_SUCCESS: u32 = 1 << 0;
const RESULT_REPLY: u32 = 1 << 1;
const RESULT_CONSUMED: u32 = 1 << 2;

/// State of the port that the driver keeps.
#[pin_data]
pub(crate) struct InfinibandPort {
    /// Lengths of the tables when the life began. The core has allocated its own tables with these,
    /// so later answers of the device do not change them.
    gids: u16,
    pkeys: u16,
    #[pin]
    description: Mutex<[u8; NODE_DESCRIPTION_SIZE]>,
}

impl InfinibandPort {
    /// Queries the port, and sets the description of the node. Without `description`, the node keeps
    /// the one that it has.
    pub(crate) fn new(
        vdev: &VerbsDevice,
        description: Option<[u8; NODE_DESCRIPTION_SIZE]>,
    ) -> Result<Arc<Self>> {
        let attr = query(vdev)?;
        // CAST: The number is at most 256.
        let gids = attr.gid_tbl_len.get().min(MAX_GIDS) as u16;
        let pkeys = attr.pkey_tbl_len.get().min(MAX_PKEYS);
        if gids == 0 || pkeys == 0 {
            dev_err!(
                vdev.pdev,
                "the device announces a port without a GID or without a P_Key\n"
            );
            return Err(ENODEV);
        }
        let description = match description {
            Some(description) => {
                vdev.cmdq.exec(&SetNodeDescription { description })?;
                description
            }
            None => query_description(vdev)?,
        };
        Arc::pin_init(
            pin_init!(Self {
                gids,
                pkeys,
                description <- new_mutex!(description),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the lengths of the GID table and of the P_Key table.
    pub(super) fn table_lengths(&self) -> (u16, u16) {
        (self.gids, self.pkeys)
    }

    /// Returns the description of the node.
    pub(crate) fn description(&self) -> [u8; NODE_DESCRIPTION_SIZE] {
        *self.description.lock()
    }

    /// Fills in the attributes of the port. The port of a dead device is down.
    pub(super) fn query(&self, vdev: &VerbsDevice, attr: &mut PortAttr) -> Result {
        let from = query(vdev).or_else(|e| {
            if vdev.health.is_dead() {
                Ok(down())
            } else {
                Err(e)
            }
        })?;
        fill(attr, &from);
        attr.set_gid_tbl_len(self.gids).set_pkey_tbl_len(self.pkeys);
        Ok(())
    }

    /// Returns the P_Key at `index`, or 0 if the entry is not valid.
    pub(super) fn query_pkey(&self, vdev: &VerbsDevice, index: u16) -> Result<u16> {
        if index >= self.pkeys {
            return Err(EINVAL);
        }
        let entry = vdev.cmdq.exec(&QueryPkey {
            port: PORT,
            index: Le16::new(index),
            ..Default::default()
        })?;
        Ok(entry.pkey.get())
    }

    fn query_gid(&self, vdev: &VerbsDevice, index: u16) -> Result<[u8; 16]> {
        if index >= self.gids {
            return Err(EINVAL);
        }
        let entry = vdev.cmdq.exec(&QueryGid {
            port: PORT,
            index: Le16::new(index),
            ..Default::default()
        })?;
        Ok(entry.gid)
    }

    fn set_description(
        &self,
        vdev: &VerbsDevice,
        description: &[u8; NODE_DESCRIPTION_SIZE],
    ) -> Result {
        // The lock is held during the command, so that the last command sets what is kept here.
        let mut kept = self.description.lock();
        vdev.cmdq.exec(&SetNodeDescription {
            description: *description,
        })?;
        *kept = *description;
        Ok(())
    }
}

/// Asks the agents of the port for the description of the node.
fn query_description(vdev: &VerbsDevice) -> Result<[u8; NODE_DESCRIPTION_SIZE]> {
    let request = MadRequest::for_node_description(PORT.into());
    let mut response = [0; MAD_SIZE];
    match process_mad(vdev, &request, &mut response)? {
        MadOutcome::Reply => Ok(infiniband::node_description_in(&response)),
        MadOutcome::Consumed | MadOutcome::NotMine => Err(EIO),
    }
}

/// Queries the attributes of the port.
fn query(vdev: &VerbsDevice) -> Result<DevicePortAttr> {
    Ok(vdev.cmdq.exec(&QueryPort {
        port: PORT,
        ..Default::default()
    })?)
}

/// Returns the attributes of a port that is down.
fn down() -> DevicePortAttr {
    // CAST: The enumerations are small.
    DevicePortAttr {
        state: PortState::Down.as_raw() as u8,
        phys_state: PhysState::Disabled.as_raw() as u8,
        max_mtu: Mtu::Mtu4096.as_raw() as u8,
        active_mtu: Mtu::Mtu4096.as_raw() as u8,
        active_width: PortWidth::X4.as_raw() as u8,
        active_speed: Le16::new(PortSpeed::Sdr.as_raw() as u16),
        ..Default::default()
    }
}

/// Converts the attributes of the port. Values that the verbs do not know become the least ones.
fn fill(attr: &mut PortAttr, from: &DevicePortAttr) {
    let mtu = |code: u8| Mtu::from_raw(code.into()).unwrap_or(Mtu::Mtu256);
    let max_mtu = mtu(from.max_mtu);
    let width = PortWidth::from_raw(from.active_width.into()).unwrap_or(PortWidth::X1);
    let speed = PortSpeed::from_raw(from.active_speed.get().into()).unwrap_or(PortSpeed::Sdr);
    // CAST: A LID of InfiniBand has 16 bits.
    let (lid, sm_lid) = (from.lid.get() as u16, from.sm_lid.get() as u16);
    attr.set_state(PortState::from_raw(from.state.into()).unwrap_or(PortState::Down))
        .set_phys_state(PhysState::from_raw(from.phys_state.into()).unwrap_or(PhysState::Disabled))
        .set_max_mtu(max_mtu)
        .set_active_mtu(mtu(from.active_mtu))
        .set_phys_mtu(128 << max_mtu.as_raw())
        .set_lid(lid, from.lmc)
        .set_sm(sm_lid, from.sm_sl)
        .set_subnet_timeout(from.subnet_timeout)
        .set_init_type_reply(from.init_type_reply)
        .set_port_caps(PortCaps::from_raw(from.port_cap_flags.get()))
        .set_port_cap_flags2(from.port_cap_flags2.get())
        .set_max_vl_num(from.max_vl_num)
        .set_max_msg_sz(from.max_msg_sz.get())
        .set_bad_pkey_cntr(from.bad_pkey_cntr.get())
        .set_qkey_viol_cntr(from.qkey_viol_cntr.get())
        .set_link(width, speed);
}

/// Passes a management datagram to the agents of the device.
fn process_mad(
    vdev: &VerbsDevice,
    request: &MadRequest,
    response: &mut [u8; MAD_SIZE],
) -> Result<MadOutcome> {
    let memory = Chunk::alloc(&vdev.dma, Payer::Kernel, GRH_AT + GRH_SIZE)?;
    memory.write_bytes(REQUEST_AT, &request.mad)?;
    if let Some(grh) = &request.grh {
        memory.write_bytes(GRH_AT, grh)?;
    }
    let memory = Lent::new(Arc::new(memory, GFP_KERNEL)?, &vdev.health);
    let command = |to: &Lender| {
        let addr = memory.lend(to).addr();
        ProcessMad {
            in_addr: Le64::new(addr + REQUEST_AT as u64),
            out_addr: Le64::new(addr + RESPONSE_AT as u64),
            grh_addr: Le64::new(addr + GRH_AT as u64),
            ..mad_header(request)
        }
    };
    let reply = vdev.cmdq.exec_with(command, &[&memory as &dyn Borrowed])?;
    let result = reply.result.get();
    if result & RESULT_SUCCESS == 0 {
        return Err(EIO);
    }
    if result & RESULT_CONSUMED != 0 {
        return Ok(MadOutcome::Consumed);
    }
    if result & RESULT_REPLY == 0 {
        return Ok(MadOutcome::NotMine);
    }
    memory.read_bytes(RESPONSE_AT, response)?;
    Ok(MadOutcome::Reply)
}

/// Returns the command for a management datagram, without addresses in memory.
fn mad_header(request: &MadRequest) -> ProcessMad {
    let mut header = ProcessMad {
        port: PORT,
        // CAST: There are two flags.
        flags: request.flags.as_raw() as u8,
        has_grh: u8::from(request.grh.is_some()),
        ..Default::default()
    };
    if let Some(source) = request.source {
        header.src_qp = Le32::new(source.src_qp);
        header.slid = Le32::new(source.slid.into());
        header.sl = source.sl;
        header.dlid_path_bits = source.dlid_path_bits;
        header.pkey_index = Le16::new(source.pkey_index);
    }
    header
}

/// The operations of InfiniBand ports.
pub(crate) struct InfinibandOps;

impl infiniband::InfinibandPort<Verbena> for InfinibandOps {
    fn query_gid(dev: &Device<Verbena>, _port: u32, index: u16) -> Result<[u8; 16]> {
        dev.infiniband()?.query_gid(&dev.vdev, index)
    }

    fn modify_port(dev: &Device<Verbena>, _port: u32, change: &PortChange) -> Result {
        let caps = change.set_caps | change.clear_caps;
        if change.mask != 0 || !MODIFIABLE.contains(caps) {
            return Err(eopnotsupp());
        }
        dev.vdev.cmdq.exec(&ModifyPort {
            port: PORT,
            set_port_cap_mask: Le32::new(change.set_caps.as_raw()),
            clr_port_cap_mask: Le32::new(change.clear_caps.as_raw()),
            ..Default::default()
        })?;
        Ok(())
    }

    fn set_node_description(dev: &Device<Verbena>, text: &[u8; NODE_DESCRIPTION_SIZE]) -> Result {
        dev.infiniband()?.set_description(&dev.vdev, text)
    }

    fn process_mad(
        dev: &Device<Verbena>,
        request: &MadRequest,
        response: &mut [u8; MAD_SIZE],
    ) -> Result<MadOutcome> {
        process_mad(&dev.vdev, request, response)
    }
}
