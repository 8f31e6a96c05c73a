// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of a driver (`/sys/kernel/tracing/events/verbena/`). A disabled tracepoint costs a
//! jump that is not taken.
//!
//! C: `trace.c`, `verbena_trace.h`. `kernel::declare_trace!` is for tracepoints that the kernel's
//! own bindings know.

use crate::enums::QpState;
use kernel::{
    bindings as kbindings,
    prelude::*,
    time::Delta, //
};

/// Declares a tracepoint, and the function that C generates for it.
macro_rules! tracepoint {
    ($key:ident, $call:ident($($arg:ident: $type:ty),*), $traced:ident) => {
        // One field of the struct is empty in this configuration. No code here accesses it.
        #[allow(improper_ctypes)]
        extern "C" {
            static $key: kbindings::tracepoint;
            fn $call($($arg: $type),*);
        }

        // The macro of the kernel contains more than one unsafe operation.
        #[allow(clippy::multiple_unsafe_ops_per_block)]
        #[inline(always)]
        fn $traced() -> bool {
            // SAFETY: `$key` is a tracepoint that C defines, and `key` is its static key.
            unsafe { kernel::jump_label::static_branch_unlikely!($key, kbindings::tracepoint, key) }
        }
    };
}

tracepoint!(
    __tracepoint_verbena_command,
    rust_do_trace_verbena_command(
        device: *const c_char,
        opcode: *const u8,
        opcode_len: c_uint,
        error: c_int,
        ns: u64
    ),
    is_command_traced
);
tracepoint!(
    __tracepoint_verbena_event,
    rust_do_trace_verbena_event(
        device: *const c_char,
        kind: *const u8,
        kind_len: c_uint,
        number: u32,
        syndrome: u32
    ),
    is_event_traced
);
tracepoint!(
    __tracepoint_verbena_qp_state,
    rust_do_trace_verbena_qp_state(device: *const c_char, qpn: u32, from: u32, to: u32),
    is_qp_state_traced
);
tracepoint!(
    __tracepoint_verbena_device,
    rust_do_trace_verbena_device(
        device: *const c_char,
        what: *const u8,
        what_len: c_uint,
        syndrome: u32
    ),
    is_device_traced
);

/// Returns the length of a short text.
fn len(text: &str) -> c_uint {
    c_uint::try_from(text.len()).unwrap_or(0)
}

/// Traces the result of a command: the error code, or 0, and its duration.
#[inline]
pub fn command(device: &CStr, opcode: &str, error: c_int, took: Delta) {
    if is_command_traced() {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(0);
        // SAFETY: `device` is a C string, and the text has that many bytes. The function copies
        // both.
        unsafe {
            rust_do_trace_verbena_command(
                device.as_char_ptr(),
                opcode.as_ptr(),
                len(opcode),
                error,
                ns,
            )
        };
    }
}

/// Traces an event of an object that the device reports.
#[inline]
pub fn event(device: &CStr, kind: &str, number: u32, syndrome: u32) {
    if is_event_traced() {
        // SAFETY: `device` is a C string, and the text has that many bytes. The function copies
        // both.
        unsafe {
            rust_do_trace_verbena_event(
                device.as_char_ptr(),
                kind.as_ptr(),
                len(kind),
                number,
                syndrome,
            )
        };
    }
}

/// Traces a change of the state of a QP.
#[inline]
pub fn qp_state(device: &CStr, qpn: u32, from: QpState, to: QpState) {
    if is_qp_state_traced() {
        // SAFETY: `device` is a C string, which the function copies.
        unsafe {
            rust_do_trace_verbena_qp_state(device.as_char_ptr(), qpn, from.as_raw(), to.as_raw())
        };
    }
}

/// Traces that the device starts to work, or that it has stopped.
#[inline]
pub fn device(device: &CStr, what: &str, syndrome: u32) {
    if is_device_traced() {
        // SAFETY: `device` is a C string, and the text has that many bytes. The function copies
        // both.
        unsafe {
            rust_do_trace_verbena_device(device.as_char_ptr(), what.as_ptr(), len(what), syndrome)
        };
    }
}
