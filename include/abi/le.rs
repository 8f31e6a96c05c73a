// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Little-endian integers of natural alignment.
//!
//! Natural alignment matters: an owner word must be one load, which it could not be if these were arrays of bytes.

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
            /// Wraps a number in the machine's order.
            #[inline]
            pub const fn new(value: $int) -> Self {
                Self(value.to_le())
            }

            /// The number in the machine's order.
            #[inline]
            pub const fn get(self) -> $int {
                <$int>::from_le(self.0)
            }

            /// Wraps what one load of the shared word returned.
            #[inline]
            pub const fn from_raw(raw: $int) -> Self {
                Self(raw)
            }

            /// The word as one store has to write it.
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
