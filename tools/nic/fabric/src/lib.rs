// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An InfiniBand subnet without I/O. So far it has the management datagrams (MADs) to the bit.

#![forbid(unsafe_code)]

pub mod mad;
