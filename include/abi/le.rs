// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Little-endian integers with natural alignment.
//!
//! Arrays of bytes would not be aligned. The alignment is needed because the words that pass an
//! entry from one side to the other are read and written with one access each.

use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! le {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// Converts a number from the byte order of the machine.
            #[inline]
            pub const fn new(value: $int) -> Self {
                Self(value.to_le())
            }

            /// Returns the number in the byte order of the machine.
            #[inline]
            pub const fn get(self) -> $int {
                <$int>::from_le(self.0)
            }

            /// Wraps the value that a load of the shared word returned.
            #[inline]
            pub const fn from_raw(raw: $int) -> Self {
                Self(raw)
            }

            /// Returns the value for a store to the shared word.
            #[inline]
            pub const fn to_raw(self) -> $int {
                self.0
            }
        }

        impl From<$int> for $name {
            #[inline]
            fn from(value: $int) -> Self {
                Self::new(value)
            }
        }
    };
}

le!(
    /// A little-endian `u16`.
    Le16, u16
);
le!(
    /// A little-endian `u32`.
    Le32, u32
);
le!(
    /// A little-endian `u64`.
    Le64, u64
);
