//! Frozen weights that a run builds on, and their download.

use std::sync::Arc;

use archipelago_core::bytes::hex;
use archipelago_core::model::{FrozenError, FrozenWeights, ModelSpec};
use archipelago_core::wire::{Frozen, Welcome};

/// First and maximum wait before a missing part is requested again, in milliseconds; each wait doubles.
const RETRY_MS: (u64, u64) = (250, 15_000);

/// The complete frozen weights of a run.
pub(super) struct Weights {
    /// Their description in the run.
    pub(super) frozen: Frozen,
    pub(super) weights: Arc<FrozenWeights>,
}

/// Frozen weights during their download.
pub(super) struct Gathering {
    /// Most recent welcome.
    pub(super) welcome: Box<Welcome>,
    pub(super) frozen: Frozen,
    /// Bytes of all parts before `next`.
    pub(super) bytes: Vec<u8>,
    pub(super) next: u32,
    pub(super) is_fetching: bool,
    /// Earliest time of the next request, in microseconds.
    pub(super) after_us: u64,
    wait_ms: u64,
}

impl Gathering {
    /// Returns the download of the frozen weights of `welcome`, with no part yet. Fails with a sentence if their length
    /// does not fit the model.
    pub(super) fn new(welcome: &Welcome, frozen: &Frozen) -> Result<Self, String> {
        frozen.check().map_err(|error| error.to_string())?;
        let expected = ModelSpec::of(&welcome.spec.model)
            .and_then(|model| FrozenWeights::bytes_len(&model, frozen.form))
            .map_err(|error| error.to_string())?;
        // Checked before the download: no description justifies a download of arbitrary size.
        if frozen.bytes != expected {
            return Err(FrozenError::Length { found: frozen.bytes, expected }.to_string());
        }
        let mut bytes = Vec::new();
        let room = usize::try_from(frozen.bytes).ok().and_then(|len| bytes.try_reserve_exact(len).ok());
        room.ok_or_else(|| format!("not enough memory for their {} bytes", frozen.bytes))?;
        let (frozen, welcome) = (frozen.clone(), Box::new(welcome.clone()));
        Ok(Self { welcome, frozen, bytes, next: 0, is_fetching: false, after_us: 0, wait_ms: 0 })
    }

    /// Returns the next part, named by its checksum, and its length; `None` if all parts are present.
    pub(super) fn wanted(&self) -> Option<(String, u64)> {
        let (start, end) = self.frozen.range(self.next)?;
        Some((hex(self.frozen.checksum(self.next)?), end - start))
    }

    /// Adds `part` if it is the next one.
    pub(super) fn add(&mut self, part: &[u8]) -> bool {
        let fits = self.frozen.is_part(self.next, part);
        if fits {
            self.bytes.extend_from_slice(part);
            (self.next, self.wait_ms) = (self.next + 1, 0);
        }
        fits
    }

    /// Postpones the next request, each time for twice as long.
    pub(super) fn postpone(&mut self, now_us: u64) {
        let (least_ms, most_ms) = RETRY_MS;
        self.wait_ms = (2 * self.wait_ms).clamp(least_ms, most_ms);
        self.after_us = now_us.saturating_add(1_000 * self.wait_ms);
    }

    /// Returns the bytes present, and the total.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.bytes.len() as u64, self.frozen.bytes)
    }
}

impl Weights {
    /// Returns the total bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.frozen.bytes
    }
}
