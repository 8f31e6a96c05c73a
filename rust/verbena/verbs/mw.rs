// SPDX-License-Identifier: GPL-2.0

//! Memory windows. To the device they are keys like those of regions; what they are bound to, and
//! when, is between the process and the device.

use super::{
    mr::Key,
    Verbena, //
};
use crate::{
    abi::{
        cmd::{
            CreateMr,
            FEATURE_MW, //
        },
        ctx::{
            mr_flags,
            MemoryEntry, //
        },
        Le32, //
    },
    hw::Hw, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
};
use rdma::{
    base::{
        dma::Payer,
        errno::eopnotsupp, //
    },
    mw::{
        MemoryWindow,
        Mw,
        MwType, //
    },
    pd::Pd,
    udata::Caller, //
};

/// Counts the windows of a context.
///
/// A region with windows bound to it cannot be destroyed, and only the device knows whether there are
/// any. It is believed where there was a window at all.
pub(crate) struct Windows {
    created: Atomic<u32>,
    destroyed: Atomic<u32>,
}

impl Windows {
    pub(crate) fn new() -> Self {
        Self {
            created: Atomic::new(0),
            destroyed: Atomic::new(0),
        }
    }

    /// Before something that windows may stand in the way of.
    pub(crate) fn before(&self) -> u32 {
        self.destroyed.load(Acquire)
    }

    /// Afterwards: whether there was one at some time in between.
    pub(crate) fn since(&self, before: u32) -> bool {
        self.created.load(Acquire) != before
    }
}

/// Data of a memory window.
pub(crate) struct MwData {
    hw: Arc<Hw>,
    key: Key,
    request: CreateMr,
    windows: Arc<Windows>,
}

impl MwData {
    fn new(pd: &Pd<Verbena>, mw_type: MwType, caller: &Caller<'_, Verbena>) -> Result<Self> {
        let hw = pd.device().live.hw.clone();
        // The kernel has fast registration.
        let user = caller.user().ok_or(eopnotsupp())?;
        if !hw.has(FEATURE_MW) {
            return Err(eopnotsupp());
        }
        let key = Key::new(&hw, Payer::Process)?;
        let flags = match mw_type {
            MwType::Type1 => mr_flags::WINDOW_1,
            MwType::Type2 => mr_flags::WINDOW_2,
        };
        Ok(Self {
            request: CreateMr {
                key: Le32::new(key.key),
                pdn: Le32::new(pd.pdn),
                flags: Le32::new(flags),
                ..Default::default()
            },
            hw,
            key,
            windows: user.context().windows.clone(),
        })
    }
}

impl MemoryWindow<Verbena> for MwData {
    fn create(
        pd: &Pd<Verbena>,
        mw_type: MwType,
        caller: &Caller<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        Self::new(pd, mw_type, caller)
    }

    fn start(mw: &Mw<Verbena>) -> Result<u32> {
        let hw = &mw.hw;
        let key = mw.key.key;
        hw.tables.ensure::<MemoryEntry>(&hw.cmdq, key >> 8)?;
        mw.windows.created.fetch_add(1, Release);
        match hw.cmdq.exec(&mw.request) {
            Ok(_) => Ok(key),
            Err(failure) => {
                mw.windows.destroyed.fetch_add(1, Release);
                Err(failure.into())
            }
        }
    }

    fn destroy(mw: &Mw<Verbena>) -> Result {
        mw.hw.cmdq.take_back(&mw.key.destruction(), &[]);
        mw.windows.destroyed.fetch_add(1, Release);
        Ok(())
    }
}
