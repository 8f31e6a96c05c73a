// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Destroying an object: when it is dropped, or explicitly by a caller that handles the error.
//! After an error the object is returned to that caller.
#![allow(unsafe_code)]

use super::bindings::*;
use super::context::{Context, Pd};
use super::cq::{Channel, Cq};
use super::domains::{dealloc_td, Td};
use super::mr::Mr;
use super::mw::{dealloc_mw, Mw};
use super::qp::{Ah, Qp, Srq};
use super::sys::{note_drop, Errno};
use super::xrc::{close_xrcd, XrcTarget, Xrcd};
use std::sync::Arc;

/// An object that a test can destroy explicitly.
pub trait Destroy: Sized {
    /// Destroys the object. After an error the object is unchanged.
    fn destroy(self) -> Result<(), (Errno, Self)>;
}

/// Implements [`Destroy`] for an object with one owner.
macro_rules! owned {
    ($type:ty, $verb:ident) => {
        impl Destroy for $type {
            fn destroy(mut self) -> Result<(), (Errno, Self)> {
                // SAFETY: the object is valid. On success the pointer is cleared, so that `Drop`,
                // the only code that still accesses the object, does nothing.
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

/// Implements [`Destroy`] for an object that several owners may share; the result is EBUSY while
/// there are several.
macro_rules! shared {
    ($type:ty, $verb:ident) => {
        impl Destroy for Arc<$type> {
            fn destroy(mut self) -> Result<(), (Errno, Self)> {
                let Some(only) = Arc::get_mut(&mut self) else {
                    return Err((Errno::EBUSY, self));
                };
                // SAFETY: as above; `only` is the only reference to the object.
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

/// Implements the common properties of all objects: they are usable from any thread, and destroyed
/// when they are dropped.
macro_rules! object {
    ($type:ty, $verb:ident, $what:literal) => {
        // SAFETY: libibverbs objects may be used from any thread.
        unsafe impl Send for $type {}
        // SAFETY: as above; the library and the provider lock the data that threads share.
        unsafe impl Sync for $type {}

        impl Drop for $type {
            fn drop(&mut self) {
                if self.raw.is_null() {
                    return;
                }
                // SAFETY: the object is valid and is destroyed once. Every object made from it
                // holds an `Arc` to it, so none of those exists any more.
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
object!(XrcTarget, ibv_destroy_qp, "XRC target");
object!(Xrcd, close_xrcd, "XRC domain");

owned!(Qp, ibv_destroy_qp);
owned!(XrcTarget, ibv_destroy_qp);
shared!(Xrcd, close_xrcd);
owned!(Mr, ibv_dereg_mr);
owned!(Mw, dealloc_mw);
owned!(Ah, ibv_destroy_ah);
shared!(Pd, ibv_dealloc_pd);
shared!(Td, dealloc_td);
shared!(Cq, ibv_destroy_cq);
shared!(Srq, ibv_destroy_srq);
shared!(Channel, ibv_destroy_comp_channel);
