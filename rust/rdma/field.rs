// SPDX-License-Identifier: GPL-2.0

//! Access to single fields of the core's structs.
//!
//! The core and its users read and write some fields without a lock. This crate therefore accesses
//! these fields with volatile reads and writes, and never borrows them.

/// Reads a field of the core's struct of an object (`&Managed`), once. For plain integers only.
macro_rules! read_field {
    ($object:expr, $field:ident) => {{
        let raw = $crate::object::Managed::as_raw($object);
        // SAFETY: The reference keeps the object alive. Only the address of a field is computed.
        let field = unsafe { &raw const (*raw).$field };
        // SAFETY: The field is part of a live object, and is an initialized plain integer, which
        // may change at the same time.
        unsafe { field.read_volatile() }
    }};
}
pub(crate) use read_field;

/// Writes a field of the core's struct of an object (`&Managed`), once. For plain integers only,
/// and only where no other code writes the field at the same time.
macro_rules! write_field {
    ($object:expr, $field:ident, $value:expr) => {{
        let raw = $crate::object::Managed::as_raw($object);
        let value = $value;
        // SAFETY: The reference keeps the object alive. Only the address of a field is computed.
        let field = unsafe { &raw mut (*raw).$field };
        // SAFETY: The field is part of a live object, and is a plain integer, which may be read at
        // the same time.
        unsafe { field.write_volatile(value) };
    }};
}
pub(crate) use write_field;
