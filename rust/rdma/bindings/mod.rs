// SPDX-License-Identifier: GPL-2.0

//! Bindings to the RDMA C headers.
//!
//! Only the declarations of `<rdma/*.h>` are generated here. Every other C type is the one of
//! [`kernel::bindings`], so that values can be passed between this crate and `kernel`.

#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::multiple_unsafe_ops_per_block,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unknown_lints,
    unnecessary_transmutes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

mod raw {
    #[allow(unused_imports)]
    use kernel::{
        bindings::*,
        ffi, //
    };
    use pin_init::{
        MaybeZeroable,
        Zeroable, //
    };

    // SAFETY: `__BindgenBitfieldUnit<Storage>` is a newtype around `Storage`, for which all zeroes
    // are valid.
    unsafe impl<Storage> Zeroable for __BindgenBitfieldUnit<Storage> where Storage: Zeroable {}

    include!(env!("RDMA_BINDINGS"));
}

pub(crate) use raw::*;
