// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A client of the vfio-user protocol with the messages that the tests need.

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{mpsc, Arc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use verbena_abi::regs;
use verbena_device::memory::GuestMemory;
use verbena_device::misbehave::{self, Kind, Misbehaviour};
use verbena_device::Config;
use verbena_nic::engine::Engine;
use verbena_nic::guest_ram::GuestRam;
use verbena_nic::network::Network;
use verbena_nic::pci_function::PciFunction;
use verbena_nic::process_state::ProcessState;
use verbena_nic::vfio_user;
use verbena_nic::vm_state::{EngineRequest, VmState};

pub const BAR_REGS: u32 = regs::BAR_REGS;
pub const BAR_DOORBELL: u32 = regs::BAR_DOORBELL;
pub const CONFIG: u32 = vfio_user::REGION_CONFIG;

/// Limit for each wait, which only a failure reaches.
const PATIENCE: Duration = Duration::from_secs(20);

/// The part of the NIC that runs in this process.
struct Server {
    thread: JoinHandle<io::Result<()>>,
    shared: Arc<VmState>,
}

/// A client, with its server if that runs in this process.
pub struct Client {
    stream: UnixStream,
    server: Option<Server>,
    file: OwnedFd,
    /// The guest's view of its memory.
    pub ram: GuestRam,
}

impl Client {
    /// Starts a NIC and connects to it.
    pub fn start() -> Self {
        Self::start_all(1).remove(0)
    }

    /// Starts a NIC with `count` VMs and connects to each.
    pub fn start_all(count: u8) -> Vec<Self> {
        let process = Arc::new(ProcessState::new().unwrap());
        let new = |n| {
            let shared = VmState::with_process(&process, Misbehaviour::default());
            (Arc::new(shared), [2, 0, 0, 0, 0, n])
        };
        let vms: Vec<_> = (1..=count).map(new).collect();
        // The engine runs until the test program ends, as it does in the NIC.
        thread::spawn({
            let vms = vms.clone();
            move || {
                let network = Arc::new(Network::new(&process, &vms, vec![]));
                let config = |mac| Config {
                    mac,
                    neighbours: count > 1,
                    ..Config::default()
                };
                let vms = vms.into_iter().map(|(shared, mac)| (shared, config(mac)));
                Engine::new(vms.collect(), network).run();
            }
        });
        let clients = vms.into_iter().map(|(shared, _)| {
            let (stream, theirs) = UnixStream::pair().unwrap();
            let thread = thread::spawn({
                let shared = shared.clone();
                move || vfio_user::serve(theirs, &mut PciFunction::new(shared, None))
            });
            let mut client = Self::over(stream);
            client.server = Some(Server { thread, shared });
            client
        });
        clients.collect()
    }

    /// Returns a client of a NIC in another process.
    pub fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            server: None,
            file: memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap(),
            ram: GuestRam::new(),
        }
    }

    /// Makes the device misbehave, as a program in the guest does.
    pub fn misbehave(&mut self, kind: Kind, value: u32) {
        let offset = misbehave::CONFIG_BASE + 4 * kind as usize;
        self.write(CONFIG, offset as u64, &value.to_le_bytes())
            .unwrap();
    }

    /// Returns the remaining value of a kind of misbehaviour.
    pub fn misbehaves(&mut self, kind: Kind) -> u32 {
        let mut out = [0; 4];
        let offset = misbehave::CONFIG_BASE + 4 * kind as usize;
        self.read(CONFIG, offset as u64, &mut out).unwrap();
        u32::from_le_bytes(out)
    }

    /// Disconnects. Returns the result of the server.
    pub fn leave(self) -> io::Result<()> {
        drop(self.stream);
        self.server.unwrap().thread.join().unwrap()
    }

    fn send(&mut self, command: u16, flags: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>) {
        let mut header = Vec::new();
        header.extend_from_slice(&7u16.to_le_bytes());
        header.extend_from_slice(&command.to_le_bytes());
        header.extend_from_slice(&(16 + payload.len() as u32).to_le_bytes());
        header.extend_from_slice(&flags.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.into_iter().collect();
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let sent = sendmsg(
            &self.stream,
            &[IoSlice::new(&header)],
            &mut ancillary,
            SendFlags::empty(),
        );
        assert_eq!(sent, Ok(header.len()));
    }

    /// Sends a request. Returns the payload of the reply, or the errno of the error.
    pub fn request(
        &mut self,
        command: u16,
        payload: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<u8>, u32> {
        self.send(command, 0, payload, fd);
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), 7 | u32::from(command) << 16);
        let mut reply = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut reply).unwrap();
        match word(8) {
            1 => Ok(reply),
            0x21 => Err(word(12)),
            other => panic!("a reply with flags {other:#x}"),
        }
    }

    fn words(
        &mut self,
        command: u16,
        words: &[u32],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<u32>, u32> {
        let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let reply = self.request(command, &payload, fd)?;
        let word = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
        Ok(reply.chunks_exact(4).map(word).collect())
    }

    pub fn version(&mut self) {
        let reply = self
            .request(1, b"\0\0\0\0{\"capabilities\":{}}\0", None)
            .unwrap();
        assert_eq!(reply[..4], [0; 4]);
        assert_eq!(reply.last(), Some(&0));
        let said: serde_json::Value = serde_json::from_slice(&reply[4..reply.len() - 1]).unwrap();
        // Without this value QEMU assumes 65535, and does not report that a map is refused.
        assert_eq!(
            said["capabilities"]["max_dma_maps"],
            verbena_nic::guest_ram::MAX_REGIONS
        );
    }

    pub fn info(&mut self) -> Vec<u32> {
        self.words(4, &[16, 0, 0, 0], None).unwrap()
    }

    pub fn region_size(&mut self, region: u32) -> u64 {
        let reply = self
            .words(5, &[32, 0, region, 0, 0, 0, 0, 0], None)
            .unwrap();
        u64::from(reply[4]) | u64::from(reply[5]) << 32
    }

    pub fn irq_count(&mut self, index: u32) -> Result<u32, u32> {
        Ok(self.words(7, &[16, 0, index, 0], None)?[3])
    }

    /// Shares memory with the device, and maps it in this process too.
    pub fn dma_map(&mut self, addr: u64, len: u64) {
        ftruncate(&self.file, len).unwrap();
        fcntl_add_seals(&self.file, SealFlags::SHRINK).unwrap();
        self.ram.map(addr, len, &self.file, 0, true).unwrap();
        self.remap(addr, len);
    }

    /// Shares the same memory again.
    pub fn remap(&mut self, addr: u64, len: u64) {
        let parts = [
            addr as u32,
            (addr >> 32) as u32,
            len as u32,
            (len >> 32) as u32,
        ];
        let words = [32, 3, 0, 0, parts[0], parts[1], parts[2], parts[3]];
        let file = self.file.try_clone().unwrap();
        assert_eq!(self.words(2, &words, Some(file.as_fd())), Ok(vec![]));
    }

    pub fn dma_unmap(&mut self, addr: u64, len: u64) {
        let words = [
            24,
            0,
            addr as u32,
            (addr >> 32) as u32,
            len as u32,
            (len >> 32) as u32,
        ];
        assert_eq!(self.words(3, &words, None), Ok(words.to_vec()));
    }

    pub fn set_vector(&mut self, vector: u32, fd: &OwnedFd) {
        let words = [20, 4 | 32, 2, vector, 1];
        assert_eq!(self.words(8, &words, Some(fd.as_fd())), Ok(vec![]));
    }

    fn access(region: u32, offset: u64, count: usize) -> Vec<u8> {
        let mut payload = offset.to_le_bytes().to_vec();
        payload.extend_from_slice(&region.to_le_bytes());
        payload.extend_from_slice(&(count as u32).to_le_bytes());
        payload
    }

    pub fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), u32> {
        let reply = self.request(9, &Self::access(region, offset, out.len()), None)?;
        out.copy_from_slice(&reply[16..]);
        Ok(())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), u32> {
        let mut payload = Self::access(region, offset, data.len());
        payload.extend_from_slice(data);
        self.request(10, &payload, None).map(drop)
    }

    /// A write without a reply, as QEMU sends them to memory BARs.
    pub fn post_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let mut payload = Self::access(region, offset, data.len());
        payload.extend_from_slice(data);
        self.send(10, 1 << 4, &payload, None);
    }

    pub fn read_reg(&mut self, offset: usize) -> u32 {
        let mut out = [0; 4];
        self.read(BAR_REGS, offset as u64, &mut out).unwrap();
        u32::from_le_bytes(out)
    }

    pub fn write_reg(&mut self, offset: usize, value: u32) {
        self.post_write(BAR_REGS, offset as u64, &value.to_le_bytes());
    }

    pub fn wait_reg(&mut self, offset: usize, until: impl Fn(u32) -> bool) -> u32 {
        let start = Instant::now();
        loop {
            let value = self.read_reg(offset);
            if until(value) {
                return value;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "register {offset:#x} stays {value:#x}"
            );
            thread::sleep(Duration::from_micros(100));
        }
    }

    pub fn wait_word(&mut self, addr: u64, until: impl Fn(u32) -> bool) -> u32 {
        let start = Instant::now();
        loop {
            let value = self.ram.load32(addr).unwrap();
            if until(value) {
                return value;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the word at {addr:#x} stays {value:#x}"
            );
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until the engine has handled all messages that were sent before.
    pub fn settle(&mut self) {
        // The PCI function handles messages in order, so after this reply it has passed on all
        // earlier ones.
        self.read_reg(regs::MAGIC);
        let (to, from) = mpsc::channel();
        let shared = &self.server.as_ref().unwrap().shared;
        assert!(shared.post_request(EngineRequest::Stats(to)));
        from.recv_timeout(PATIENCE).unwrap();
    }
}
