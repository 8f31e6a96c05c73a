// SPDX-License-Identifier: GPL-2.0

//! The creation of an object, from the initialization of its fields until its owner has it.

use super::{
    Managed,
    Object, //
};
use crate::udata::Caller;
use core::mem::ManuallyDrop;
use kernel::{
    prelude::*,
    sync::atomic::Release, //
};

/// An object that is initialized but that no other code knows yet.
///
/// # Invariants
///
/// All fields of the object are initialized, and the object is alive.
pub(crate) struct Draft<O: Object>(*mut O::Raw);

impl<O: Object> Draft<O> {
    /// # Safety
    ///
    /// All fields of `raw` must be initialized, and the object must be alive, and used by no other
    /// code, until the draft is started or dropped.
    pub(super) unsafe fn new(raw: *mut O::Raw) -> Self {
        // INVARIANT: The caller promises that the fields are initialized and the object is alive.
        Self(raw)
    }

    /// Lets `start` create the object in the device, then finishes the response. After an error the
    /// object is dropped. If the response fails and the device then cannot destroy the object, the
    /// memory that the device was given is leaked.
    pub(crate) fn start(
        self,
        caller: &Caller<'_, O::Driver>,
        start: impl FnOnce(&Managed<O>) -> Result,
    ) -> Result {
        caller.finish_input()?;
        // SAFETY: By the type invariant all fields are initialized and the object is alive.
        start(unsafe { Managed::from_raw(self.0) })?;
        match caller.finish_output() {
            Ok(()) => self.know(),
            Err(e) => {
                // SAFETY: By the type invariant all fields are initialized. The draft is not
                // dropped, so the object is not used afterwards.
                unsafe { Managed::<O>::undo(ManuallyDrop::new(self).0) };
                return Err(e);
            }
        }
        Ok(())
    }

    /// Does the same as [`start`](Self::start), but finishes the response before it calls `start`.
    /// This is for objects whose response has no driver data, and which may be in use, so that they
    /// cannot be destroyed, as soon as they are known. After an error the object is dropped.
    pub(crate) fn start_answered(
        self,
        caller: &Caller<'_, O::Driver>,
        start: impl FnOnce(&Managed<O>) -> Result,
    ) -> Result {
        caller.finish_input()?;
        caller.finish_output()?;
        // SAFETY: By the type invariant all fields are initialized and the object is alive.
        start(unsafe { Managed::from_raw(self.0) })?;
        self.know();
        Ok(())
    }

    /// Marks the object as known to its owner. The create op cannot fail after this.
    fn know(self) {
        let raw = ManuallyDrop::new(self).0;
        // SAFETY: By the type invariant all fields are initialized. The op outlives this reference.
        unsafe { Managed::<O>::from_raw(raw) }
            .known
            .store(true, Release);
    }
}

impl<O: Object> Drop for Draft<O> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant all fields are initialized. No other code uses the object.
        unsafe { Managed::<O>::drop_parts(self.0) };
    }
}
