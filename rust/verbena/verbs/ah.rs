// SPDX-License-Identifier: GPL-2.0

//! Address vectors and handles. The device has no handles, so each WQE contains the address vector.

use super::Verbena;
use crate::abi::{
    ctx::{
        AddressVector,
        AV_GRH, //
    },
    uverbs::CreateAhResp,
    Le16,
    Le32, //
};
use kernel::prelude::*;
use rdma::{
    ah::{
        AddressHandle,
        Ah,
        AhAttr,
        GlobalRoute,
        LocalRoute, //
    },
    pd::Pd,
    udata::Caller, //
};

/// Converts an address vector to the form of a device with this link layer. Returns `EINVAL` if an
/// address of RoCE has no GRH, or one of InfiniBand no LID.
pub(crate) fn to_device(attr: &AhAttr, is_infiniband: bool) -> Result<AddressVector> {
    if is_infiniband {
        return infiniband_to_device(attr);
    }
    // RoCE has no addresses without a GRH.
    let grh = attr.grh.as_ref().ok_or(EINVAL)?;
    Ok(AddressVector {
        dmac: attr.dmac,
        ..with_grh(attr, grh)
    })
}

fn infiniband_to_device(attr: &AhAttr) -> Result<AddressVector> {
    let local = attr.local.ok_or(EINVAL)?;
    let mut av = match &attr.grh {
        Some(grh) => with_grh(attr, grh),
        None => without_grh(attr),
    };
    av.dlid = Le16::new(local.dlid);
    av.path_bits |= local.src_path_bits & !AV_GRH;
    Ok(av)
}

fn without_grh(attr: &AhAttr) -> AddressVector {
    AddressVector {
        sl: attr.sl,
        port_num: 1,
        static_rate: attr.static_rate,
        ..Default::default()
    }
}

fn with_grh(attr: &AhAttr, grh: &GlobalRoute) -> AddressVector {
    AddressVector {
        dgid: grh.dgid,
        sgid_index: Le16::new(grh.sgid_index.into()),
        flow_label: Le32::new(grh.flow_label & 0xf_ffff),
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        path_bits: AV_GRH,
        ..without_grh(attr)
    }
}

/// Converts an address vector of a device with this link layer to the form of the verbs.
pub(crate) fn from_device(av: &AddressVector, is_infiniband: bool) -> AhAttr {
    let has_grh = !is_infiniband || av.path_bits & AV_GRH != 0;
    AhAttr {
        grh: has_grh.then(|| GlobalRoute {
            dgid: av.dgid,
            flow_label: av.flow_label.get(),
            // CAST: The core's indexes have 8 bits.
            sgid_index: av.sgid_index.get() as u8,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        }),
        local: is_infiniband.then(|| LocalRoute {
            dlid: av.dlid.get(),
            src_path_bits: av.path_bits & !AV_GRH,
        }),
        sl: av.sl,
        port_num: 1,
        static_rate: av.static_rate,
        dmac: av.dmac,
        ..Default::default()
    }
}

/// Driver's data of an address handle.
pub(crate) struct AhData {
    pub(crate) av: AddressVector,
}

impl AddressHandle<Verbena> for AhData {
    fn create(
        pd: &Pd<Verbena>,
        attr: &AhAttr,
        _may_sleep: bool,
        caller: &Caller<'_, Verbena>,
    ) -> Result<Self> {
        let mut av = to_device(attr, pd.device().vdev.is_infiniband())?;
        av.pdn = Le32::new(pd.pdn);
        if let Some(user) = caller.user() {
            user.udata().respond(&CreateAhResp {
                dmac: av.dmac,
                pdn: av.pdn,
                ..Default::default()
            })?;
        }
        Ok(Self { av })
    }

    fn query(ah: &Ah<Verbena>) -> Result<AhAttr> {
        Ok(from_device(&ah.av, ah.device().vdev.is_infiniband()))
    }
}
