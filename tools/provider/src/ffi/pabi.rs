// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The private ABI of libibverbs that this library is built for. [`crate::release`] has the table
//! of all private ABIs, and the reasons to refuse some libraries.
//!
//! libibverbs opens the file `libverbena-rdmavN.so`, in which N is the number of its private ABI. A
//! machine may have the files of several. All have the same source. They differ in the generated
//! bindings (`scripts/provider-bindings`) and in the version node of their symbols (`build.rs`).

pub use super::bindings::*;

// Bindings that are generated from other headers than those of the release that they name fail
// here.
const _: () = {
    let layout = crate::release::OURS;
    assert!(size_of::<verbs_context_ops>() == layout.operations * size_of::<usize>());
    // The layout is that of x86-64. The mutex of a queue pair comes before this member.
    let longer = size_of::<libc::pthread_mutex_t>() - 40;
    assert!(core::mem::offset_of!(verbs_qp, comp_mask) == layout.comp_mask + longer);
};
