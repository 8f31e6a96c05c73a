// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves QEMU at the sockets of all VMs, each on its own thread, until the last QEMU has
//! disconnected.
//!
//! A process with one VM serves one QEMU and no other. If there are several VMs and a QEMU
//! disconnects, the device of its VM returns to the state after power-on, and none of its guest's
//! memory stays mapped. Another QEMU can then connect to that socket, while the other VMs go on. A
//! client that connects to a socket in use waits until it is free.

use crate::pci_function::PciFunction;
use crate::vm_state::VmState;
use crate::{peer_process, vfio_user};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::Duration;

/// Pause after an error in accept.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Reports of a VM's thread.
enum VmEvent {
    /// QEMU has connected.
    Connected,
    /// QEMU has disconnected, or its messages cannot be understood.
    Disconnected(io::Result<()>),
}

/// Serves until every QEMU that has connected has disconnected; waits for the first.
///
/// # Errors
///
/// A thread cannot be started, or a message of a QEMU could not be understood.
pub fn serve(vms: Vec<(UnixListener, Arc<VmState>)>) -> io::Result<()> {
    let is_only = vms.len() == 1;
    let (sender, events) = mpsc::channel();
    for (n, (listener, shared)) in (1..).zip(vms) {
        let sender = sender.clone();
        let name = format!("vm{n}");
        thread::Builder::new().name(name).spawn(move || {
            let prefix = if is_only {
                String::new()
            } else {
                format!("VM {n}: ")
            };
            serve_vm(&prefix, listener, &shared, &sender, is_only);
        })?;
    }
    let (mut connected, mut result) = (0u32, Ok(()));
    for event in events {
        match event {
            VmEvent::Connected => connected += 1,
            VmEvent::Disconnected(ended) => {
                connected -= 1;
                result = result.and(ended);
                if connected == 0 {
                    break;
                }
            }
        }
    }
    result
}

/// Serves the QEMUs of one VM, one after the other; if the VM `is_only`, only the first.
fn serve_vm(
    prefix: &str,
    listener: UnixListener,
    shared: &Arc<VmState>,
    events: &mpsc::Sender<VmEvent>,
    is_only: bool,
) {
    let mut listener = Some(listener);
    while let Some(open) = &listener {
        let stream = match open.accept() {
            Ok((stream, _)) => stream,
            Err(e) => {
                log::error!("{prefix}{e}");
                thread::sleep(RETRY_PAUSE);
                continue;
            }
        };
        if is_only {
            // The closed socket refuses a later client at once.
            listener = None;
        }
        let _ = events.send(VmEvent::Connected);
        log::info!("{prefix}QEMU is connected");
        let result = serve_one(stream, shared);
        match &result {
            Ok(()) => log::info!("{prefix}QEMU has disconnected"),
            Err(e) if is_only => log::debug!("{e}"),
            Err(e) => log::error!("{prefix}{e}"),
        }
        let _ = events.send(VmEvent::Disconnected(result));
    }
}

fn serve_one(stream: UnixStream, shared: &Arc<VmState>) -> io::Result<()> {
    let qemu = peer_process::peer(&stream);
    let mut function = PciFunction::new(shared.clone(), qemu);
    let result = catch_unwind(AssertUnwindSafe(|| vfio_user::serve(stream, &mut function)));
    function.disconnect();
    result.unwrap_or_else(|_| Err(io::Error::other("the code that answers QEMU has panicked")))
}
