// SPDX-License-Identifier: GPL-2.0

//! What `rdma resource show` tells of an object: named values, and the raw context with `-r`.

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
pub struct ResEntry<'a> {
    msg: *mut kbindings::sk_buff,
    _msg: PhantomData<&'a mut kbindings::sk_buff>,
}

impl ResEntry<'_> {
    /// A decimal value.
    pub fn put_u32(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: The message is ours for now; the name is copied.
        to_result(unsafe { bindings::rdma_nl_put_driver_u32(self.msg, name.as_char_ptr(), value) })
    }

    /// A hexadecimal value.
    pub fn put_u32_hex(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: As above.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32_hex(self.msg, name.as_char_ptr(), value)
        })
    }

    /// Runs `fill` inside the driver's nest of the message.
    ///
    /// # Safety
    ///
    /// `msg` must be a message under construction.
    pub(crate) unsafe fn fill(
        msg: *mut kbindings::sk_buff,
        fill: impl FnOnce(&mut ResEntry<'_>) -> Result,
    ) -> c_int {
        // SAFETY: See above.
        let nest = unsafe { bindings::rdma_helper_nl_driver_start(msg) };
        if nest.is_null() {
            return EMSGSIZE.to_errno();
        }
        let mut entry = ResEntry {
            msg,
            _msg: PhantomData,
        };
        from_result(|| {
            match fill(&mut entry) {
                // SAFETY: The nest that was started.
                Ok(()) => unsafe { bindings::rdma_helper_nl_end(msg, nest) },
                Err(e) => {
                    // SAFETY: As above.
                    unsafe { bindings::rdma_helper_nl_cancel(msg, nest) };
                    return Err(e);
                }
            }
            Ok(0)
        })
    }

    /// Lets `fill` put the raw context.
    ///
    /// # Safety
    ///
    /// `msg` must be a message under construction.
    pub(crate) unsafe fn fill_raw(
        msg: *mut kbindings::sk_buff,
        fill: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result) -> Result,
    ) -> c_int {
        let mut put = |bytes: &[u8]| {
            let len = bytes.len().try_into()?;
            // SAFETY: `msg` is under construction; `len` is that of `bytes`, which are copied.
            to_result(unsafe { bindings::rdma_helper_nl_put_raw(msg, len, bytes.as_ptr().cast()) })
        };
        from_result(|| {
            fill(&mut put)?;
            Ok(0)
        })
    }
}
