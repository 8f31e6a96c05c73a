// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Ethernet side: a guest's ordinary network card, which shares the port and the MAC address.
//!
//! QEMU connects its `-netdev stream` to the NIC's UNIX socket; each frame is preceded by its
//! length, 4 bytes, big endian. The [switch](crate::switch) decides on the destinations; frames for
//! the guest go through the [queue](crate::netdev_queue).

use crate::network::Network;
use crate::uplink::MAX_FRAME;
use std::io::{self, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};

/// Serves the connections of a VM, one after the other, for ever.
pub fn serve(listener: &UnixListener, network: &Network, vm: u8) {
    for stream in listener.incoming() {
        let result = stream.and_then(|stream| receive(stream, network, vm));
        connect(network, vm, None);
        match result {
            Ok(()) => log::debug!("netdev: the guest's Ethernet has disconnected"),
            Err(e) => log::warn!("netdev: {e}"),
        }
    }
}

fn connect(network: &Network, vm: u8, stream: Option<UnixStream>) {
    if let Some(queue) = network.netdev_queue(vm) {
        queue.connect(stream);
    }
}

fn receive(stream: UnixStream, network: &Network, vm: u8) -> io::Result<()> {
    log::debug!("netdev: the guest's Ethernet is connected");
    connect(network, vm, Some(stream.try_clone()?));
    let mut stream = BufReader::with_capacity(MAX_FRAME, stream);
    let mut frame = Vec::new();
    loop {
        let mut length = [0; 4];
        match stream.read_exact(&mut length) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_FRAME {
            return Err(io::Error::other(format!(
                "a frame of {length} bytes, at most {MAX_FRAME} are possible: the connection ends"
            )));
        }
        frame.resize(length, 0);
        stream.read_exact(&mut frame)?;
        network.from_guest(vm, &frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm_state::VmState;
    use std::io::Write;
    use std::sync::atomic::Ordering;
    use std::sync::Arc;

    fn network(shared: &Arc<VmState>) -> Network {
        Network::new(
            &shared.process,
            &[(shared.clone(), [2, 0, 0, 0, 0, 1])],
            vec![],
        )
    }

    #[test]
    fn frames_without_a_destination_are_counted() {
        let shared = Arc::new(VmState::new().unwrap());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for _ in 0..2 {
            theirs.write_all(&60u32.to_be_bytes()).unwrap();
            theirs.write_all(&[2; 60]).unwrap();
        }
        drop(theirs);
        receive(ours, &network(&shared), 0).unwrap();
        assert_eq!(
            shared
                .process
                .counters
                .uplink_dropped
                .load(Ordering::Relaxed),
            2
        );
        assert_eq!(shared.counts.ethernet_frames.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_length_out_of_range_ends_the_connection() {
        let shared = Arc::new(VmState::new().unwrap());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[0xff; 8]).unwrap();
        assert!(receive(ours, &network(&shared), 0).is_err());
    }
}
