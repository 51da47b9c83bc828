//! Looking into the body of an update, which needs nothing but the shape of the run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::diloco::{CheckedBody, Codec, Fragments, checksum};
use crate::wire::{FragmentId, Refusal, RunId, Serial, Update, Version};

/// Looks into updates. It holds no state, so a shell with threads has its readers do this while the syncer is busy
/// with others: a hash and a sum over each value of a large fragment take long.
#[derive(Clone, Debug)]
pub struct Verifier {
    fragments: Arc<Fragments>,
    codec: Codec,
}

/// An update whose body was looked into.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verified {
    pub(super) body: Result<CheckedBody, Refusal>,
    /// The checksum of the body, if there is one.
    pub(super) checksum: u64,
    /// The run it is for.
    pub run: RunId,
    /// The fragment.
    pub fragment: FragmentId,
    /// As its sender numbered it.
    pub serial: Serial,
    /// The version that its sender held.
    pub base: Version,
    /// Steps that its sender says it took since then.
    pub steps: u32,
    /// Tokens that its sender says it trained on since then.
    pub tokens: u64,
    /// Those of them that went through each expert of the fragment, as its sender says; or nothing.
    pub(super) seen: Vec<u64>,
}

impl Verified {
    /// All of it but the bytes of its body: what an owner needs where a gateway holds the body.
    #[must_use]
    pub fn without_bytes(&self) -> Self {
        let body = self.body.as_ref().map(CheckedBody::without_bytes).map_err(|refusal| *refusal);
        Self { body, seen: self.seen.clone(), ..*self }
    }

    /// The body, if it can be one.
    pub(crate) fn body(&self) -> Option<&CheckedBody> {
        self.body.as_ref().ok()
    }
}

impl Verifier {
    /// For the updates of a run with these fragments and this code.
    #[must_use]
    pub fn new(fragments: Arc<Fragments>, codec: Codec) -> Self {
        Self { fragments, codec }
    }

    /// How bodies are coded.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Checks length, checksum and codes of the body, and the number of experts; what is found comes to effect when the
    /// update is taken in.
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
