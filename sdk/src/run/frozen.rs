//! The weights that a run builds on and nobody trains, and what has come of them.

use std::sync::Arc;

use archipelago_core::bytes::hex;
use archipelago_core::model::{FrozenError, FrozenWeights, ModelSpec};
use archipelago_core::wire::{Frozen, Welcome};

/// Waits before a part that did not come is asked for again, in milliseconds: each is twice the one before.
const RETRY_MS: (u64, u64) = (250, 15_000);

/// The weights of a run, all of them.
pub(super) struct Weights {
    /// What the run says of them.
    pub(super) frozen: Frozen,
    pub(super) weights: Arc<FrozenWeights>,
}

/// Weights on their way.
pub(super) struct Gathering {
    /// The newest.
    pub(super) welcome: Box<Welcome>,
    pub(super) frozen: Frozen,
    /// All parts before the next.
    pub(super) bytes: Vec<u8>,
    pub(super) next: u32,
    pub(super) is_fetching: bool,
    /// No part is asked for before then, in microseconds.
    pub(super) after_us: u64,
    wait_ms: u64,
}

impl Gathering {
    /// Nothing yet of what the run of `welcome` builds on; a sentence if that cannot be all of its model's weights.
    pub(super) fn new(welcome: &Welcome, frozen: &Frozen) -> Result<Self, String> {
        frozen.check().map_err(|error| error.to_string())?;
        let expected = ModelSpec::of(&welcome.spec.model)
            .and_then(|model| FrozenWeights::bytes_len(&model, frozen.form))
            .map_err(|error| error.to_string())?;
        // Before they are fetched: nobody's word is worth a download of any size.
        if frozen.bytes != expected {
            return Err(FrozenError::Length { found: frozen.bytes, expected }.to_string());
        }
        let mut bytes = Vec::new();
        let room = usize::try_from(frozen.bytes).ok().and_then(|len| bytes.try_reserve_exact(len).ok());
        room.ok_or_else(|| format!("there is no memory for their {} bytes", frozen.bytes))?;
        let (frozen, welcome) = (frozen.clone(), Box::new(welcome.clone()));
        Ok(Self { welcome, frozen, bytes, next: 0, is_fetching: false, after_us: 0, wait_ms: 0 })
    }

    /// The part that comes next under the name of its content, and its length; `None` if all are here.
    pub(super) fn wanted(&self) -> Option<(String, u64)> {
        let (start, end) = self.frozen.range(self.next)?;
        Some((hex(self.frozen.checksum(self.next)?), end - start))
    }

    /// Adds `part`, if it is the one that is wanted.
    pub(super) fn add(&mut self, part: &[u8]) -> bool {
        let fits = self.frozen.is_part(self.next, part);
        if fits {
            self.bytes.extend_from_slice(part);
            (self.next, self.wait_ms) = (self.next + 1, 0);
        }
        fits
    }

    /// Asks again later, each time after twice as long.
    pub(super) fn postpone(&mut self, now_us: u64) {
        let (least_ms, most_ms) = RETRY_MS;
        self.wait_ms = (2 * self.wait_ms).clamp(least_ms, most_ms);
        self.after_us = now_us.saturating_add(1_000 * self.wait_ms);
    }

    /// How many bytes are here, and of how many.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.bytes.len() as u64, self.frozen.bytes)
    }
}

impl Weights {
    /// How many bytes they have.
    pub(super) fn bytes(&self) -> u64 {
        self.frozen.bytes
    }
}
