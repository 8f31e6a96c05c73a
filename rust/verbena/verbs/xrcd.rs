// SPDX-License-Identifier: GPL-2.0

//! XRC domains: numbers that the device compares.

use super::Verbena;
use crate::{
    abi::cmd::FEATURE_XRC,
    hw::Hw, //
};
use base::{
    errno::eopnotsupp,
    share::Part, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    device::Device,
    udata::Caller,
    xrcd::{
        XrcDomain,
        Xrcd, //
    }, //
};

/// Driver's data of an XRC domain.
pub(crate) struct XrcdData {
    hw: Arc<Hw>,
    /// Number of the domain, which is never 0.
    pub(crate) xrcdn: u32,
    _part: Part,
}

impl XrcDomain<Verbena> for XrcdData {
    fn create(dev: &Device<Verbena>, caller: &Caller<'_, Verbena>) -> impl PinInit<Self, Error> {
        let create = || {
            let hw = dev.vdev.hw.clone();
            if !hw.has(FEATURE_XRC) {
                return Err(eopnotsupp());
            }
            let (xrcdn, part) = hw.info()?.ids.xrcdns.alloc(caller.payer())?;
            Ok(Self {
                hw,
                xrcdn,
                _part: part,
            })
        };
        create()
    }

    fn destroy(_xrcd: &Xrcd<Verbena>) -> Result {
        Ok(())
    }
}

impl Drop for XrcdData {
    fn drop(&mut self) {
        if let Ok(info) = self.hw.info() {
            info.ids.xrcdns.free(self.xrcdn);
        }
    }
}
