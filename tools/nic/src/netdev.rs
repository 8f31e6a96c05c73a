// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Ethernet side: the guest's ordinary network card, which shares the port and the MAC address.
//!
//! QEMU connects its `-netdev stream` to our UNIX socket; each frame is preceded by its length, 4 bytes, big endian.
//! RoCEv2 frames go to the engine, which takes those for its own GIDs; everything else leaves through the uplink.

use crate::shared::Shared;
use crate::uplink::Uplink;
use std::io::{self, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use verbena_roce::wire::frame::is_rocev2;

/// The longest frame that QEMU sends (a segment that the guest's card was to cut).
const MAX_FRAME: usize = 68 << 10;

/// Serves one connection after the other, for ever.
pub fn serve(listener: &UnixListener, shared: &Arc<Shared>, uplink: &Uplink) {
    for stream in listener.incoming() {
        let result = stream.and_then(|stream| receive(stream, shared, uplink));
        match result {
            Ok(()) => log::debug!("netdev: the guest's Ethernet is gone"),
            Err(e) => log::warn!("netdev: {e}"),
        }
    }
}

fn receive(stream: UnixStream, shared: &Shared, uplink: &Uplink) -> io::Result<()> {
    log::debug!("netdev: the guest's Ethernet is connected");
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
            return Err(io::Error::other(format!("a frame of {length} bytes")));
        }
        frame.resize(length, 0);
        stream.read_exact(&mut frame)?;
        shared
            .counts
            .ethernet_frames
            .fetch_add(1, Ordering::Relaxed);
        if is_rocev2(&frame) {
            shared.receive(frame.clone());
        } else {
            uplink.send(&frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// UDP over IPv4, with a header checksum that is right.
    fn ipv4(port: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[17] = 46;
        frame[23] = 17;
        let sum: u32 = frame[14..34]
            .chunks(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]))
            .sum();
        frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame
    }

    #[test]
    fn frames_go_to_the_engine_or_to_the_uplink() {
        let shared = Arc::new(Shared::new().unwrap());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for frame in [ipv4(4791), ipv4(53)] {
            theirs
                .write_all(&(frame.len() as u32).to_be_bytes())
                .unwrap();
            theirs.write_all(&frame).unwrap();
        }
        drop(theirs);
        receive(ours, &shared, &Uplink::new(shared.clone())).unwrap();
        assert_eq!(shared.mail(9, false).frames.len(), 1);
        assert_eq!(shared.counts.uplink_dropped.load(Ordering::Relaxed), 1);
        assert_eq!(shared.counts.ethernet_frames.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_length_out_of_range_ends_the_connection() {
        let shared = Arc::new(Shared::new().unwrap());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[0xff; 8]).unwrap();
        assert!(receive(ours, &shared, &Uplink::new(shared.clone())).is_err());
    }
}
