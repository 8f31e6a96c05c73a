// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The addresses of datagrams: from an address vector to a path, and from a path to a CQE.

use crate::execution::wqe::malformed;
use crate::objects::port::Port;
use crate::objects::qp::Env;
use verbena_abi::cmd::{QpType, NO_VLAN};
use verbena_abi::cqe::{network_type, wc_flags, Cqe};
use verbena_abi::ctx::AddressVector;
use verbena_abi::wqe::SendWqe;
use verbena_transport::host::{DatagramDest, DatagramSource, Syndrome, WqeError};

/// Returns the destination of a work request of a datagram.
///
/// # Errors
///
/// The address handle belongs to another PD, its source GID or destination LID does not exist, or
/// the P_Key index of a GSI queue pair names no P_Key.
pub fn destination(
    port: &Port,
    env: &Env,
    av: &AddressVector,
    header: &SendWqe,
) -> Result<DatagramDest, WqeError> {
    if av.pdn.get() != env.create.pdn.get() {
        return Err(malformed(Syndrome::AddressHandlePd));
    }
    let qpn = av.dest_qpn.get() & 0xff_ffff;
    let path = port.path(av, env.qpn(), qpn);
    let path = path.ok_or(malformed(Syndrome::AddressHandleGid))?;
    // The GSI of an Ethernet port has one P_Key, and the field has no meaning there.
    let names_pkey = env.qp_type == QpType::Gsi && port.as_infiniband().is_some();
    let pkey = match names_pkey {
        true => Some(
            port.pkey(header.pkey_index.get())
                .ok_or(malformed(Syndrome::PkeyIndex))?,
        ),
        false => None,
    };
    Ok(DatagramDest {
        path,
        qpn,
        pkey,
        qkey: av.qkey.get(),
    })
}

/// Writes the source of a datagram to a CQE. Returns the flags of the CQE that describe it.
pub fn describe_source(port: &Port, source: &DatagramSource, cqe: &mut Cqe) -> u8 {
    let path = &source.path;
    cqe.src_qp = source.qpn.into();
    cqe.sl = path.sl;
    if let (Some(route), Some(port)) = (path.local_route, port.as_infiniband()) {
        cqe.slid = route.slid.into();
        cqe.dlid_path_bits = port.path_bits(route.dlid);
        cqe.pkey_index = port.index_of_pkey(source.pkey).unwrap_or(0).into();
        cqe.network_type = network_type::INFINIBAND;
        return if route.has_grh { wc_flags::GRH } else { 0 };
    }
    cqe.smac = path.smac;
    cqe.vlan = path.vlan.unwrap_or(NO_VLAN).into();
    let is_v4 = path.dgid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    cqe.network_type = if is_v4 {
        network_type::IPV4
    } else {
        network_type::IPV6
    };
    wc_flags::GRH
}
