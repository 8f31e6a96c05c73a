// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The server's side of the vfio-user protocol, as far as a PCI device without mappable regions
//! needs it.
//!
//! QEMU is the client: it queries the device's regions and interrupts, hands over guest RAM as file
//! descriptors (DMA_MAP) and eventfds for the interrupts (SET_IRQS), and turns the guest's accesses
//! to BARs and configuration space into REGION_READ and REGION_WRITE. As no region can be mapped,
//! writes to memory BARs are posted messages, without a reply. The server handles messages one
//! after the other, in order.
//!
//! Every message is a header of 16 bytes and a payload, all little endian; descriptors travel
//! beside the header. An invalid message is answered with an error, and the payload of an unknown
//! command is skipped, so the stream stays in step. Specification: `docs/interop/vfio-user.rst` of
//! QEMU.

use crate::guest_ram::MAX_REGIONS;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Index of the configuration space among the regions; a BAR has its number as index.
pub const REGION_CONFIG: u32 = 7;
/// Number of regions of a PCI device: 6 BARs, ROM, configuration space, VGA.
const NUM_REGIONS: u32 = 9;
/// Index of MSI-X among the kinds of interrupts.
pub const IRQ_MSIX: u32 = 2;
/// Number of kinds of interrupts of a PCI device: INTx, MSI, MSI-X. The kinds that VFIO adds
/// (errors, unplug requests) do not exist here. QEMU accepts that silently only if a query for them
/// is answered with an error.
const NUM_IRQS: u32 = 3;

const HEADER: usize = 16;
/// Largest number of descriptors with one message.
const MAX_FDS: usize = 16;
/// Largest number of bytes of one region access.
const MAX_DATA: usize = 1 << 20;
/// Length of the longest message: an access with its header and the access's own fields, rounded
/// up.
const MAX_MESSAGE: usize = MAX_DATA + 4096;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const GET_INFO: u16 = 4;
const GET_REGION_INFO: u16 = 5;
const GET_IRQ_INFO: u16 = 7;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const RESET: u16 = 13;

const FLAG_TYPE: u32 = 0xf;
const FLAG_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

const INFO_RESET: u32 = 1 << 0;
const INFO_PCI: u32 = 1 << 1;
const REGION_READ_WRITE: u32 = 3;
const IRQ_EVENTFD: u32 = 1 << 0;
const DMA_WRITE: u32 = 1 << 1;
const UNMAP_ALL: u32 = 1 << 1;
const SET_IRQS_EVENTFD: u32 = 1 << 2;
const SET_IRQS_TRIGGER: u32 = 1 << 5;

/// A range of guest memory that the client offers.
#[derive(Debug)]
pub struct DmaMap {
    /// Guest address of the range.
    pub addr: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Offset of the range in `fd`.
    pub offset: u64,
    /// True if the device may write to the range.
    pub writable: bool,
    /// File with the memory, if the client shares it.
    pub fd: Option<OwnedFd>,
}

/// The PCI device that the protocol serves. An `Err` becomes an error reply; it never ends the
/// connection.
pub trait PciDevice {
    /// Returns the size of a region in bytes, or 0 if there is no such region.
    fn region_size(&self, region: u32) -> u64;
    /// Returns the number of MSI-X vectors.
    fn vectors(&self) -> u32;
    /// Reads `data.len()` bytes inside a region.
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()>;
    /// Writes `data` inside a region.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Adds a range of guest memory to the device's map.
    fn dma_map(&mut self, map: DmaMap) -> io::Result<()>;
    /// Removes a range (address and length) from the device's map, or everything for `None`;
    /// returns after the last access to it has ended.
    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> io::Result<()>;
    /// Sets the eventfd of a vector, or removes it for `None`.
    fn set_vector(&mut self, vector: u32, eventfd: Option<OwnedFd>);
    /// Resets the device.
    fn reset(&mut self) -> io::Result<()>;
}

/// A reader of little-endian fields from a payload.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn bytes(&mut self, len: usize) -> io::Result<&'a [u8]> {
        if len > self.0.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (now, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(now)
    }

    fn u16(&mut self) -> io::Result<u16> {
        let b = self.bytes(2)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> io::Result<u32> {
        let b = self.bytes(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }
}

struct MessageHeader {
    id: u16,
    command: u16,
    size: usize,
    flags: u32,
}

/// A received message without its header.
struct Message<'a> {
    command: u16,
    payload: &'a [u8],
    fds: Vec<OwnedFd>,
}

/// Serves `device` until the client disconnects (`Ok`) or the stream cannot be understood any more
/// (`Err`).
pub fn serve(mut stream: UnixStream, device: &mut impl PciDevice) -> io::Result<()> {
    let mut payload = Vec::new();
    let mut reply = Vec::new();
    loop {
        let mut fds = Vec::new();
        let Some(header) = receive_header(&mut stream, &mut fds)? else {
            return Ok(());
        };
        payload.resize(header.size - HEADER, 0);
        match stream.read_exact(&mut payload) {
            Err(e) if is_disconnect(&e) => return Ok(()),
            other => other?,
        }
        if header.flags & FLAG_TYPE != 0 {
            // This side sends no requests, so a reply is unexpected and is ignored.
            continue;
        }
        reply.clear();
        reply.resize(HEADER, 0);
        let message = Message {
            command: header.command,
            payload: &payload,
            fds,
        };
        let result = dispatch(device, message, &mut reply);
        if let Err(e) = &result {
            let asks = header.command == GET_IRQ_INFO;
            let level = if asks {
                log::Level::Debug
            } else {
                log::Level::Warn
            };
            log::log!(level, "vfio-user: command {} failed: {e}", header.command);
            reply.truncate(HEADER);
        }
        if header.flags & FLAG_NO_REPLY != 0 {
            continue;
        }
        fill_header(&mut reply, &header, result.err());
        match stream.write_all(&reply) {
            Err(e) if is_disconnect(&e) => return Ok(()),
            other => other?,
        }
    }
}

fn is_disconnect(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn fill_header(reply: &mut [u8], request: &MessageHeader, error: Option<io::Error>) {
    let (flags, errno) = match error {
        None => (FLAG_REPLY, 0),
        Some(e) => (FLAG_REPLY | FLAG_ERROR, errno(&e)),
    };
    reply[0..2].copy_from_slice(&request.id.to_le_bytes());
    reply[2..4].copy_from_slice(&request.command.to_le_bytes());
    let size = reply.len() as u32;
    reply[4..8].copy_from_slice(&size.to_le_bytes());
    reply[8..12].copy_from_slice(&flags.to_le_bytes());
    reply[12..16].copy_from_slice(&errno.to_le_bytes());
}

fn errno(e: &io::Error) -> u32 {
    let fallback = match e.kind() {
        io::ErrorKind::Unsupported => rustix::io::Errno::NOTSUP,
        io::ErrorKind::AlreadyExists => rustix::io::Errno::EXIST,
        _ => rustix::io::Errno::INVAL,
    };
    e.raw_os_error().unwrap_or(fallback.raw_os_error()) as u32
}

/// Receives a header and the descriptors beside it. The descriptors come with the message's first
/// byte, so a read of exactly the header never takes those of another message. Returns `None` when
/// the client has disconnected.
fn receive_header(
    stream: &mut UnixStream,
    fds: &mut Vec<OwnedFd>,
) -> io::Result<Option<MessageHeader>> {
    let mut bytes = [0; HEADER];
    let mut filled = 0;
    while filled < HEADER {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut bytes[filled..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&*stream, &mut buffers, &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) if is_disconnect(&e.into()) => return Ok(None),
            other => other?,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other(
                "a message has more file descriptors than the version reply allows",
            ));
        }
        if received.bytes == 0 {
            if filled != 0 {
                log::debug!("vfio-user: the stream ends within a header");
            }
            return Ok(None);
        }
        filled += received.bytes;
    }
    let mut fields = FieldReader(&bytes);
    let header = MessageHeader {
        id: fields.u16()?,
        command: fields.u16()?,
        size: fields.u32()? as usize,
        flags: fields.u32()?,
    };
    if header.size < HEADER || header.size > MAX_MESSAGE {
        return Err(io::Error::other(format!(
            "a message of {} bytes: the length must be from {HEADER} to {MAX_MESSAGE}",
            header.size
        )));
    }
    Ok(Some(header))
}

fn dispatch(
    device: &mut impl PciDevice,
    message: Message<'_>,
    reply: &mut Vec<u8>,
) -> io::Result<()> {
    let mut fields = FieldReader(message.payload);
    match message.command {
        VERSION => version(&mut fields, reply),
        DMA_MAP => {
            let _argsz = fields.u32()?;
            let flags = fields.u32()?;
            device.dma_map(DmaMap {
                offset: fields.u64()?,
                addr: fields.u64()?,
                len: fields.u64()?,
                writable: flags & DMA_WRITE != 0,
                fd: message.fds.into_iter().next(),
            })
        }
        DMA_UNMAP => {
            let _argsz = fields.u32()?;
            let flags = fields.u32()?;
            let range = (fields.u64()?, fields.u64()?);
            device.dma_unmap((flags & UNMAP_ALL == 0).then_some(range))?;
            // The reply repeats the request.
            reply.extend_from_slice(&message.payload[..24]);
            Ok(())
        }
        GET_INFO => {
            put(reply, &[16, INFO_RESET | INFO_PCI, NUM_REGIONS, NUM_IRQS]);
            Ok(())
        }
        GET_REGION_INFO => {
            let _argsz_flags = fields.u64()?;
            let region = fields.u32()?;
            if region >= NUM_REGIONS {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let size = device.region_size(region);
            let flags = if size == 0 { 0 } else { REGION_READ_WRITE };
            put(
                reply,
                &[32, flags, region, 0, size as u32, (size >> 32) as u32, 0, 0],
            );
            Ok(())
        }
        GET_IRQ_INFO => {
            let _argsz_flags = fields.u64()?;
            let index = fields.u32()?;
            if index >= NUM_IRQS {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let count = if index == IRQ_MSIX {
                device.vectors()
            } else {
                0
            };
            put(reply, &[16, IRQ_EVENTFD, index, count]);
            Ok(())
        }
        SET_IRQS => set_irqs(device, &mut fields, message.fds),
        REGION_READ | REGION_WRITE => {
            let offset = fields.u64()?;
            let region = fields.u32()?;
            let count = fields.u32()?;
            let size = device.region_size(region);
            let room = size.checked_sub(offset);
            if count as usize > MAX_DATA || room.is_none_or(|room| u64::from(count) > room) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            reply.extend_from_slice(&message.payload[..16]);
            if message.command == REGION_WRITE {
                return device.write(region, offset, fields.bytes(count as usize)?);
            }
            let start = reply.len();
            reply.resize(start + count as usize, 0);
            device.read(region, offset, &mut reply[start..])
        }
        RESET => device.reset(),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn put(reply: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        reply.extend_from_slice(&word.to_le_bytes());
    }
}

/// Replies with version 0.1 and the limits of this side, to which the client adapts.
fn version(fields: &mut FieldReader<'_>, reply: &mut Vec<u8>) -> io::Result<()> {
    let (major, minor) = (fields.u16()?, fields.u16()?);
    log::debug!("vfio-user: the client speaks {major}.{minor}");
    if major != 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    reply.extend_from_slice(&[0, 0, minor.min(1) as u8, 0]);
    let capabilities = serde_json::json!({
        "capabilities": {
            "max_msg_fds": MAX_FDS,
            "max_data_xfer_size": MAX_DATA,
            "max_dma_maps": MAX_REGIONS,
        },
    });
    reply.extend_from_slice(capabilities.to_string().as_bytes());
    reply.push(0);
    Ok(())
}

/// Sets the eventfds of a range of vectors, one for each vector, or removes them if there are none.
/// Other kinds of interrupts do not exist, and the client does the masking.
fn set_irqs(
    device: &mut impl PciDevice,
    fields: &mut FieldReader<'_>,
    fds: Vec<OwnedFd>,
) -> io::Result<()> {
    let _argsz = fields.u32()?;
    let flags = fields.u32()?;
    let index = fields.u32()?;
    let start = fields.u32()?;
    let count = fields.u32()?;
    log::debug!(
        "vfio-user: SET_IRQS {index} {flags:#x} {start}+{count}, {} fds",
        fds.len()
    );
    if index != IRQ_MSIX || flags & SET_IRQS_TRIGGER == 0 {
        return if count == 0 {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        };
    }
    let vectors = device.vectors();
    if start > vectors || count > vectors - start {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if flags & SET_IRQS_EVENTFD == 0 || fds.is_empty() {
        // A count of 0 stands for all vectors.
        let end = if count == 0 { vectors } else { start + count };
        (start..end).for_each(|vector| device.set_vector(vector, None));
        return Ok(());
    }
    if fds.len() != count as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (vector, fd) in (start..).zip(fds) {
        device.set_vector(vector, Some(fd));
    }
    Ok(())
}
