//! Readable output of a replay.

use std::fmt::{Display, Formatter, Result};

use archipelago_core::diloco::Round;
use chrono::DateTime;

use super::{Losses, Replay, Rise};
use crate::inspect::{count, duration};
use crate::report::{HEAD, Html, curve};
use crate::tape::{ReplayedMerge, RolledBackFragment};

/// Display form of a round's number: the lower half, which restarts with each start of the syncer. The upper half
/// identifies the start, so that numbers are unique in a run.
struct DisplayRound(Round);

impl Display for DisplayRound {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.0.0 & u64::from(u32::MAX))
    }
}

/// Formats `at_ms`, in milliseconds since 1970, as date and time to the second.
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
            DisplayRound(*round),
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

impl Display for RolledBackFragment {
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
        let round = DisplayRound(*round);
        write!(f, "it rose most with decision {seq}, round {round} on fragment {fragment}: ")?;
        write!(f, "from {before:.4} to {after:.4}, by the updates of")?;
        members.iter().enumerate().try_for_each(|(place, member)| {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma} {} (learner {}, {:.0} %)", member.name, member.learner, 100.0 * member.share)
        })
    }
}

/// Approximate number of points in a curve.
const POINTS_MAX: u64 = 1_000;

/// Curves over the merges of a run. Several merges may share a point, which has their largest norm, because a single
/// merge may do harm, and their mean number of learners.
pub(super) struct Curves {
    /// Number of merges per point.
    each: u64,
    merges: u64,
    learners: f64,
    norm: f64,
    losses: Vec<(f64, f64)>,
    cohorts: Vec<(f64, f64)>,
    norms: Vec<(f64, f64)>,
}

impl Curves {
    /// Creates empty curves for about `merges` merges.
    pub(super) fn new(merges: u64) -> Self {
        let each = merges.div_ceil(POINTS_MAX).max(1);
        let (losses, cohorts, norms) = (Vec::new(), Vec::new(), Vec::new());
        Self { each, merges: 0, learners: 0.0, norm: 0.0, losses, cohorts, norms }
    }

    /// Adds the next merge to the curves.
    pub(super) fn add(&mut self, merge: &ReplayedMerge) {
        self.merges += 1;
        self.learners += merge.members.len() as f64;
        self.norm = self.norm.max(merge.norm);
        let x = self.merges as f64;
        self.losses.extend(merge.loss.map(|loss| (x, loss.into())));
        if self.merges.is_multiple_of(self.each) {
            self.cohorts.push((x, self.learners / self.each as f64));
            self.norms.push((x, self.norm));
            (self.learners, self.norm) = (0.0, 0.0);
        }
    }

    /// Returns the curves as an HTML page.
    pub(super) fn page(self, replay: &Replay) -> String {
        let mut html = Html::default();
        let title = format!("The merges of run {}", replay.run);
        html.raw(HEAD).element("title", &title).raw("</head>\n<body>\n<main>\n").element("h1", &title);
        let (merges, run_s) = (count(replay.merges), duration(replay.run_s));
        let first = format!("Decisions {} to {}: {merges} merges in {run_s}", replay.first, replay.last);
        html.element("p", &format!("{first}, each recomputed to the same bits."));
        if let Some(losses) = &replay.losses {
            for line in losses.to_string().lines() {
                html.element("p", line);
            }
            curve(&mut html, "Held-out loss", ["merges", "nats per token"], [("loss", 0, self.losses)]);
        }
        let cohort = [("learners", 2, self.cohorts)];
        curve(&mut html, "Learners with an update in a merge", ["merges", "learners"], cohort);
        let norm = [("largest norm", 1, self.norms)];
        curve(&mut html, "How far a merge moved, before the outer step", ["merges", "L2 norm"], norm);
        html.raw("</main>\n</body>\n</html>\n");
        html.into_text()
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
        assert_eq!(DisplayRound(Round(7)).to_string(), "7");
        assert_eq!(DisplayRound(Round((1_790_000_000 << 32) + 7)).to_string(), "7");
    }
}
