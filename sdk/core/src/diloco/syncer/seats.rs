//! Who has a seat when more come than there are.

use super::Syncer;
use crate::wire::{Bye, CloseCode, LearnerId};

/// For so long is one for whom there is no seat to leave the syncer alone, in milliseconds; constant of ours.
const FULL_WAIT_MS: u32 = 10_000;

impl Syncer {
    /// Makes sure that there is a seat for one that comes, which has this number if it was here before.
    ///
    /// Those of whom nothing was ever merged have at most half of the seats once anything was merged of anyone. One
    /// that was merged for more than twice as long as another takes its seat: whoever fills a run with identities that
    /// do next to nothing keeps nobody out who trains.
    ///
    /// # Errors
    /// The goodbye for it, with the time after which it may ask again.
    pub(super) fn seat(&mut self, comes: Option<LearnerId>) -> Result<(), Bye> {
        let seats = self.config.learners_max as usize;
        let merit = comes.map_or(0, |learner| self.merit(learner));
        let ledger = self.ledger();
        if merit == 0 && ledger.len() > ledger.strangers() {
            let strangers = self.roster.sessions().filter(|session| self.merit(session.learner) == 0).count();
            if strangers >= seats.div_ceil(2) {
                return Err(full(format!(
                    "{strangers} learners are connected of whom nothing was merged yet, which is the limit"
                )));
            }
        }
        if self.roster.len() < seats {
            return Ok(());
        }
        let merits = self.roster.sessions().map(|session| (self.merit(session.learner), session.learner));
        let least = merits.min().filter(|(least, _)| 2 * least < merit);
        let Some(conn) = least.and_then(|(_, learner)| self.roster.conn(learner)) else {
            return Err(full(format!("{seats} learners are connected, which is the limit")));
        };
        self.close(conn, full("one that trained for longer needs the seat".to_owned()));
        Ok(())
    }

    /// What `learner` has come to: 0 for one of whom nothing was merged.
    fn merit(&self, learner: LearnerId) -> u64 {
        let is_stranger = self.ledger().account(learner).is_none_or(|account| account.is_stranger());
        if is_stranger { 0 } else { self.ledger().merged_ms(learner).saturating_add(1) }
    }
}

fn full(why: String) -> Bye {
    let reason = format!("{why}: come back in {} s", FULL_WAIT_MS / 1_000);
    Bye { wait_ms: FULL_WAIT_MS, ..Bye::new(CloseCode::Full, reason) }
}
