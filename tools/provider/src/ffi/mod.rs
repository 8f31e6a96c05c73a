// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The boundary between C and the safe part of the provider. All of the provider's `unsafe` is in
//! this folder.
//!
//! | file | contents |
//! | --- | --- |
//! | `bindings` | generated: libibverbs' private structures and functions, in a file for each private ABI |
//! | [`pabi`] | the private ABI that this library is built for |
//! | [`memory`] | mappings, doorbell areas, rings |
//! | [`lock`] | the lock of a queue |
//! | [`wr`] | work requests as C passes them |
//! | [`object`] | objects that C holds by pointer |
//! | [`address`] | address vectors |
//! | [`options`] | checks of the options that programs request |
//! | `commands` | functions of libibverbs whose arguments differ between releases |
//! | `device` | registration with libibverbs, opening a device, the table of operations |
//! | `verbs`, `domains`, `queues`, `srqs`, `windows`, `xrc` | verbs that create, change, destroy |
//! | `data` | post, poll, arm |
//! | `poll_ex`, `post_ex` | the extended interfaces for post and poll |

// The generated file asserts sizes and offsets for these architectures only, and they differ:
// `pthread_mutex_t` has 40 bytes on x86-64 and 48 on arm64.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_env = "gnu"
)))]
compile_error!(
    "the generated bindings of libibverbs (tools/provider/src/ffi/vN.rs) are those of Linux with glibc on x86-64 and arm64: \
     add this target to scripts/provider-bindings first"
);

pub mod address;
pub mod lock;
pub mod memory;
#[cfg(test)]
pub mod mock;
pub mod object;
pub mod options;
pub mod pabi;
pub mod wr;

// Unit tests run without libibverbs, so no code in them may refer to its functions.
#[cfg(not(test))]
mod commands;
#[cfg(not(test))]
mod data;
#[cfg(not(test))]
mod device;
#[cfg(not(test))]
mod domains;
#[cfg(not(test))]
mod poll_ex;
#[cfg(not(test))]
mod post_ex;
#[cfg(not(test))]
mod queues;
#[cfg(not(test))]
mod srqs;
#[cfg(not(test))]
mod verbs;
#[cfg(not(test))]
mod windows;
#[cfg(not(test))]
mod xrc;

#[allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unused_imports,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block
)]
mod bindings {
    include!(env!("VERBENA_BINDINGS"));
}
