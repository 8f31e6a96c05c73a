// SPDX-License-Identifier: GPL-2.0 OR MIT

//! BAR 0, the registers, and BAR 2, the doorbells. Device specification, "Registers".
//!
//! All registers have 32 bits and are accessed with 32 bits, except the clock. The data path reads
//! no register.

/// PCI vendor ID. Together with the device ID it lies in the range that the QEMU project reserves
/// for experiments.
pub const PCI_VENDOR_ID: u16 = 0x1af4;
/// PCI device ID.
pub const PCI_DEVICE_ID: u16 = 0x10f5;
/// PCI class code: network controller, InfiniBand, programming interface 0.
pub const PCI_CLASS: u32 = 0x02_0700;

/// The BAR of the registers.
pub const BAR_REGS: u32 = 0;
/// Size of the register BAR in bytes.
pub const BAR_REGS_SIZE: usize = 0x1_0000;
/// The BAR of the doorbells: one trapped page for each doorbell area.
pub const BAR_DOORBELL: u32 = 2;
/// Distance of the doorbells of neighbouring areas in bytes. Guests with pages of up to 64 KiB can
/// map each doorbell alone.
pub const DOORBELL_STRIDE: usize = 0x1_0000;
/// RO, in the page of each area: the device clock, which counts nanoseconds since power-on. It is
/// read with one access of 64 bits. [`super::cqe::Cqe::timestamp`] is a time of this clock.
pub const DOORBELL_CLOCK: usize = 0x08;
/// Largest number of doorbell areas (UARs). A driver uses at most `max_uar` of QUERY_DEVICE, at
/// most the number of pages in the doorbell BAR, and at most this number. The driver of an earlier
/// release uses the first 1024 areas of any device.
pub const NUM_UARS: u32 = 8192;
/// Size of the doorbell BAR in bytes.
pub const BAR_DOORBELL_SIZE: usize = DOORBELL_STRIDE * NUM_UARS as usize;
/// The BAR of the MSI-X table and pending bits.
pub const BAR_MSIX: u32 = 4;
/// Size of the MSI-X BAR in bytes.
pub const BAR_MSIX_SIZE: usize = 0x4000;
/// Offset of the pending bits in the MSI-X BAR.
pub const MSIX_PBA_OFFSET: usize = 0x2000;
/// Number of MSI-X vectors of the device.
pub const NUM_VECTORS: u32 = 32;

/// RO: [`MAGIC_VALUE`].
pub const MAGIC: usize = 0x00;
/// Value of [`MAGIC`]: "VRBN".
pub const MAGIC_VALUE: u32 = 0x4e42_5256;
/// RO: ABI versions that the device supports: the oldest in bits 31:16, the newest in bits 15:0.
pub const VERSION: usize = 0x04;
/// RO: [`STATUS_READY`], [`STATUS_FATAL`], [`STATUS_RESETTING`].
pub const STATUS: usize = 0x08;
/// WO: [`CONTROL_RESET`].
pub const CONTROL: usize = 0x0c;
/// RW: ABI version that the driver has chosen. The driver must write a version in the range of
/// [`VERSION`] before it writes [`CMDQ_ENABLE`].
pub const VERSION_SELECT: usize = 0x10;
/// RO: number of MSI-X vectors.
pub const VECTORS: usize = 0x14;
/// RO: syndrome of the fatal error while [`STATUS_FATAL`] is set, else 0.
pub const FATAL_SYNDROME: usize = 0x18;
/// RW: bits 31:0 of the DMA address of the command slots (page aligned).
pub const CMDQ_BASE_LO: usize = 0x20;
/// RW: bits 63:32 of the DMA address of the command slots.
pub const CMDQ_BASE_HI: usize = 0x24;
/// RW: number of command slots, 1 to [`CMDQ_MAX_SLOTS`].
pub const CMDQ_SLOTS: usize = 0x28;
/// WO: 1 enables the command queue. After that, [`STATUS`] shows [`STATUS_READY`], or
/// [`STATUS_FATAL`] after a failure.
pub const CMDQ_ENABLE: usize = 0x2c;
/// WO: the index of the slot that holds a new request.
pub const CMDQ_DOORBELL: usize = 0x30;
/// RO: increases at least once a second while the engine runs, also while the engine has no work.
/// For diagnosis.
pub const HEARTBEAT: usize = 0x34;

/// Largest number of command slots.
pub const CMDQ_MAX_SLOTS: u32 = 64;

/// [`STATUS`]: the command queue runs.
pub const STATUS_READY: u32 = 1 << 0;
/// [`STATUS`]: the device has failed, until it is reset.
pub const STATUS_FATAL: u32 = 1 << 1;
/// [`STATUS`]: a reset is in progress. The bit is clear after the last DMA for anything set up
/// before the reset.
pub const STATUS_RESETTING: u32 = 1 << 2;

/// [`CONTROL`]: stops all DMA, discards all objects and tables, and returns the device to the state
/// after power-on, except for the clock.
pub const CONTROL_RESET: u32 = 1;

/// Name, offset and size in bytes of each register, for the layout table.
pub const REGISTERS: &[(&str, usize, usize)] = &[
    ("MAGIC", MAGIC, 4),
    ("VERSION", VERSION, 4),
    ("STATUS", STATUS, 4),
    ("CONTROL", CONTROL, 4),
    ("VERSION_SELECT", VERSION_SELECT, 4),
    ("VECTORS", VECTORS, 4),
    ("FATAL_SYNDROME", FATAL_SYNDROME, 4),
    ("CMDQ_BASE_LO", CMDQ_BASE_LO, 4),
    ("CMDQ_BASE_HI", CMDQ_BASE_HI, 4),
    ("CMDQ_SLOTS", CMDQ_SLOTS, 4),
    ("CMDQ_ENABLE", CMDQ_ENABLE, 4),
    ("CMDQ_DOORBELL", CMDQ_DOORBELL, 4),
    ("HEARTBEAT", HEARTBEAT, 4),
];

pub(super) fn layouts(structure: &mut super::VisitStruct<'_>, _code: &mut super::VisitCode<'_>) {
    structure("Registers", BAR_REGS_SIZE, REGISTERS);
}
