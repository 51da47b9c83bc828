//! Verification of update bodies, which needs only the layout of the run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::diloco::{CheckedBody, Codec, Fragments, checksum};
use crate::wire::{FragmentId, Refusal, RunId, Serial, Update, Version};

/// Verifier of updates. It has no state, so a shell with threads can verify on its readers while the syncer is busy.
/// Hashing and summing a large fragment takes long.
#[derive(Clone, Debug)]
pub struct Verifier {
    fragments: Arc<Fragments>,
    codec: Codec,
}

/// An update with a verified body.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verified {
    pub(super) body: Result<CheckedBody, Refusal>,
    /// The checksum of the body, if there is one.
    pub(super) checksum: u64,
    /// The run it is for.
    pub run: RunId,
    /// The fragment.
    pub fragment: FragmentId,
    /// Number that its sender gave it.
    pub serial: Serial,
    /// The version that it builds on.
    pub base: Version,
    /// Steps since then, as claimed by its sender.
    pub steps: u32,
    /// Tokens trained on since then, as claimed by its sender.
    pub tokens: u64,
    /// Claimed tokens through each expert of the fragment, or empty.
    pub(super) seen: Vec<u64>,
}

impl Verified {
    /// Returns a copy without the bytes of the body, for a leader whose gateway keeps them.
    #[must_use]
    pub fn without_bytes(&self) -> Self {
        let body = self.body.as_ref().map(CheckedBody::without_bytes).map_err(|refusal| *refusal);
        Self { body, seen: self.seen.clone(), ..*self }
    }

    /// Returns the body, if it is valid.
    pub(crate) fn body(&self) -> Option<&CheckedBody> {
        self.body.as_ref().ok()
    }
}

impl Verifier {
    /// Creates a verifier for a run with these fragments and this code.
    #[must_use]
    pub fn new(fragments: Arc<Fragments>, codec: Codec) -> Self {
        Self { fragments, codec }
    }

    /// Returns the code of update bodies.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Checks length, checksum and codes of the body, and the number of experts. A fault takes effect only when the
    /// update is handled.
    #[must_use]
    pub fn verify(&self, update: Update) -> Verified {
        let Update { run, fragment, serial, base, steps, tokens, body, checksum, seen } = update;
        Verified {
            body: self.look_into(fragment, body, checksum, seen.len()),
            checksum,
            run,
            fragment,
            serial,
            base,
            steps,
            tokens,
            seen,
        }
    }

    fn look_into(
        &self,
        fragment: FragmentId,
        body: Vec<u8>,
        sum: u64,
        seen: usize,
    ) -> Result<CheckedBody, Refusal> {
        let segments = self.fragments.segments(fragment).ok_or(Refusal::Shape)?;
        let of_experts = [0, self.fragments.experts(fragment).len()];
        if body.len() != self.codec.body_bytes(segments) || !of_experts.contains(&seen) {
            return Err(Refusal::Shape);
        }
        if checksum(&body) != sum {
            return Err(Refusal::Checksum);
        }
        let body = self.codec.check(segments, body).map_err(|_| Refusal::NotFinite)?;
        if body.norm().is_finite() { Ok(body) } else { Err(Refusal::NotFinite) }
    }
}
