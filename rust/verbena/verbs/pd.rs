// SPDX-License-Identifier: GPL-2.0

//! Protection domains: numbers that the device compares.

use super::Verbena;
use crate::{
    abi::{
        uverbs::AllocPdResp,
        Le32, //
    },
    hw::Hw, //
};
use base::share::Part;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    device::Device,
    pd::{
        Pd,
        ProtectionDomain, //
    },
    udata::Caller, //
};

/// Driver's data of a protection domain.
pub(crate) struct PdData {
    hw: Arc<Hw>,
    pub(crate) pdn: u32,
    _part: Part,
}

impl ProtectionDomain<Verbena> for PdData {
    fn create(dev: &Device<Verbena>, caller: &Caller<'_, Verbena>) -> impl PinInit<Self, Error> {
        let create = || {
            let hw = dev.vdev.hw.clone();
            let (pdn, part) = hw.info()?.ids.pdns.alloc(caller.payer())?;
            let this = Self {
                hw,
                pdn,
                _part: part,
            };
            if let Some(user) = caller.user() {
                user.udata().respond(&AllocPdResp {
                    pdn: Le32::new(pdn),
                    ..Default::default()
                })?;
            }
            Ok(this)
        };
        create()
    }

    fn destroy(_pd: &Pd<Verbena>) -> Result {
        Ok(())
    }
}

impl Drop for PdData {
    fn drop(&mut self) {
        if let Ok(info) = self.hw.info() {
            info.ids.pdns.free(self.pdn);
        }
    }
}
