// SPDX-License-Identifier: GPL-2.0 OR MIT

//! BAR 0, the registers, and BAR 2, the doorbells. Device specification, "Registers".
//!
//! All registers are 32 bits wide and accessed as such, except the clock. None is read on the data path.

/// PCI vendor id (the range that QEMU's project keeps for experiments).
pub const PCI_VENDOR_ID: u16 = 0x1af4;
/// PCI device id.
pub const PCI_DEVICE_ID: u16 = 0x10f5;
/// PCI class code: network controller, InfiniBand, programming interface 0.
pub const PCI_CLASS: u32 = 0x02_0700;

/// The BAR of the registers.
pub const BAR_REGS: u32 = 0;
/// Size of the register BAR in bytes.
pub const BAR_REGS_SIZE: usize = 0x1_0000;
/// The BAR of the doorbells: one trapped page for each doorbell area.
pub const BAR_DOORBELL: u32 = 2;
/// Distance of the doorbells of neighbouring areas in bytes; fits guests with pages of up to 64 KiB.
pub const DOORBELL_STRIDE: usize = 0x1_0000;
/// RO, in each area's page: the device clock, 64 bits of nanoseconds since power-on, read at once. [`super::cqe::Cqe::timestamp`] is
/// of this clock.
pub const DOORBELL_CLOCK: usize = 0x08;
/// The most doorbell areas (UARs): a device has as many as QUERY_DEVICE says and its doorbell BAR has pages for, and a driver
/// uses no more of them than it knows of. Of a device that has more than 1024, a driver of an earlier release uses 1024.
pub const NUM_UARS: u32 = 8192;
/// Size of the doorbell BAR in bytes.
pub const BAR_DOORBELL_SIZE: usize = DOORBELL_STRIDE * NUM_UARS as usize;
/// The BAR of the MSI-X table and pending bits.
pub const BAR_MSIX: u32 = 4;
/// Size of the MSI-X BAR in bytes.
pub const BAR_MSIX_SIZE: usize = 0x4000;
/// Offset of the pending bits in the MSI-X BAR.
pub const MSIX_PBA_OFFSET: usize = 0x2000;
/// Number of MSI-X vectors that the device has.
pub const NUM_VECTORS: u32 = 32;

/// RO: [`MAGIC_VALUE`].
pub const MAGIC: usize = 0x00;
/// What [`MAGIC`] reads as: "VRBN".
pub const MAGIC_VALUE: u32 = 0x4e42_5256;
/// RO: oldest ABI version that the device speaks in bits 31:16, newest in bits 15:0.
pub const VERSION: usize = 0x04;
/// RO: [`STATUS_READY`], [`STATUS_FATAL`], [`STATUS_RESETTING`].
pub const STATUS: usize = 0x08;
/// WO: [`CONTROL_RESET`].
pub const CONTROL: usize = 0x0c;
/// RW: the ABI version that the driver chose. Must be in the range of [`VERSION`] before [`CMDQ_ENABLE`].
pub const VERSION_SELECT: usize = 0x10;
/// RO: number of MSI-X vectors.
pub const VECTORS: usize = 0x14;
/// RO: the syndrome of the fatal error while [`STATUS_FATAL`] is set, else 0.
pub const FATAL_SYNDROME: usize = 0x18;
/// RW: bits 31:0 of the DMA address of the command slots (page aligned).
pub const CMDQ_BASE_LO: usize = 0x20;
/// RW: bits 63:32 of the DMA address of the command slots.
pub const CMDQ_BASE_HI: usize = 0x24;
/// RW: number of command slots, 1 to [`CMDQ_MAX_SLOTS`].
pub const CMDQ_SLOTS: usize = 0x28;
/// WO: 1 enables the command queue; [`STATUS_READY`] then tells that it runs.
pub const CMDQ_ENABLE: usize = 0x2c;
/// WO: the index of the slot that holds a new request.
pub const CMDQ_DOORBELL: usize = 0x30;
/// RO: counts up at least once a second while the engine lives, whatever else it does; a debugging aid.
pub const HEARTBEAT: usize = 0x34;

/// The most command slots.
pub const CMDQ_MAX_SLOTS: u32 = 64;

/// [`STATUS`]: the command queue runs.
pub const STATUS_READY: u32 = 1 << 0;
/// [`STATUS`]: the device is dead until it is reset.
pub const STATUS_FATAL: u32 = 1 << 1;
/// [`STATUS`]: a reset is going on; clear once no DMA of the old life can happen any more.
pub const STATUS_RESETTING: u32 = 1 << 2;

/// [`CONTROL`]: drop everything, stop all DMA, return to the state after power-on.
pub const CONTROL_RESET: u32 = 1;

/// The registers by name and offset, for the layout table.
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
