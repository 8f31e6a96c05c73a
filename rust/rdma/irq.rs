// SPDX-License-Identifier: GPL-2.0

//! Interrupts: all MSI-X vectors of a device, each with a handler of its own.
//!
//! `kernel::pci` reaches the first and the last vector of a range only.

use crate::{
    bind::Binding,
    bindings, //
};
use kernel::{
    bindings as kbindings,
    error::to_result,
    prelude::*,
    str::CString,
    sync::Arc, //
};

/// What an interrupt does.
pub trait Handler: Send + Sync + 'static {
    /// Runs in interrupt context, or in a thread: see [`Vectors::request`] and
    /// [`Vectors::request_threaded`]. Never concurrently with itself for one vector.
    fn handle(&self);
}

/// The vectors of a device.
pub struct Vectors {
    binding: Binding,
    count: u32,
}

impl Vectors {
    /// Allocates between `min` and `max` vectors. Once at a time for a device.
    pub fn alloc(binding: &Binding, min: u32, max: u32) -> Result<Arc<Self>> {
        let n = binding
            .with(|| {
                // SAFETY: The device is bound.
                unsafe {
                    kbindings::pci_alloc_irq_vectors(
                        binding.raw_pci(),
                        min,
                        max,
                        kbindings::PCI_IRQ_MSIX,
                    )
                }
            })
            .ok_or(ENODEV)?;
        to_result(n.min(0))?;
        let this = Self {
            binding: binding.clone(),
            count: n.try_into()?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Number of vectors.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Lets `handler` run in interrupt context when vector `index` fires. It runs on a CPU chosen by
    /// the index, so that vectors spread.
    pub fn request<H: Handler>(
        this: &Arc<Self>,
        index: u32,
        name: &CStr,
        handler: Arc<H>,
    ) -> Result<Irq<H>> {
        Irq::new(this, index, name, handler, false)
    }

    /// As [`request`](Self::request), but `handler` runs in a thread, where it may sleep.
    pub fn request_threaded<H: Handler>(
        this: &Arc<Self>,
        index: u32,
        name: &CStr,
        handler: Arc<H>,
    ) -> Result<Irq<H>> {
        Irq::new(this, index, name, handler, true)
    }
}

impl Drop for Vectors {
    fn drop(&mut self) {
        let freed = self.binding.with(|| {
            // SAFETY: The device is bound; each handler holds a reference to this, so none is left.
            unsafe { kbindings::pci_free_irq_vectors(self.binding.raw_pci()) }
        });
        if freed.is_none() {
            pr_err!("interrupt vectors outlived the driver's binding\n");
        }
    }
}

/// A handler at work; dropping it waits until the handler does not run.
///
/// Must not be dropped by the handler itself.
pub struct Irq<H: Handler> {
    irq: c_uint,
    index: u32,
    cookie: Pin<KBox<Cookie<H>>>,
    /// Keeps the vectors until the interrupt is freed.
    _vectors: Arc<Vectors>,
}

struct Cookie<H> {
    handler: Arc<H>,
    /// `/proc/interrupts` shows it as long as the interrupt is requested.
    name: CString,
}

impl<H: Handler> Irq<H> {
    fn new(
        vectors: &Arc<Vectors>,
        index: u32,
        name: &CStr,
        handler: Arc<H>,
        threaded: bool,
    ) -> Result<Self> {
        if index >= vectors.count {
            return Err(EINVAL);
        }
        let cookie = KBox::pin(
            Cookie {
                handler,
                name: CString::try_from(name)?,
            },
            GFP_KERNEL,
        )?;
        let raw: *const Cookie<H> = &*cookie;
        let irq = vectors
            .binding
            .with(|| {
                // SAFETY: The device is bound, and has the vector.
                let irq = unsafe { kbindings::pci_irq_vector(vectors.binding.raw_pci(), index) };
                let irq = c_uint::try_from(irq)?;
                let run: unsafe extern "C" fn(c_int, *mut c_void) -> kbindings::irqreturn_t =
                    Self::run;
                let (hard, thread, flags) = if threaded {
                    (None, Some(run), c_ulong::try_from(kbindings::IRQF_ONESHOT)?)
                } else {
                    (Some(run), None, 0)
                };
                // SAFETY: The cookie and the name live until the interrupt is freed.
                to_result(unsafe {
                    kbindings::request_threaded_irq(
                        irq,
                        hard,
                        thread,
                        flags,
                        cookie.name.as_char_ptr(),
                        raw.cast_mut().cast(),
                    )
                })?;
                Ok::<_, Error>(irq)
            })
            .ok_or(ENODEV)??;
        if !threaded {
            // Only a wish: it does not matter if it is not granted.
            //
            // SAFETY: A requested interrupt.
            let _ = unsafe { bindings::verbena_irq_spread(irq, index) };
        }
        Ok(Self {
            irq,
            index,
            cookie,
            _vectors: vectors.clone(),
        })
    }

    /// # Safety
    ///
    /// Only for the interrupt core, with a cookie of this type.
    unsafe extern "C" fn run(_irq: c_int, cookie: *mut c_void) -> kbindings::irqreturn_t {
        // SAFETY: The cookie lives until the interrupt is freed.
        let cookie = unsafe { &*cookie.cast::<Cookie<H>>() };
        cookie.handler.handle();
        kbindings::irqreturn_IRQ_HANDLED
    }

    /// Index of the vector.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Waits until a handler that runs now is done.
    pub fn synchronize(&self) {
        // SAFETY: A requested interrupt.
        unsafe { kbindings::synchronize_irq(self.irq) };
    }
}

impl<H: Handler> Drop for Irq<H> {
    fn drop(&mut self) {
        let raw: *const Cookie<H> = &*self.cookie;
        // SAFETY: Requested with this cookie; afterwards no handler runs any more. The vectors, and
        // with them the number, are kept by `_vectors`.
        unsafe {
            bindings::verbena_irq_unspread(self.irq);
            kbindings::free_irq(self.irq, raw.cast_mut().cast());
        }
    }
}
