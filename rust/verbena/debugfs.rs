// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs for administrators of the device: `verbena-ADDRESS/`, by PCI address.
//!
//! | file | content |
//! | --- | --- |
//! | `commands` | the state of the command queue, and the outstanding commands |
//! | `event_queues` | the number of entries taken from each queue, and whether another waits |
//! | `inject` | accepts a fault: `send QPN STATUS`, `srq SRQN`, `cq CQN` or `device` |

use crate::{
    abi::{
        cmd::{
            FaultKind,
            InjectFault, //
            FEATURE_FAULTS,
        },
        Le32, //
    },
    cmdq::CommandError,
    hw::DeviceResources,
    verbs::VerbsDevice, //
};
use base::errno::eopnotsupp;
use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    fmt,
    prelude::*,
    str::CString,
    sync::Arc,
    uaccess::UserSliceReader, //
};

/// Length limit of a line that requests a fault, in bytes.
const MAX_LINE: usize = 64;

/// Files of one life of the device. They are removed before the life ends.
pub(crate) struct DebugFiles {
    _files: [Pin<KBox<File<Arc<VerbsDevice>>>>; 3],
}

impl DebugFiles {
    /// Creates the files for a life.
    pub(crate) fn new(resources: &DeviceResources, vdev: &Arc<VerbsDevice>) -> Result<Self> {
        let device: &kernel::device::Device = (*resources.pdev).as_ref();
        let name = CString::try_from_fmt(fmt!("verbena-{}", device.name()))?;
        let dir = Dir::new(&name);
        let data = || Ok::<_, Error>(vdev.clone());
        let commands = dir.read_callback_file(c"commands", data(), &commands);
        let queues = dir.read_callback_file(c"event_queues", data(), &event_queues);
        let inject = dir.write_callback_file(c"inject", data(), &inject);
        Ok(Self {
            _files: [
                KBox::pin_init::<Error>(commands, GFP_KERNEL)?,
                KBox::pin_init::<Error>(queues, GFP_KERNEL)?,
                KBox::pin_init::<Error>(inject, GFP_KERNEL)?,
            ],
        })
    }
}

fn commands(vdev: &Arc<VerbsDevice>, to: &mut fmt::Formatter<'_>) -> fmt::Result {
    vdev.cmdq.show(to)
}

fn event_queues(vdev: &Arc<VerbsDevice>, to: &mut fmt::Formatter<'_>) -> fmt::Result {
    vdev.events.show(to)
}

/// Injects the fault that a line of a few words describes. Returns `E2BIG` for a line that is too
/// long, and `EINVAL` for any other mistake in it.
fn inject(vdev: &Arc<VerbsDevice>, from: &mut UserSliceReader) -> Result {
    let mut bytes = [0u8; MAX_LINE];
    let line = bytes.get_mut(..from.len()).ok_or(E2BIG)?;
    from.read_slice(line)?;
    let request = parse(line).ok_or(EINVAL)?;
    if !vdev.has(FEATURE_FAULTS) {
        return Err(eopnotsupp());
    }
    dev_info!(
        vdev.pdev,
        "injecting a fault: kind {}, number {}, status {}\n",
        request.kind,
        request.number.get(),
        request.status
    );
    match vdev.cmdq.exec(&request) {
        // A device that has died of the fault does not answer.
        Err(CommandError::Dead) if request.kind == FaultKind::Device.to_raw() => Ok(()),
        result => result.map(|_| ()).map_err(Error::from),
    }
}

fn parse(line: &[u8]) -> Option<InjectFault> {
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let kind = match words.next()? {
        b"send" => FaultKind::Send,
        b"srq" => FaultKind::Srq,
        b"cq" => FaultKind::Cq,
        b"device" => FaultKind::Device,
        _ => return None,
    };
    let mut number = || -> Option<u32> { core::str::from_utf8(words.next()?).ok()?.parse().ok() };
    let (number, status) = match kind {
        FaultKind::Device => (0, 0),
        FaultKind::Send => (number()?, u8::try_from(number()?).ok()?),
        FaultKind::Srq | FaultKind::Cq => (number()?, 0),
    };
    words.next().is_none().then(|| InjectFault {
        kind: kind.to_raw(),
        status,
        number: Le32::new(number),
        ..Default::default()
    })
}
