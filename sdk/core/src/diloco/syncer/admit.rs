//! What an update must stand before it is taken in.

use super::Syncer;
use crate::diloco::{checksum, learning_rate};
use crate::wire::{Fate, InnerSpec, LateReason, LearnerId, Millis, Refusal, Update};

/// How much farther than AdamW goes an update may reach: for what a code rounded away, for decay, and for
/// optimisers of a learner's own.
const REACH_SLACK: f64 = 4.0;

impl Syncer {
    /// Everything an update must stand: its countable tokens, or its fate.
    pub(super) fn check(&mut self, now: Millis, learner: LearnerId, update: &Update) -> Result<u64, Fate> {
        let p = usize::from(update.fragment.0);
        let open = match self.open.get(&update.fragment) {
            Some(open) if open.round == update.round => open,
            _ if update.round.0 < self.next_round => return Err(Fate::Late(LateReason::RoundOver)),
            _ => return Err(Fate::Refused(Refusal::NotInvited)),
        };
        if !open.invited.contains(&learner) || open.answered.contains(&learner) {
            return Err(Fate::Refused(Refusal::NotInvited));
        }
        if update.base != open.base {
            return Err(Fate::Late(LateReason::StaleBase));
        }
        if update.steps == 0 || update.tokens == 0 {
            return Err(Fate::Refused(Refusal::Empty));
        }
        let segments = self.fragments.segments(update.fragment).unwrap_or_default();
        if update.body.len() != self.codec.body_bytes(segments) {
            return Err(Fate::Refused(Refusal::Shape));
        }
        if checksum(&update.body) != update.checksum {
            return Err(Fate::Refused(Refusal::Checksum));
        }
        let norm = self.codec.norm(segments, &update.body);
        let norm = norm.ok().filter(|norm| norm.is_finite()).ok_or(Fate::Refused(Refusal::NotFinite))?;
        let steps_max = self.steps_max(now, learner, update.fragment);
        let steps = update.steps.min(u32::try_from(steps_max).unwrap_or(u32::MAX));
        let reach = reach(&self.spec.inner, steps, self.fragments.len(update.fragment));
        if norm > reach {
            return Err(Fate::Refused(Refusal::Norm));
        }
        let (pace, ratio_max) = (self.norm_pace(steps), self.config.norm_ratio_max);
        let norm_max = self.norms[p].norm_max(pace, ratio_max);
        self.norms[p].note(norm, pace, ratio_max);
        if norm > norm_max {
            return Err(Fate::Refused(Refusal::Norm));
        }
        match self.countable(learner, update, steps) {
            0 => Err(Fate::Refused(Refusal::Unleased)),
            tokens => Ok(tokens),
        }
    }

    /// What the norm of an update of so many steps grows with: the rate of the moment and the root of the steps.
    fn norm_pace(&self, steps: u32) -> f64 {
        let lr = learning_rate(&self.spec.inner, self.ledger.clock_tokens());
        // A run at a rate of 0 trains nothing, and may still be one.
        f64::from(if lr > 0.0 { lr } else { 1.0 }) * f64::from(steps).sqrt()
    }

    /// How many of the tokens of `update` count: no more than the `steps` that are believed can hold, and than
    /// were leased to its learner.
    fn countable(&self, learner: LearnerId, update: &Update, steps: u32) -> u64 {
        let tokens = update.tokens.min(u64::from(steps).saturating_mul(self.step_tokens()));
        self.ledger.countable(learner, update.fragment, tokens)
    }
}

/// Largest norm that `steps` steps on `len` values can come to, known before anyone has sent anything.
///
/// AdamW moves a value by at most `lr · max(1, (1 − β1) / √(1 − β2))` in a step (Kingma and Ba 2015, section
/// 2.1). Without bound at a rate of 0, which trains nothing.
fn reach(inner: &InnerSpec, steps: u32, len: usize) -> f64 {
    if inner.lr_max <= 0.0 {
        return f64::INFINITY;
    }
    let [beta1, beta2] = [inner.beta1, inner.beta2].map(f64::from);
    let step = f64::from(inner.lr_max) * ((1.0 - beta1) / (1.0 - beta2).sqrt()).max(1.0);
    REACH_SLACK * step * f64::from(steps) * (len as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AdamW, Preset, layout};

    /// The worst that a gradient can do: nothing for long, then all at once.
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
    fn without_a_rate_there_is_no_reach() {
        assert_eq!(reach(&InnerSpec { lr_max: 0.0, ..Preset::Tiny.inner() }, 1, 1), f64::INFINITY);
    }
}
