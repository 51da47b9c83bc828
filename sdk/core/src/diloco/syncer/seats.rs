//! Who has a seat when more come than there are.

use super::Syncer;
use super::standings::merit;
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
        let ledger = self.ledger();
        let merit = comes.map_or(0, |learner| merit(ledger, learner));
        if merit == 0 && ledger.len() > ledger.strangers() {
            let strangers = self.standings.strangers();
            if strangers >= seats.div_ceil(2) {
                return Err(full(format!(
                    "{strangers} learners are connected of whom nothing was merged yet, which is the limit"
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
