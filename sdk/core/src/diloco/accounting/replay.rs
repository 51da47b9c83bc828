//! Replay of tape entries into the books.

use super::LeasePool;
use super::{LeaseError, Ledger};
use crate::diloco::Entry;
use crate::wire::{LeaseId, Millis};

/// Applies `entry` to the leases and the ledger. A window has `context` tokens.
///
/// # Errors
/// [`LeaseError::OutOfTurn`]: a lease does not follow the previous ones.
pub(in crate::diloco) fn follow(
    entry: &Entry,
    leases: &mut LeasePool,
    ledger: &mut Ledger,
    context: u32,
) -> Result<(), LeaseError> {
    let tokens = |windows: u32| u64::from(windows) * u64::from(context);
    match entry {
        Entry::Began { next_round, slack_tokens } => {
            leases.reopen(LeaseId(*next_round));
            ledger.reopen(*slack_tokens);
        }
        Entry::Enrolled { learner, identity, name, device } => ledger.open(*learner, *identity, name, device),
        Entry::Forgotten { learner } => ledger.forget(*learner),
        Entry::Restarted { learner } => ledger.restart(*learner),
        Entry::Leased { learner, grant } => {
            leases.regrant(*learner, *grant)?;
            ledger.lease(*learner, tokens(grant.windows));
        }
        Entry::Reported { learner, tokens, leases: done } => {
            ledger.report(*learner, *tokens);
            for &(lease, done) in done {
                // The deadline is set again after a restart.
                leases.progress(*learner, lease, done, Millis(0));
            }
        }
        Entry::Returned { learner, lease, expired, .. } => {
            for back in leases.withdraw(*learner, &[*lease]) {
                if !expired {
                    ledger.take_back(*learner, tokens(back.windows));
                }
            }
        }
        Entry::Settled { fragment, learner, serial, fate } => {
            ledger.settle(*learner, *fragment, *serial, fate)
        }
        Entry::Merged(merge) => {
            ledger.note_merge(merge);
            for (part, settled) in merge.parts.iter().zip(merge.settled()) {
                ledger.settle(part.learner, merge.fragment, part.serial, &settled.fate);
            }
        }
        Entry::Blamed { learner } => ledger.blame(*learner),
        Entry::Doubted { learner, doubt } => {
            ledger.suspect(*learner, *doubt);
        }
        Entry::Pardoned { learner } => ledger.pardon(*learner),
        Entry::Remade(_)
        | Entry::Abandoned { .. }
        | Entry::Held { .. }
        | Entry::Paced { .. }
        | Entry::Dropped { .. }
        | Entry::Finishing
        | Entry::Finished => {}
    }
    Ok(())
}
