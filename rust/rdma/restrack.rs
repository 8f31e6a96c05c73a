// SPDX-License-Identifier: GPL-2.0

//! Information about an object for `rdma resource show`: named values, and the raw context with
//! `-r`.
//!
//! C headers: [`include/rdma/restrack.h`](srctree/include/rdma/restrack.h),
//! [`include/rdma/rdma_netlink.h`](srctree/include/rdma/rdma_netlink.h)

use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    bindings as kbindings,
    error::{
        from_result,
        to_result, //
    },
    prelude::*, //
};

/// A writer of named values.
///
/// # Invariants
///
/// `msg` is a message under construction, which only this value uses for `'a`.
pub struct ResEntry<'a> {
    msg: *mut kbindings::sk_buff,
    _msg: PhantomData<&'a mut kbindings::sk_buff>,
}

impl ResEntry<'_> {
    /// Writes a decimal value.
    pub fn put_u32(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: By the type invariant only this value uses the message. The function copies the
        // name.
        to_result(unsafe { bindings::rdma_nl_put_driver_u32(self.msg, name.as_char_ptr(), value) })
    }

    /// Writes a hexadecimal value.
    pub fn put_u32_hex(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: By the type invariant only this value uses the message. The function copies the
        // name.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32_hex(self.msg, name.as_char_ptr(), value)
        })
    }

    /// Runs `fill` inside the driver's nest of the message.
    ///
    /// # Safety
    ///
    /// `msg` must be a message under construction, which only the caller uses.
    pub(crate) unsafe fn fill(
        msg: *mut kbindings::sk_buff,
        fill: impl FnOnce(&mut ResEntry<'_>) -> Result,
    ) -> c_int {
        // SAFETY: The caller promises that `msg` is under construction.
        let nest = unsafe { bindings::rdma_helper_nl_driver_start(msg) };
        if nest.is_null() {
            return EMSGSIZE.to_errno();
        }
        // INVARIANT: The caller promises that `msg` is under construction and that only the caller
        // uses it.
        let mut entry = ResEntry {
            msg,
            _msg: PhantomData,
        };
        from_result(|| {
            match fill(&mut entry) {
                // SAFETY: `msg` is under construction, and `nest` was started in it above.
                Ok(()) => unsafe { bindings::rdma_helper_nl_end(msg, nest) },
                Err(e) => {
                    // SAFETY: `msg` is under construction, and `nest` was started in it above.
                    unsafe { bindings::rdma_helper_nl_cancel(msg, nest) };
                    return Err(e);
                }
            }
            Ok(0)
        })
    }

    /// Runs `fill` with a function that appends the raw context.
    ///
    /// # Safety
    ///
    /// `msg` must be a message under construction, which only the caller uses.
    pub(crate) unsafe fn fill_raw(
        msg: *mut kbindings::sk_buff,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result) -> Result,
    ) -> c_int {
        let mut put = |bytes: &[u8]| {
            let len = bytes.len().try_into()?;
            // SAFETY: The caller promises that `msg` is under construction. The function copies the
            // `len` bytes.
            to_result(unsafe { bindings::rdma_helper_nl_put_raw(msg, len, bytes.as_ptr().cast()) })
        };
        from_result(|| {
            fill(&mut put)?;
            Ok(0)
        })
    }
}
