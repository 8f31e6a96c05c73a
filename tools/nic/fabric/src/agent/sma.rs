// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The subnet management agent (SMA) of a node: answers to Get and Set of subnet management
//! (IBTA 14.2, 14.3).

use super::m_key::{self, KeyCheck};
use crate::mad::attribute::{PortInfo, SwitchInfo};
use crate::mad::notice::{Notice, Trap, RETURN_PATH_AT, RETURN_PATH_LEN};
use crate::mad::{attribute_id, method, status, Fields, Mad, SMP_DATA_LEN};
use crate::node::Node;
use crate::port::{LinkRequest, PortKind, P_KEYS_PER_PORT};
use crate::Time;

/// The sender of an SMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A node of the subnet. The M_Key is checked.
    Subnet,
    /// The driver of the adapter, which does not need the M_Key.
    Driver,
}

/// Effects of a Set beyond the attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// A port whose link has to change.
    pub link: Option<(u8, LinkRequest)>,
    /// The clients of the ingress port have to register again.
    pub reregister: bool,
}

/// The result of an SMP at the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The agent answers.
    Answer(Box<Mad>, Effects),
    /// The SMP is for the agent, and has no answer.
    Consumed,
    /// The SMP is not for the agent, but for a subnet manager or a client of the guest.
    NotForAgent,
}

/// The place of a request: its port of arrival, and the rights of its M_Key.
#[derive(Clone, Copy)]
struct Access {
    ingress: u8,
    key: KeyCheck,
}

/// Handles an SMP that arrived by port `ingress`. The caller has moved the hop pointer.
pub fn handle(node: &mut Node, ingress: u8, request: &Mad, origin: Origin, now: Time) -> Outcome {
    let asked = request.get(Mad::METHOD);
    if request.get(Mad::RESPONSE) || asked == method::TRAP || asked == method::REPORT {
        return Outcome::NotForAgent;
    }
    let transaction = request.get(Mad::TRANSACTION_ID);
    let managed = node.managed_port(ingress);
    let key = match check_key(node, managed, request, origin, now) {
        KeyCheck::Refused => return Outcome::Consumed,
        key => key,
    };
    if asked == method::TRAP_REPRESS {
        let ours = node
            .traps_mut(managed)
            .is_some_and(|traps| traps.repress(transaction));
        return if ours {
            Outcome::Consumed
        } else {
            Outcome::NotForAgent
        };
    }
    let mut response = Box::new(*request);
    let mut effects = Effects::default();
    let status = match execute(node, Access { ingress, key }, &mut response, &mut effects) {
        Ok(()) => status::OK,
        Err(status) => status,
    };
    response.make_response(status);
    Outcome::Answer(response, effects)
}

/// Checks the M_Key of a request. A violation raises trap 256.
fn check_key(node: &mut Node, managed: u8, request: &Mad, origin: Origin, now: Time) -> KeyCheck {
    if origin == Origin::Driver {
        return match node.guest_may_manage {
            true => KeyCheck::Right,
            false => KeyCheck::Hidden,
        };
    }
    let Some(port) = node.port_mut(managed) else {
        return KeyCheck::Refused;
    };
    let key = m_key::check(port, request, now);
    if key == KeyCheck::Refused {
        raise_trap(node, managed, Trap::BadMKey, now, |notice| {
            describe_bad_key(notice, request)
        });
    }
    key
}

/// Adds the details of an SMP with a wrong M_Key (IBTA 14.2.5.1, trap 256).
fn describe_bad_key(notice: &mut Notice, request: &Mad) {
    notice.set(Notice::METHOD, request.get(Mad::METHOD));
    notice.set(Notice::ATTRIBUTE_ID, request.get(Mad::ATTRIBUTE_ID));
    notice.set(
        Notice::ATTRIBUTE_MODIFIER,
        request.get(Mad::ATTRIBUTE_MODIFIER),
    );
    notice.set(Notice::M_KEY, request.get(Mad::M_KEY));
    if request.is_directed_route() {
        let hops = request.get(Mad::HOP_COUNT);
        notice.set(Notice::DR_SLID, request.get(Mad::DR_SLID));
        notice.set(Notice::IS_DIRECTED_ROUTE, true);
        notice.set(
            Notice::IS_PATH_TRUNCATED,
            usize::from(hops) > RETURN_PATH_LEN,
        );
        notice.set(Notice::HOP_COUNT, hops);
        for (hop, entry) in (1..=hops).zip(
            notice
                .0
                .iter_mut()
                .skip(RETURN_PATH_AT)
                .take(RETURN_PATH_LEN),
        ) {
            *entry = request.return_path(hop);
        }
    }
}

/// Raises a trap of a managed port, unless the subnet manager has not configured the port yet.
pub fn raise_trap(
    node: &mut Node,
    managed: u8,
    trap: Trap,
    now: Time,
    details: impl FnOnce(&mut Notice),
) {
    let Some(port) = node.port(managed) else {
        return;
    };
    let lid = port.lid();
    if lid == 0 || port.info.get(PortInfo::MASTER_SM_LID) == 0 {
        return;
    }
    let mut notice = trap.notice(node.node_type(), lid);
    details(&mut notice);
    if let Some(traps) = node.traps_mut(managed) {
        traps.raise(trap, notice, now);
    }
}

/// Executes a Get or a Set, and replaces the attribute by that of the response. After an error of a
/// Set, the response has the attribute as it is.
fn execute(
    node: &mut Node,
    access: Access,
    mad: &mut Mad,
    effects: &mut Effects,
) -> Result<(), u16> {
    if mad.get(Mad::BASE_VERSION) != 1 || mad.get(Mad::CLASS_VERSION) != 1 {
        return Err(status::BAD_VERSION);
    }
    let stored = match mad.get(Mad::METHOD) {
        method::GET => Ok(()),
        method::SET => set(node, access, mad, effects),
        _ => return Err(status::UNSUPPORTED_METHOD),
    };
    let data = get(
        node,
        access,
        mad.get(Mad::ATTRIBUTE_ID),
        mad.get(Mad::ATTRIBUTE_MODIFIER),
    );
    if let Ok(data) = &data {
        mad.set_data(data);
    }
    stored.and(data.map(|_| ()))
}

/// Returns an attribute.
fn get(
    node: &mut Node,
    access: Access,
    attribute: u16,
    modifier: u32,
) -> Result<[u8; SMP_DATA_LEN], u16> {
    match attribute {
        attribute_id::NODE_DESCRIPTION => Ok(node.description),
        attribute_id::NODE_INFO => Ok(node.info(access.ingress).0),
        attribute_id::PORT_INFO => port_info(node, access, modifier),
        attribute_id::P_KEY_TABLE => p_keys(node, access, modifier),
        attribute_id::GUID_INFO => guids(node, access, modifier),
        attribute_id::SL_TO_VL_TABLE => sl_to_vl(node, access, modifier),
        attribute_id::VL_ARBITRATION => Ok(*vl_arbitration(node, access, modifier)?),
        _ => get_of_switch(node, attribute, modifier),
    }
}

/// Returns an attribute that only switches have.
fn get_of_switch(
    node: &mut Node,
    attribute: u16,
    modifier: u32,
) -> Result<[u8; SMP_DATA_LEN], u16> {
    let tables = node.tables.as_mut().ok_or(status::UNSUPPORTED_ATTRIBUTE)?;
    match attribute {
        attribute_id::SWITCH_INFO => Ok(tables.info.0),
        attribute_id::LINEAR_FORWARDING_TABLE => {
            let block = tables.linear_block(modifier).ok_or(status::INVALID_VALUE)?;
            <[u8; SMP_DATA_LEN]>::try_from(&*block).map_err(|_| status::INVALID_VALUE)
        }
        attribute_id::MULTICAST_FORWARDING_TABLE => tables
            .multicast_block(modifier)
            .ok_or(status::INVALID_VALUE),
        _ => Err(status::UNSUPPORTED_ATTRIBUTE),
    }
}

/// Stores an attribute.
fn set(node: &mut Node, access: Access, mad: &Mad, effects: &mut Effects) -> Result<(), u16> {
    let (modifier, data) = (mad.get(Mad::ATTRIBUTE_MODIFIER), mad.data());
    match mad.get(Mad::ATTRIBUTE_ID) {
        attribute_id::PORT_INFO => set_port_info(node, access, modifier, &PortInfo(data), effects),
        attribute_id::P_KEY_TABLE => set_p_keys(node, access, modifier, &data),
        // The only GUID of the table is the port's own, which no Set changes (IBTA 14.2.5.5).
        attribute_id::GUID_INFO => guids(node, access, modifier).map(|_| ()),
        attribute_id::SL_TO_VL_TABLE => set_sl_to_vl(node, access, modifier, &data),
        attribute_id::VL_ARBITRATION => {
            *vl_arbitration(node, access, modifier)? = data;
            Ok(())
        }
        attribute => set_of_switch(node, attribute, modifier, &data),
    }
}

/// Stores an attribute that only switches have.
fn set_of_switch(
    node: &mut Node,
    attribute: u16,
    modifier: u32,
    data: &[u8; SMP_DATA_LEN],
) -> Result<(), u16> {
    let tables = node.tables.as_mut().ok_or(status::UNSUPPORTED_ATTRIBUTE)?;
    let stored = match attribute {
        attribute_id::SWITCH_INFO => tables.set_info(&SwitchInfo(*data)),
        attribute_id::LINEAR_FORWARDING_TABLE => tables
            .linear_block(modifier)
            .map(|block| block.copy_from_slice(data))
            .is_some(),
        attribute_id::MULTICAST_FORWARDING_TABLE => tables.set_multicast_block(modifier, data),
        _ => return Err(status::UNSUPPORTED_ATTRIBUTE),
    };
    stored.then_some(()).ok_or(status::INVALID_VALUE)
}

/// Returns the port of an attribute modifier of PortInfo. Bit 31 only says that the subnet manager
/// supports extended speeds (IBTA 14.2.5.6).
fn port_of_info(node: &Node, access: Access, modifier: u32) -> Result<u8, u16> {
    let number = u8::try_from(modifier & 0x7fff_ffff).map_err(|_| status::INVALID_VALUE)?;
    let number = if number == 0 && !node.is_switch() {
        access.ingress
    } else {
        number
    };
    node.port(number)
        .map(|_| number)
        .ok_or(status::INVALID_VALUE)
}

fn port_info(node: &Node, access: Access, modifier: u32) -> Result<[u8; SMP_DATA_LEN], u16> {
    let number = port_of_info(node, access, modifier)?;
    let shown = node
        .port(number)
        .map_or(0, |port| m_key::shown(port, access.key));
    let info = node
        .port_info(number, access.ingress)
        .ok_or(status::INVALID_VALUE)?;
    Ok(info.with(PortInfo::M_KEY, shown).0)
}

fn set_port_info(
    node: &mut Node,
    access: Access,
    modifier: u32,
    new: &PortInfo,
    effects: &mut Effects,
) -> Result<(), u16> {
    let number = port_of_info(node, access, modifier)?;
    // An adapter's port is configured by SMPs to that port only.
    if !node.is_switch() && number != access.ingress {
        return Err(status::INVALID_VALUE);
    }
    let port = node.port_mut(number).ok_or(status::INVALID_VALUE)?;
    let stored = port.set_info(new).map_err(|_| status::INVALID_VALUE)?;
    effects.link = stored.link.map(|request| (number, request));
    effects.reregister = stored.reregister;
    Ok(())
}

/// Returns the port of a P_Key table. The high half of the attribute modifier is the port of a
/// switch; the only block is block 0 (IBTA 14.2.5.7).
fn port_of_p_keys(node: &Node, access: Access, modifier: u32) -> Result<u8, u16> {
    let (port, block) = (modifier >> 16, modifier & 0xffff);
    let number = match node.is_switch() {
        true => u8::try_from(port).map_err(|_| status::INVALID_VALUE)?,
        false => access.ingress,
    };
    (block == 0 && node.port(number).is_some())
        .then_some(number)
        .ok_or(status::INVALID_VALUE)
}

fn p_keys(node: &Node, access: Access, modifier: u32) -> Result<[u8; SMP_DATA_LEN], u16> {
    let number = port_of_p_keys(node, access, modifier)?;
    let port = node.port(number).ok_or(status::INVALID_VALUE)?;
    let mut data = [0; SMP_DATA_LEN];
    for (bytes, key) in data.chunks_exact_mut(2).zip(port.p_keys) {
        bytes.copy_from_slice(&key.to_be_bytes());
    }
    Ok(data)
}

fn set_p_keys(
    node: &mut Node,
    access: Access,
    modifier: u32,
    data: &[u8; SMP_DATA_LEN],
) -> Result<(), u16> {
    let number = port_of_p_keys(node, access, modifier)?;
    let port = node.port_mut(number).ok_or(status::INVALID_VALUE)?;
    let mut keys = [0; P_KEYS_PER_PORT];
    for (key, bytes) in keys.iter_mut().zip(data.chunks_exact(2)) {
        if let [high, low] = bytes {
            *key = u16::from_be_bytes([*high, *low]);
        }
    }
    port.p_keys = keys;
    Ok(())
}

/// Returns a block of GUIDInfo. Only the first block has an entry, the GUID of the port.
fn guids(node: &Node, access: Access, modifier: u32) -> Result<[u8; SMP_DATA_LEN], u16> {
    let port = node
        .port(node.managed_port(access.ingress))
        .ok_or(status::INVALID_VALUE)?;
    if modifier != 0 {
        return Err(status::INVALID_VALUE);
    }
    let mut data = [0; SMP_DATA_LEN];
    data[..8].copy_from_slice(&port.guid.to_be_bytes());
    Ok(data)
}

/// Returns the egress and ingress port of an attribute modifier of SLtoVLMappingTable: in a switch,
/// bits 15 to 8 are the ingress port, bits 7 to 0 the egress port (IBTA 14.2.5.8).
fn ports_of_sl_to_vl(node: &Node, access: Access, modifier: u32) -> Result<(u8, usize), u16> {
    if !node.is_switch() {
        return Ok((access.ingress, 0));
    }
    let (ingress, egress) = ((modifier >> 8) as u8, modifier as u8);
    let exist = modifier >> 16 == 0 && node.port(ingress).is_some() && node.port(egress).is_some();
    exist
        .then_some((egress, usize::from(ingress)))
        .ok_or(status::INVALID_VALUE)
}

fn sl_to_vl(node: &Node, access: Access, modifier: u32) -> Result<[u8; SMP_DATA_LEN], u16> {
    let (egress, ingress) = ports_of_sl_to_vl(node, access, modifier)?;
    let map = node
        .port(egress)
        .and_then(|port| port.sl_to_vl.get(ingress))
        .ok_or(status::INVALID_VALUE)?;
    let mut data = [0; SMP_DATA_LEN];
    data[..8].copy_from_slice(map);
    Ok(data)
}

fn set_sl_to_vl(
    node: &mut Node,
    access: Access,
    modifier: u32,
    data: &[u8; SMP_DATA_LEN],
) -> Result<(), u16> {
    let (egress, ingress) = ports_of_sl_to_vl(node, access, modifier)?;
    let port = node.port_mut(egress).ok_or(status::INVALID_VALUE)?;
    let map = port
        .sl_to_vl
        .get_mut(ingress)
        .ok_or(status::INVALID_VALUE)?;
    map.copy_from_slice(&data[..8]);
    Ok(())
}

/// Returns a block of the VL arbitration table. The high half of the attribute modifier is the block
/// from 1 on, the low half the port of a switch (IBTA 14.2.5.9). The capabilities of 8 entries leave
/// only the first block of each priority, 1 and 3.
fn vl_arbitration(
    node: &mut Node,
    access: Access,
    modifier: u32,
) -> Result<&mut [u8; SMP_DATA_LEN], u16> {
    let block = (modifier >> 16) as usize;
    let number = match node.is_switch() {
        true => u8::try_from(modifier & 0xffff).map_err(|_| status::INVALID_VALUE)?,
        false => access.ingress,
    };
    let port = node.port_mut(number).ok_or(status::INVALID_VALUE)?;
    if port.kind == PortKind::SwitchPort0 || ![1, 3].contains(&block) {
        return Err(status::INVALID_VALUE);
    }
    port.vl_arbitration
        .get_mut(block - 1)
        .ok_or(status::INVALID_VALUE)
}
