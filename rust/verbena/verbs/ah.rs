// SPDX-License-Identifier: GPL-2.0

//! Address vectors and handles. The device knows no handles: the vector is in each WQE.

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

/// The device's form of an address vector.
pub(crate) fn to_device(attr: &AhAttr) -> Result<AddressVector> {
    // RoCE: there is no other address.
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

/// The verbs' form of an address vector.
pub(crate) fn from_device(av: &AddressVector) -> AhAttr {
    AhAttr {
        grh: Some(GlobalRoute {
            dgid: av.dgid,
            flow_label: av.flow_label.get(),
            // CAST: the core's indexes have 8 bits.
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

/// Data of an address handle.
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
