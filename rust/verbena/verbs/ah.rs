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
        GlobalRoute, //
    },
    pd::Pd,
    udata::Caller, //
};

/// Converts an address vector to the device's form. Returns `EINVAL` if it has no GRH.
pub(crate) fn to_device(attr: &AhAttr) -> Result<AddressVector> {
    // RoCE has no addresses without a GRH.
    let grh = attr.grh.as_ref().ok_or(EINVAL)?;
    Ok(AddressVector {
        dgid: grh.dgid,
        dmac: attr.dmac,
        sgid_index: Le16::new(grh.sgid_index.into()),
        flow_label: Le32::new(grh.flow_label & 0xf_ffff),
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        sl: attr.sl,
        port_num: 1,
        static_rate: attr.static_rate,
        path_bits: AV_GRH,
        ..Default::default()
    })
}

/// Converts an address vector to the form of the verbs.
pub(crate) fn from_device(av: &AddressVector) -> AhAttr {
    AhAttr {
        grh: Some(GlobalRoute {
            dgid: av.dgid,
            flow_label: av.flow_label.get(),
            // CAST: The core's indexes have 8 bits.
            sgid_index: av.sgid_index.get() as u8,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
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
        let mut av = to_device(attr)?;
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
        Ok(from_device(&ah.av))
    }
}
