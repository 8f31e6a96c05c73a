// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bit fields of management datagrams: a field is a constant with an offset and a width in bits,
//! counted from the most significant bit of the first byte (the order of the wire).

use std::marker::PhantomData;

/// A block of bytes with fields.
pub trait Fields {
    /// Returns the bytes of the block.
    fn bytes(&self) -> &[u8];
    /// Returns the bytes of the block, for writing.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns the value of a field.
    fn get<T: Value>(&self, field: Field<Self, T>) -> T {
        T::from_bits(read(self.bytes(), field.offset, field.width))
    }

    /// Stores a value in a field. Bits beyond the width of the field are ignored.
    fn set<T: Value>(&mut self, field: Field<Self, T>, value: T) {
        write(self.bytes_mut(), field.offset, field.width, value.to_bits());
    }

    /// Stores a value in a field, for blocks that are built in one expression.
    fn with<T: Value>(mut self, field: Field<Self, T>, value: T) -> Self
    where
        Self: Sized,
    {
        self.set(field, value);
        self
    }

    /// Copies a field of another block of the same type.
    fn copy<T: Value>(&mut self, field: Field<Self, T>, from: &Self) {
        self.set(field, from.get(field));
    }
}

/// The place of a field of type `T` in a block of type `A`.
pub struct Field<A: ?Sized, T> {
    /// First bit.
    offset: usize,
    /// Number of bits, up to 64.
    width: usize,
    types: PhantomData<fn(&A) -> T>,
}

impl<A: ?Sized, T> Clone for Field<A, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: ?Sized, T> Copy for Field<A, T> {}

impl<A: ?Sized, T> Field<A, T> {
    /// Makes a field that begins `bit` bits after the start of byte `byte`.
    pub const fn new(byte: usize, bit: usize, width: usize) -> Self {
        Self {
            offset: byte * 8 + bit,
            width,
            types: PhantomData,
        }
    }

    /// Returns the largest value that the field can have.
    pub const fn max(&self) -> u64 {
        u64::MAX >> (64 - self.width)
    }
}

/// A type of the values of fields.
pub trait Value: Copy {
    /// Converts the bits of a field. The field is not wider than the type.
    fn from_bits(bits: u64) -> Self;
    /// Converts a value to the bits of a field.
    fn to_bits(self) -> u64;
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Value for $integer {
            fn from_bits(bits: u64) -> Self {
                bits as $integer
            }
            fn to_bits(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}
integers!(u8 u16 u32 u64);

impl Value for bool {
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
    fn to_bits(self) -> u64 {
        u64::from(self)
    }
}

/// Reads bits. Bits beyond the end of the block are zero.
fn read(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let (first, last) = (offset / 8, (offset + width).div_ceil(8));
    let mut bits = 0u128;
    for at in first..last {
        bits = bits << 8 | u128::from(bytes.get(at).copied().unwrap_or(0));
    }
    let after = last * 8 - offset - width;
    (bits >> after) as u64 & u64::MAX >> (64 - width)
}

/// Writes bits. Bits beyond the end of the block are dropped.
fn write(bytes: &mut [u8], offset: usize, width: usize, value: u64) {
    let (first, last) = (offset / 8, (offset + width).div_ceil(8));
    let after = last * 8 - offset - width;
    let mask = u128::from(u64::MAX >> (64 - width)) << after;
    let value = u128::from(value) << after & mask;
    for at in first..last {
        let shift = (last - 1 - at) * 8;
        if let Some(byte) = bytes.get_mut(at) {
            *byte = *byte & !((mask >> shift) as u8) | (value >> shift) as u8;
        }
    }
}

/// Declares a block of bytes and its fields: `NAME: type = byte, bit, width;`.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident[$bytes:expr] { $($(#[$about:meta])* $field:ident: $type:ty = $byte:expr, $bit:expr, $width:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub [u8; $bytes]);

        impl $name {
            $($(#[$about])* pub const $field: $crate::mad::field::Field<Self, $type> = $crate::mad::field::Field::new($byte, $bit, $width);)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self([0; $bytes])
            }
        }

        impl $crate::mad::field::Fields for $name {
            fn bytes(&self) -> &[u8] {
                &self.0
            }
            fn bytes_mut(&mut self) -> &mut [u8] {
                &mut self.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut fields = f.debug_struct(stringify!($name));
                $(fields.field(stringify!($field), &$crate::mad::field::Fields::get(self, Self::$field));)*
                fields.finish()
            }
        }
    };
}
pub(crate) use block;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_written_field_is_read_and_its_neighbours_stay(
            before in any::<[u8; 16]>(), offset in 0usize..64, width in 1usize..=64, value: u64,
        ) {
            let mut bytes = before;
            write(&mut bytes, offset, width, value);
            prop_assert_eq!(read(&bytes, offset, width), value & u64::MAX >> (64 - width));
            for bit in (0..128).filter(|bit| !(offset..offset + width).contains(bit)) {
                prop_assert_eq!(read(&bytes, bit, 1), read(&before, bit, 1));
            }
        }

        #[test]
        fn fields_beyond_the_end_are_zero(offset in 0usize..256, width in 1usize..=64) {
            let mut bytes = [0xff; 4];
            write(&mut bytes, offset, width, 0);
            prop_assert_eq!(read(&bytes, offset, width), 0);
        }
    }
}
