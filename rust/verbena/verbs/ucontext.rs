// SPDX-License-Identifier: GPL-2.0

//! Contexts of processes, with their doorbell areas.

use super::{
    mw::WindowCounter,
    Verbena, //
};
use crate::{
    abi::{
        uverbs::{
            AllocUcontextReq,
            AllocUcontextResp, //
        },
        Le16,
        ABI_VERSION_MIN, //
    },
    doorbell::DoorbellAreas, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    device::Device,
    mmap::MmapContext,
    ucontext::{
        Ucontext,
        UserContext, //
    },
    udata::Udata, //
};

/// Driver's data of a process' context.
pub(crate) struct UcontextData {
    pub(crate) areas: Pin<KBox<DoorbellAreas>>,
    pub(crate) windows: Arc<WindowCounter>,
}

impl UserContext<Verbena> for UcontextData {
    const IMPORTABLE: bool = true;

    fn create(
        dev: &Device<Verbena>,
        mmap: &MmapContext,
        udata: &Udata<'_>,
    ) -> impl PinInit<Self, Error> {
        let create = || {
            let request: AllocUcontextReq = udata.read()?;
            if request.reserved.get() != 0 {
                return Err(EINVAL);
            }
            let hw = &dev.vdev.hw;
            let (newest, oldest) = (request.abi_version.get(), request.abi_version_min.get());
            // The process and the device share memory, so neither may use a version that the other
            // does not know.
            let version = newest.min(hw.abi_version);
            if version < oldest || version < ABI_VERSION_MIN {
                dev_info_once(dev, newest, oldest);
                return Err(EINVAL);
            }
            let caps = hw.caps()?;
            let areas = KBox::pin_init(DoorbellAreas::new(), GFP_KERNEL)?;
            let area = areas.first(hw, Some(mmap))?;
            udata.respond(&AllocUcontextResp {
                abi_version: Le16::new(version),
                max_inline_data: caps.max_inline_data,
                area,
                max_send_sge: caps.max_send_sge,
                max_recv_sge: caps.max_recv_sge,
                max_qp_wr: caps.max_qp_wr,
                max_cqe: caps.max_cqe,
                max_srq_wr: caps.max_srq_wr,
                ..Default::default()
            })?;
            Ok(Self {
                areas,
                windows: Arc::new(WindowCounter::new(), GFP_KERNEL)?,
            })
        };
        create()
    }

    fn destroy(ctx: &Ucontext<Verbena>) {
        ctx.areas.clear();
    }
}

/// Logs, at a limited rate, that a context is refused because its ABI version is not supported.
fn dev_info_once(dev: &Device<Verbena>, newest: u16, oldest: u16) {
    if dev.vdev.health.ratelimit.may_log() {
        pr_info!(
            "no common ABI version: a provider supports {oldest} to {newest}, module and device {ABI_VERSION_MIN} to {}: update the older one\n",
            dev.vdev.hw.abi_version
        );
    }
}
