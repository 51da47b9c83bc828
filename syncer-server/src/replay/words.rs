//! Readable report of a replay.

use std::fmt::{Display, Formatter, Result};

use archipelago_core::diloco::Round;
use chrono::DateTime;

use super::{Losses, Replay, Rise};
use crate::tape::{ReplayedMerge, Undone};

/// Display form of a round's number. It counts from each start of the syncer; the upper half of the number identifies
/// the start, so that round numbers are unique in a run.
struct Told(Round);

impl Display for Told {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.0.0 & u64::from(u32::MAX))
    }
}

/// Returns the time `at_ms` milliseconds after 1970, to the second.
fn date(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(DateTime::from_timestamp_millis);
    at.map_or_else(|| format!("{at_ms} ms"), |at| at.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

impl Display for ReplayedMerge {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { seq, at_ms, round, fragment, members, tokens, norm, loss, .. } = self;
        let learners = members.len();
        write!(
            f,
            "decision {seq} at {}: round {} on fragment {fragment}, {learners} learners, {tokens} tokens, ",
            date(*at_ms),
            Told(*round),
        )?;
        write!(f, "norm {norm:.4}")?;
        loss.map_or(Ok(()), |loss| write!(f, ", loss {loss:.4}"))
    }
}

impl Display for Replay {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { first, last, merges, run_s, took_s, tokens_merged, .. } = self;
        let Self { undone, damaged, losses, exported, .. } = self;
        write!(
            f,
            "decisions {first} to {last}: {merges} merges of {run_s:.0} s recomputed in {took_s:.1} s, "
        )?;
        write!(f, "each to the same bits; {tokens_merged} tokens are merged")?;
        undone.iter().try_for_each(|what| write!(f, "\n{what}"))?;
        damaged
            .iter()
            .try_for_each(|what| write!(f, "\na snapshot is damaged, and a start ignores it: {what}"))?;
        losses.as_ref().map_or(Ok(()), |losses| write!(f, "\n{losses}"))?;
        match exported {
            Some(exported) => {
                write!(f, "\nwrote {} parameters to {}", exported.params, exported.out.display())
            }
            None => Ok(()),
        }
    }
}

impl Display for Undone {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { seq, fragment, without, .. } = self;
        let names: Vec<String> = without.iter().map(|learner| format!("learner {learner}")).collect();
        write!(f, "decision {seq}: fragment {fragment} was recomputed without the updates of ")?;
        write!(f, "{}, which raised the held-out loss", names.join(", "))
    }
}

impl Display for Losses {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { first, least, last, every, rise } = self;
        write!(f, "held-out loss: {first:.4} at first, {least:.4} at best, {last:.4} at last, ")?;
        writeln!(f, "measured every {every} merges")?;
        match rise {
            Some(rise) => write!(f, "{rise}"),
            None => write!(f, "it rose between no two measurements"),
        }
    }
}

impl Display for Rise {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { seq, round, fragment, before, after, members } = self;
        let round = Told(*round);
        write!(f, "it rose most with decision {seq}, round {round} on fragment {fragment}: ")?;
        write!(f, "from {before:.4} to {after:.4}, by the updates of")?;
        members.iter().enumerate().try_for_each(|(place, member)| {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma} {} (learner {}, {:.0} %)", member.name, member.learner, 100.0 * member.share)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_a_date() {
        assert_eq!(date(1_795_937_160_999), "2026-11-29 07:26:00 UTC");
        assert_eq!(date(u64::MAX), format!("{} ms", u64::MAX));
    }

    #[test]
    fn rounds_are_counted_from_each_start() {
        assert_eq!(Told(Round(7)).to_string(), "7");
        assert_eq!(Told(Round((1_790_000_000 << 32) + 7)).to_string(), "7");
    }
}
