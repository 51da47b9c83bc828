//! Admission when the seats are full.

use super::Syncer;
use super::learner_stats::merit;
use crate::wire::{Bye, CloseCode, LearnerId};

/// Time after which a learner without a seat may return, in milliseconds. Our own constant.
const FULL_WAIT_MS: u32 = 10_000;

impl Syncer {
    /// Makes room for a new learner, whose number is `comes` if it was here before.
    ///
    /// Once any update is merged, learners without merged updates hold at most half of the seats. A learner that was
    /// merged for more than twice as long as another takes its seat. Idle identities therefore cannot keep out a
    /// learner that trains.
    ///
    /// # Errors
    /// The goodbye to send, with the time after which the learner may return.
    pub(super) fn seat(&mut self, comes: Option<LearnerId>) -> Result<(), Bye> {
        let seats = self.config.learners_max as usize;
        let ledger = self.ledger();
        let merit = comes.map_or(0, |learner| merit(ledger, learner));
        if merit == 0 && ledger.len() > ledger.strangers() {
            let strangers = self.standings.strangers();
            if strangers >= seats.div_ceil(2) {
                return Err(full(format!(
                    "{strangers} learners without a merged update are connected, which is the limit"
                )));
            }
        }
        if self.roster.len() < seats {
            return Ok(());
        }
        let least = self.standings.least().filter(|(least, _)| 2 * least < merit);
        let Some(conn) = least.and_then(|(_, learner)| self.roster.conn(learner)) else {
            return Err(full(format!("{seats} learners are connected, which is the limit")));
        };
        self.close(conn, full("one that trained for longer needs the seat".to_owned()));
        Ok(())
    }
}

fn full(why: String) -> Bye {
    let reason = format!("{why}: come back in {} s", FULL_WAIT_MS / 1_000);
    Bye { wait_ms: FULL_WAIT_MS, ..Bye::new(CloseCode::Full, reason) }
}
