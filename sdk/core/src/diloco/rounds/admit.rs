//! Verification of update bodies, which needs only the layout of the run, and admission of updates to a round.

use std::sync::Arc;

use super::{RoundTerms, Rounds};
use crate::diloco::fragment::believed;
use crate::diloco::speed::SPEED_SLACK;
use crate::diloco::{CheckedBody, Codec, Fragments, SenderInfo, checksum, learning_rate};
use crate::wire::{
    Fate, FragmentId, InnerSpec, LateReason, LearnerId, Millis, Refusal, RunId, Serial, Update, Version,
};
use serde::{Deserialize, Serialize};

/// Slack of the largest norm over that of AdamW: for residues, decay, and a learner's own optimiser.
const REACH_SLACK: f64 = 4.0;

/// Amounts of an update that count.
pub(super) struct Admitted {
    /// Steps that can have been taken, at least 1.
    pub(super) steps: u32,
    /// Tokens that those steps can hold and that were leased, at least 1.
    pub(super) tokens: u64,
    /// Tokens that can have gone through each expert, `[experts]`.
    pub(super) seen: Vec<u64>,
}

impl Rounds {
    /// Checks an update and returns the amounts that count, or its fate.
    pub(super) fn admit(
        &mut self,
        now: Millis,
        learner: LearnerId,
        update: &Verified,
        sender: &SenderInfo,
    ) -> Result<Admitted, Fate> {
        if self.unsettled(learner).is_some() {
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
        if body.norm() > reach(&self.terms.inner, steps, len) {
            return Err(Fate::Refused(Refusal::Norm));
        }
        // Tokens count only as far as the believed steps can hold them and as they were leased.
        let tokens = update.tokens.min(u64::from(steps).saturating_mul(sender.step_tokens));
        match tokens.min(sender.unmerged_tokens) {
            0 => Err(Fate::Refused(Refusal::Unleased)),
            tokens => {
                let rate = self.norm_pace(1, sender.clock_tokens);
                if sender.is_in_norm_stats {
                    self.usual.note(learner, !sender.trust.level.is_trusted(), body.squares(), steps, rate);
                }
                let RoundTerms { experts, mixture, .. } = &self.terms;
                let seen = believed(experts, *mixture, &update.seen, update.tokens, tokens);
                Ok(Admitted { steps, tokens, seen })
            }
        }
    }

    /// Returns the steps that `learner` can have taken on this fragment since its steps were last counted.
    ///
    /// After a restart of the syncer the time since then is unknown, and the duration of a lease takes its place. For a
    /// learner that was never merged on this fragment, it is at most the time since it connected.
    fn steps_max(&self, now: Millis, learner: LearnerId, sender: &SenderInfo) -> u64 {
        let since = self.counted.get(&learner);
        let unknown_ms = sender.stranger_ms.unwrap_or(u64::MAX).min(self.terms.lease_ms);
        let passed_ms = since.map_or(unknown_ms, |since| now.since(*since));
        let steps = (SPEED_SLACK * passed_ms as f64 / sender.step_ms_least) as u64;
        let steps = steps.min(sender.steps_max.unwrap_or(u64::MAX));
        steps.saturating_add(u64::from(self.terms.sync_every))
    }

    /// Returns the pace of an update: its norm grows with the current learning rate and the root of the steps.
    pub(super) fn norm_pace(&self, steps: u32, clock_tokens: u64) -> f64 {
        let lr = learning_rate(&self.terms.inner, clock_tokens);
        // A run at a rate of 0 trains nothing and is still valid.
        f64::from(if lr > 0.0 { lr } else { 1.0 }) * f64::from(steps).sqrt()
    }
}

/// Returns the largest possible norm after `steps` steps on `len` values, without knowledge of any update.
///
/// AdamW moves a value by at most `lr · max(1, (1 − β1) / √(1 − β2))` in a step (Kingma and Ba 2015, section 2.1).
/// Muon moves matrices less: the values of its update have a root mean square of 0.2.
/// Unbounded at a rate of 0, which trains nothing.
fn reach(inner: &InnerSpec, steps: u32, len: usize) -> f64 {
    if inner.lr_max <= 0.0 {
        return f64::INFINITY;
    }
    let [beta1, beta2] = [inner.beta1, inner.beta2].map(f64::from);
    let step = f64::from(inner.lr_max) * ((1.0 - beta1) / (1.0 - beta2).sqrt()).max(1.0);
    REACH_SLACK * step * f64::from(steps) * (len as f64).sqrt()
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AdamW, Preset, layout};

    /// The worst case for a gradient: zeros for a long time, then a large constant.
    #[test]
    fn no_gradient_takes_adamw_out_of_reach() {
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
            let reach = reach(&inner, steps, layout.len());
            assert!(norm < reach && norm > reach / (5.0 * REACH_SLACK), "{steps}: {norm} {reach}");
        }
    }

    #[test]
    fn a_long_memory_of_squares_reaches_farther() {
        let reach = |beta2| reach(&InnerSpec { beta1: 0.9, beta2, ..Preset::Tiny.inner() }, 1, 1);
        let ratio = reach(0.9999) / reach(0.99);
        assert!((ratio - 10.0).abs() < 1e-2, "{ratio}");
    }

    #[test]
    fn without_a_rate_there_is_no_reach() {
        assert_eq!(reach(&InnerSpec { lr_max: 0.0, ..Preset::Tiny.inner() }, 1, 1), f64::INFINITY);
    }
}
