//! Memory that the text of a run needs, compared with the memory of this machine.

use archipelago_cli::{Bytes, available_bytes};

use crate::errors::ServerError;

/// Largest memory use per byte of text, in bytes, while the text becomes documents, tokens of four bytes and shards.
const BYTES_PER_BYTE: u64 = 10;

/// Memory budget for the text of a run. Its unit is bytes of unpacked text.
#[derive(Debug)]
pub struct Budget {
    /// Available memory in bytes, if known.
    available: Option<u64>,
    /// Bytes of text so far.
    text: u64,
}

impl Budget {
    /// Returns a budget of the memory that is available now.
    pub fn of_machine() -> Self {
        Self::new(available_bytes())
    }

    /// Returns a budget of `available` bytes of memory. Without a number, any text fits.
    pub fn new(available: Option<u64>) -> Self {
        Self { available, text: 0 }
    }

    /// Returns how many more bytes of text fit.
    pub fn left(&self) -> u64 {
        self.available.map_or(u64::MAX, |available| (available / BYTES_PER_BYTE).saturating_sub(self.text))
    }

    /// Checks that `bytes` more bytes of text fit.
    ///
    /// # Errors
    /// `Memory`: the bytes do not fit.
    pub fn check(&self, bytes: u64) -> Result<(), ServerError> {
        let needed = self.text.saturating_add(bytes).saturating_mul(BYTES_PER_BYTE);
        match self.available {
            Some(available) if needed > available => {
                Err(ServerError::Memory { needed: Bytes(needed), available: Bytes(available) })
            }
            _ => Ok(()),
        }
    }

    /// Adds `bytes` bytes of text.
    ///
    /// # Errors
    /// `Memory`: they do not fit.
    pub fn take(&mut self, bytes: u64) -> Result<(), ServerError> {
        self.check(bytes)?;
        self.text += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_beyond_the_memory_is_refused() {
        assert!(Budget::new(Some(90)).take(9).is_ok() && Budget::new(None).take(9).is_ok());
        let error = Budget::new(Some(1 << 30)).take(1 << 30).unwrap_err();
        assert!(error.exit_code() == 18 && error.to_string().contains("less data"), "{error}");
        let mut budget = Budget::new(Some(100));
        assert!(budget.take(6).is_ok() && budget.left() == 4 && budget.check(5).is_err());
        assert!(budget.take(5).is_err() && budget.take(4).is_ok() && budget.left() == 0);
        assert!(Budget::new(Some(9)).check(u64::MAX).is_err());
    }
}
