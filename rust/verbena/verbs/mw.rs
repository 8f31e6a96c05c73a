// SPDX-License-Identifier: GPL-2.0

//! Memory windows. For the device they are keys like those of regions. The driver does not take
//! part in binding them, which is a matter between the process and the device.

use super::{
    key::MemoryKey,
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
use base::{
    dma::Payer,
    errno::eopnotsupp, //
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
    mw::{
        MemoryWindow,
        Mw,
        MwType, //
    },
    pd::Pd,
    udata::Caller, //
};

/// Counter of the memory windows of a context.
///
/// A region with windows bound to it cannot be destroyed, and only the device knows whether there
/// are any. The driver accepts the device's refusal only if a window existed at all.
pub(crate) struct WindowCounter {
    created: Atomic<u32>,
    destroyed: Atomic<u32>,
}

impl WindowCounter {
    pub(crate) fn new() -> Self {
        Self {
            created: Atomic::new(0),
            destroyed: Atomic::new(0),
        }
    }

    /// Returns a mark, to be passed to [`existed_since`](Self::existed_since) after an operation
    /// that windows may prevent.
    pub(crate) fn snapshot(&self) -> u32 {
        self.destroyed.load(Acquire)
    }

    /// True if a window existed at some time since the call of [`snapshot`](Self::snapshot)
    /// returned `snapshot`.
    pub(crate) fn existed_since(&self, snapshot: u32) -> bool {
        self.created.load(Acquire) != snapshot
    }
}

/// Driver's data of a memory window.
pub(crate) struct MwData {
    hw: Arc<Hw>,
    key: MemoryKey,
    request: CreateMr,
    windows: Arc<WindowCounter>,
}

impl MwData {
    fn new(pd: &Pd<Verbena>, mw_type: MwType, caller: &Caller<'_, Verbena>) -> Result<Self> {
        let hw = pd.device().vdev.hw.clone();
        // Kernel users have fast registration instead.
        let user = caller.user().ok_or(eopnotsupp())?;
        if !hw.has(FEATURE_MW) {
            return Err(eopnotsupp());
        }
        let key = MemoryKey::new(&hw, Payer::Process)?;
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
        mw.hw.cmdq.take_back(&mw.key.destroy_command(), &[]);
        mw.windows.destroyed.fetch_add(1, Release);
        Ok(())
    }
}
