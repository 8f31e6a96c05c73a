// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The macros that define the structures and codes of the contract.

/// Defines a shared structure. The definition contains the offset of every field and the size,
/// which are asserted at compile time.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $( $(#[$fmeta:meta])* $offset:literal => $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            zerocopy_derive::FromBytes,
            zerocopy_derive::IntoBytes,
            zerocopy_derive::Immutable,
            zerocopy_derive::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $( assert!(core::mem::offset_of!($name, $field) == $offset); )*
        };

        impl Default for $name {
            #[inline]
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }

        impl super::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const SIZE: usize = $size;
            const FIELDS: super::Fields =
                &[ $( (stringify!($field), $offset, core::mem::size_of::<$ty>()) ),* ];
        }
    };
}

/// Defines the codes of a field. The doc comment of each code is also the text that
/// [`explain`](Self::explain) returns, which programs print.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $int:ty {
            $( $(#[doc = $doc:literal])+ $variant:ident = $value:expr, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($int)]
        pub enum $name {
            $( $(#[doc = $doc])+ $variant = $value, )*
        }

        impl $name {
            /// All codes, in the order of their definition.
            pub const ALL: &'static [Self] = &[ $( Self::$variant ),* ];

            /// Returns the code with a raw number. None if there is no such code.
            #[inline]
            #[allow(non_upper_case_globals)]
            pub const fn from_raw(raw: $int) -> Option<Self> {
                $( const $variant: $int = $value; )*
                match raw {
                    $( $variant => Some(Self::$variant), )*
                    _ => None,
                }
            }

            /// Returns the raw number.
            #[inline]
            pub const fn to_raw(self) -> $int {
                self as $int
            }

            /// Returns the name of the code.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => stringify!($variant), )*
                }
            }

            /// Returns the text that explains the code, which begins with a space.
            pub const fn explain(self) -> &'static str {
                match self {
                    $( Self::$variant => concat!($($doc),+), )*
                }
            }
        }
    };
}

/// Defines `layouts()`, which passes the structures and codes of a file to callbacks.
macro_rules! layouts {
    (structs: [$($st:ident),* $(,)?], codes: [$($code:ident),* $(,)?]) => {
        pub(super) fn layouts(
            structure: &mut super::VisitStruct<'_>,
            code: &mut super::VisitCode<'_>,
        ) {
            let _ = (&structure, &code);
            $( structure(
                <$st as super::Layout>::NAME,
                <$st as super::Layout>::SIZE,
                <$st as super::Layout>::FIELDS,
            ); )*
            $( for c in $code::ALL {
                code(stringify!($code), c.name(), u32::from(c.to_raw()));
            } )*
        }
    };
}
