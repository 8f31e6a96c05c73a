// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Destroying an object: when it is dropped, or by hand, for who wants to see it fail: then the object is
//! returned.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{Context, Pd};
use super::cq::{Channel, Cq};
use super::domains::{dealloc_td, Td};
use super::mr::Mr;
use super::mw::{dealloc_mw, Mw};
use super::qp::{Ah, Qp, Srq};
use super::sys::{note_drop, Errno};
use super::xrc::{close_xrcd, Target, Xrcd};
use std::sync::Arc;

/// What can be destroyed.
pub trait Destroy: Sized {
    /// Destroys the object. On an error nothing has happened to it.
    fn destroy(self) -> Result<(), (Errno, Self)>;
}

/// For an object with one owner.
macro_rules! owned {
    ($type:ty, $verb:ident) => {
        impl Destroy for $type {
            fn destroy(mut self) -> Result<(), (Errno, Self)> {
                // SAFETY: a valid object; on success the pointer is cleared, so that `Drop`, the only
                // one that still sees it, leaves it alone.
                match Errno::check(unsafe { $verb(self.raw) }) {
                    Ok(()) => {
                        self.raw = std::ptr::null_mut();
                        Ok(())
                    }
                    Err(errno) => Err((errno, self)),
                }
            }
        }
    };
}

/// For an object that others may hold: EBUSY while they do.
macro_rules! shared {
    ($type:ty, $verb:ident) => {
        impl Destroy for Arc<$type> {
            fn destroy(mut self) -> Result<(), (Errno, Self)> {
                let Some(only) = Arc::get_mut(&mut self) else {
                    return Err((Errno::EBUSY, self));
                };
                // SAFETY: as above; nobody else holds the object.
                match Errno::check(unsafe { $verb(only.raw) }) {
                    Ok(()) => {
                        only.raw = std::ptr::null_mut();
                        Ok(())
                    }
                    Err(errno) => Err((errno, self)),
                }
            }
        }
    };
}

/// What all objects are: usable from any thread, and destroyed when they are dropped.
macro_rules! object {
    ($type:ty, $verb:ident, $what:literal) => {
        // SAFETY: libibverbs objects may be used from any thread.
        unsafe impl Send for $type {}
        // SAFETY: as above; the library and the provider lock what they share.
        unsafe impl Sync for $type {}

        impl Drop for $type {
            fn drop(&mut self) {
                if self.raw.is_null() {
                    return;
                }
                // SAFETY: a valid object, destroyed once. Whatever was made from it holds an `Arc` to it,
                // so that is gone.
                note_drop($what, Errno::check(unsafe { $verb(self.raw) }));
            }
        }
    };
}

object!(Context, ibv_close_device, "context");
object!(Pd, ibv_dealloc_pd, "PD");
object!(Td, dealloc_td, "TD");
object!(Mr, ibv_dereg_mr, "MR");
object!(Mw, dealloc_mw, "MW");
object!(Ah, ibv_destroy_ah, "AH");
object!(Channel, ibv_destroy_comp_channel, "channel");
object!(Cq, ibv_destroy_cq, "CQ");
object!(Srq, ibv_destroy_srq, "SRQ");
object!(Qp, ibv_destroy_qp, "QP");
object!(Target, ibv_destroy_qp, "XRC target");
object!(Xrcd, close_xrcd, "XRC domain");

owned!(Qp, ibv_destroy_qp);
owned!(Target, ibv_destroy_qp);
shared!(Xrcd, close_xrcd);
owned!(Mr, ibv_dereg_mr);
owned!(Mw, dealloc_mw);
owned!(Ah, ibv_destroy_ah);
shared!(Pd, ibv_dealloc_pd);
shared!(Td, dealloc_td);
shared!(Cq, ibv_destroy_cq);
shared!(Srq, ibv_destroy_srq);
shared!(Channel, ibv_destroy_comp_channel);
