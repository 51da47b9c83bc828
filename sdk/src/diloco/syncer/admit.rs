//! What an update must stand before it is taken in.

use super::Syncer;
use crate::diloco::checksum;
use crate::wire::{Fate, LateReason, LearnerId, Millis, Refusal, Update};

/// How much faster than it ever claimed a learner may have been.
const SPEED_SLACK: f64 = 2.0;

impl Syncer {
    /// Everything an update must stand: countable tokens and norm, or its fate.
    pub(super) fn check(&self, now: Millis, learner: LearnerId, update: &Update) -> Result<(u64, f64), Fate> {
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
        if !self.norms[p].admits(norm, update.steps, self.config.norm_ratio_max) {
            return Err(Fate::Refused(Refusal::Norm));
        }
        match self.countable(now, learner, update) {
            0 => Err(Fate::Refused(Refusal::Unleased)),
            tokens => Ok((tokens, norm)),
        }
    }

    /// How many of the tokens of `update` count: no more than its steps can hold, than were leased to its
    /// learner, and than fit into the time since the last ones at the best speed it ever claimed.
    fn countable(&self, now: Millis, learner: LearnerId, update: &Update) -> u64 {
        let step_tokens = u64::from(self.spec.inner.batch) * u64::from(self.spec.model.context);
        let session = self.connections.get(&learner).and_then(|conn| self.sessions.get(conn));
        let step_ms = session.map_or(0.0, |session| session.step_ms_min);
        let steps_max = match self.counted.get(&(learner, update.fragment)) {
            Some(since) if step_ms > 0.0 => {
                (SPEED_SLACK * now.since(*since) as f64 / step_ms) as u64
                    + u64::from(self.spec.exchange.sync_every)
            }
            _ => u64::MAX,
        };
        let steps = u64::from(update.steps).min(steps_max);
        let tokens = update.tokens.min(steps.saturating_mul(step_tokens));
        self.ledger.countable(learner, update.fragment, tokens)
    }
}
