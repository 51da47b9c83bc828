//! Verification of update bodies, and admission of updates to a round.

use std::sync::Arc;

use super::{RoundTerms, Rounds};
use crate::diloco::fragment::credited_tokens;
use crate::diloco::speed::SPEED_SLACK;
use crate::diloco::{CheckedBody, Codec, Fragments, SenderInfo, checksum, learning_rate};
use crate::wire::{
    Fate, FragmentId, InnerSpec, LateReason, LearnerId, Millis, Refusal, RunId, Serial, Update, Version,
};
use serde::{Deserialize, Serialize};

/// Ratio of the largest admitted norm to the largest norm of AdamW. It leaves room for residues, weight decay, and
/// optimisers of custom learners.
const NORM_SLACK: f64 = 4.0;

/// Admitted steps and credited tokens of an update, which are at most the claimed ones.
pub(super) struct Admitted {
    /// Claimed steps, limited to those that the learner can have taken, at least 1.
    pub(super) steps: u32,
    /// Claimed tokens, limited to those of the admitted steps and of the sender's leases, at least 1.
    pub(super) tokens: u64,
    /// Credited tokens for each expert, `[experts]`.
    pub(super) seen: Vec<u64>,
}

impl Rounds {
    /// Checks an update, and adds its norms to the statistics if it is admitted.
    ///
    /// # Errors
    /// The fate of an update that is not admitted.
    pub(super) fn admit(
        &mut self,
        now: Millis,
        learner: LearnerId,
        update: &Verified,
        sender: &SenderInfo,
    ) -> Result<Admitted, Fate> {
        if self.unresolved(learner).is_some() {
            return Err(Fate::Refused(Refusal::Unsettled));
        }
        if !self.terms.is_additive {
            let Some(open) = self.collecting() else { return Err(Fate::Late(LateReason::RoundOver)) };
            if update.base != self.version {
                return Err(Fate::Late(LateReason::StaleBase));
            }
            if !open.awaits(learner) {
                return Err(Fate::Refused(Refusal::NotInvited));
            }
        }
        if update.steps == 0 || update.tokens == 0 {
            return Err(Fate::Refused(Refusal::Empty));
        }
        let body = update.body.as_ref().map_err(|refusal| Fate::Refused(*refusal))?;
        let steps_max = self.steps_max(now, learner, sender);
        let steps = update.steps.min(u32::try_from(steps_max).unwrap_or(u32::MAX));
        let len = self.terms.segments.iter().map(|segment| segment.len as usize).sum();
        if body.norm() > max_update_norm(&self.terms.inner, steps, len) {
            return Err(Fate::Refused(Refusal::Norm));
        }
        let tokens = update.tokens.min(u64::from(steps).saturating_mul(sender.step_tokens));
        match tokens.min(sender.unmerged_tokens) {
            0 => Err(Fate::Refused(Refusal::Unleased)),
            tokens => {
                let scale = self.norm_scale(1, sender.clock_tokens);
                if sender.is_in_norm_stats {
                    let is_new = !sender.trust.level.is_trusted();
                    self.norm_stats.note(learner, is_new, body.squares(), steps, scale);
                }
                let RoundTerms { experts, mixture, .. } = &self.terms;
                let seen = credited_tokens(experts, *mixture, &update.seen, update.tokens, tokens);
                Ok(Admitted { steps, tokens, seen })
            }
        }
    }

    /// Returns the number of steps that `learner` can have taken since its last credited step on this fragment, plus H.
    ///
    /// If this process of the syncer does not know that time, the duration of a lease replaces it. For a learner
    /// without a merged update on this fragment, it is at most the time since the learner connected.
    fn steps_max(&self, now: Millis, learner: LearnerId, sender: &SenderInfo) -> u64 {
        let since = self.credited.get(&learner);
        let unknown_ms = sender.stranger_ms.unwrap_or(u64::MAX).min(self.terms.lease_ms);
        let passed_ms = since.map_or(unknown_ms, |since| now.since(*since));
        let steps = (SPEED_SLACK * passed_ms as f64 / sender.step_ms_least) as u64;
        let steps = steps.min(sender.steps_max.unwrap_or(u64::MAX));
        steps.saturating_add(u64::from(self.terms.sync_every))
    }

    /// Returns the scale of the norms of updates: the current learning rate times the square root of `steps`.
    pub(super) fn norm_scale(&self, steps: u32, clock_tokens: u64) -> f64 {
        let lr = learning_rate(&self.terms.inner, clock_tokens);
        // A learning rate of 0 is valid.
        f64::from(if lr > 0.0 { lr } else { 1.0 }) * f64::from(steps).sqrt()
    }
}

/// Returns the largest admitted norm of an update of `len` values after `steps` steps; infinity at a learning rate of
/// 0.
///
/// AdamW moves a value by at most `lr · max(1, (1 − β1) / √(1 − β2))` in a step (Kingma and Ba 2015, section 2.1).
/// Muon moves matrices less, because the root mean square of its updates is 0.2. The bound is [`NORM_SLACK`] times the
/// norm of such moves.
fn max_update_norm(inner: &InnerSpec, steps: u32, len: usize) -> f64 {
    if inner.lr_max <= 0.0 {
        return f64::INFINITY;
    }
    let [beta1, beta2] = [inner.beta1, inner.beta2].map(f64::from);
    let step = f64::from(inner.lr_max) * ((1.0 - beta1) / (1.0 - beta2).sqrt()).max(1.0);
    NORM_SLACK * step * f64::from(steps) * (len as f64).sqrt()
}

/// Verifier of update bodies. It has no state, so a host with threads can verify on its reader threads while the syncer
/// is busy. Large fragments take long to hash and to sum up.
#[derive(Clone, Debug)]
pub struct Verifier {
    fragments: Arc<Fragments>,
    codec: Codec,
}

/// Update after verification of its body.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verified {
    /// The valid body, or the reason to refuse the update.
    pub(super) body: Result<CheckedBody, Refusal>,
    /// Claimed checksum of the body, which a valid body has.
    pub(super) checksum: u64,
    /// Run that the sender named.
    pub run: RunId,
    /// The fragment.
    pub fragment: FragmentId,
    /// Serial number that the sender gave the update.
    pub serial: Serial,
    /// Version from which the sender trained.
    pub base: Version,
    /// Claimed steps since the sender's last merged update.
    pub steps: u32,
    /// Claimed tokens of these steps.
    pub tokens: u64,
    /// Claimed tokens for each expert of the fragment, `[experts]` or empty.
    pub(super) seen: Vec<u64>,
}

impl Verified {
    /// Returns a copy without the bytes of the body, for a remote leader. The gateway keeps the bytes.
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
    /// Creates a verifier for a run with `fragments` and `codec`.
    #[must_use]
    pub fn new(fragments: Arc<Fragments>, codec: Codec) -> Self {
        Self { fragments, codec }
    }

    /// Returns the codec of update bodies.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Checks length, checksum, codes and norm of the body, and the number of experts. A faulty update is refused
    /// later, by `Rounds::answer`.
    #[must_use]
    pub fn verify(&self, update: Update) -> Verified {
        let Update { run, fragment, serial, base, steps, tokens, body, checksum, seen } = update;
        Verified {
            body: self.check_body(fragment, body, checksum, seen.len()),
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

    fn check_body(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AdamW, Preset, layout};

    /// Goal: the bound holds for the worst case of gradients: zeros for a long time, then a large constant.
    #[test]
    fn norm_bound_holds_for_adamw_on_any_gradient() {
        let inner = InnerSpec { clip_norm: 0.0, weight_decay: 0.0, ..Preset::Tiny.inner() };
        let layout = layout(&Preset::Tiny.model(16)).unwrap();
        let mut params = vec![0.0; layout.len()];
        let mut optimiser = AdamW::new(layout.len());
        let quiet = vec![0.0; layout.len()];
        for _ in 0..2_000 {
            optimiser.step(&layout, &inner, inner.lr_max, &mut params, &quiet);
        }
        for steps in 1..=30 {
            optimiser.step(&layout, &inner, inner.lr_max, &mut params, &vec![1e3; layout.len()]);
            let norm = params.iter().map(|p| f64::from(*p).powi(2)).sum::<f64>().sqrt();
            let bound = max_update_norm(&inner, steps, layout.len());
            assert!(norm < bound && norm > bound / (5.0 * NORM_SLACK), "{steps}: {norm} {bound}");
        }
    }

    #[test]
    fn a_long_memory_of_squares_reaches_farther() {
        let bound = |beta2| max_update_norm(&InnerSpec { beta1: 0.9, beta2, ..Preset::Tiny.inner() }, 1, 1);
        let ratio = bound(0.9999) / bound(0.99);
        assert!((ratio - 10.0).abs() < 1e-2, "{ratio}");
    }

    #[test]
    fn norm_is_unbounded_at_a_learning_rate_of_zero() {
        assert_eq!(max_update_norm(&InnerSpec { lr_max: 0.0, ..Preset::Tiny.inner() }, 1, 1), f64::INFINITY);
    }
}
