// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupt vectors that the daemon has to raise.

/// The vectors to raise, each at most once until the daemon takes them.
#[derive(Debug, Default)]
pub struct Interrupts(u32);

impl Interrupts {
    /// Adds a vector. A vector that the device does not have is ignored.
    pub fn raise(&mut self, vector: u16) {
        self.0 |= 1u32.checked_shl(vector.into()).unwrap_or(0);
    }

    /// Takes the vectors, one bit for each.
    pub fn take(&mut self) -> u32 {
        std::mem::take(&mut self.0)
    }

    /// True if a vector is to be raised.
    #[cfg(test)]
    pub fn are_pending(&self) -> bool {
        self.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_taken_once() {
        let mut interrupts = Interrupts::default();
        [0, 31, 0, 32, u16::MAX].map(|vector| interrupts.raise(vector));
        assert_eq!(interrupts.take(), 1 | 1 << 31);
        assert!(!interrupts.are_pending() && interrupts.take() == 0);
    }
}
