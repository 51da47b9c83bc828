//! Search for the merge that raised the held-out loss most: a coarse pass over the tape, then finer passes within the
//! steepest rise.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use archipelago_core::diloco::syncer::Recovery;
use archipelago_core::diloco::{FragmentId, Layout, Round};
use serde::Serialize;

use crate::errors::ServerError;
use crate::evaluate::LossMeter;
use crate::export::flat;
use crate::tape::{MergedSender, Recording, Replayed, ReplayedMerge};

/// Course of the held-out loss over a replay, in nats per token.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Losses {
    /// Loss before the first replayed merge.
    pub first: f32,
    /// Lowest measured loss.
    pub least: f32,
    /// Loss after the last merge and all rollbacks.
    pub last: f32,
    /// Approximate number of merges between two measurements of the first pass.
    pub every: u64,
    /// Merge that raised the loss most, within the steepest rise between two measurements of the first pass. `None` if
    /// the loss never rose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rise: Option<Rise>,
}

/// A merge that raised the loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rise {
    /// Number of the decision on the tape.
    pub seq: u64,
    /// Number of the round.
    pub round: Round,
    /// Merged fragment.
    pub fragment: FragmentId,
    /// Held-out loss before the merge, in nats per token.
    pub before: f32,
    /// Held-out loss after the merge, in nats per token.
    pub after: f32,
    /// Learners whose updates were merged, with their shares.
    pub members: Vec<MergedSender>,
}

/// A measurement of the held-out loss.
#[derive(Clone, Debug)]
struct Point {
    /// Number of merges before the measurement.
    merges: u64,
    loss: f32,
    /// Last merge before the measurement; `None` at the start.
    merge: Option<ReplayedMerge>,
}

/// Search for the merge that raised the held-out loss most.
pub struct Search<'a> {
    recording: &'a Recording,
    until: u64,
    points: u64,
    meter: LossMeter,
    layout: Layout,
    /// Measurements of the first pass.
    overview: Vec<Point>,
    /// Loss after the last merge and all rollbacks, once the first pass is done.
    last: f32,
    every: u64,
}

impl<'a> Search<'a> {
    /// Creates a search up to decision `until`, with about `points` measurements per pass over the tape.
    ///
    /// # Errors
    /// - `DirCorrupt`: the folder has no held-out text.
    /// - `Disk`: the folder cannot be read.
    /// - `Config`: the model is not the built-in decoder.
    /// - `Internal`: the manifest has no valid model.
    pub fn new(recording: &'a Recording, until: u64, points: u32) -> Result<Self, ServerError> {
        let spec = &recording.manifest().spec;
        let Some(decoder) = recording.manifest().decoder()? else {
            let why = "--losses: the model of this run is not the built-in decoder, so this program cannot measure it";
            return Err(ServerError::Config { why: why.to_owned() });
        };
        let store = recording.store();
        let held_out = store.held_out(&spec.model)?.ok_or_else(|| ServerError::DirCorrupt {
            path: store.dir().to_owned(),
            why: "it holds no text to measure the loss on: the run has no held-out text".to_owned(),
        })?;
        let frozen = store.frozen(spec)?.map(Arc::new);
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let points = u64::from(points).max(1);
        Ok(Self {
            recording,
            until,
            points,
            meter: LossMeter::new(&decoder, frozen, held_out, threads)?,
            layout: recording.manifest().layout()?,
            overview: Vec::new(),
            last: f32::NAN,
            every: recording.merges(until)?.div_ceil(points).max(1),
        })
    }

    /// Makes the first pass, over the whole tape. Calls `on_merge` with each merge, which has its loss if it was
    /// measured.
    ///
    /// # Errors
    /// Those of [`Recording::play`].
    pub fn overview(&mut self, on_merge: impl FnMut(&ReplayedMerge)) -> Result<Replayed, ServerError> {
        let all = 0..self.recording.merges(self.until)?;
        let (points, replayed) = self.pass(all, self.every, self.until, on_merge)?;
        // A rollback after the last merge changes the loss without a merge.
        self.last = match points.last() {
            Some(point) if replayed.undone.is_empty() => point.loss,
            _ => self.loss(&replayed.recovery)?,
        };
        self.overview = points;
        Ok(replayed)
    }

    /// Makes further passes over ever smaller ranges until the merge is found.
    ///
    /// # Errors
    /// Those of [`Recording::play`].
    pub fn finish(&mut self) -> Result<Losses, ServerError> {
        let first = self.overview.first().map_or(f32::NAN, |point| point.loss);
        let least = self.overview.iter().map(|point| point.loss).fold(f32::INFINITY, f32::min);
        let mut rise = steepest(&self.overview);
        let mut step = self.every;
        while let Some((before, after)) = &rise
            && step > 1
        {
            let range = before.merges..after.merges;
            // Each range is at most half as long as the one before it, so the search ends.
            step = (range.end - range.start).div_ceil(self.points.max(2)).max(1);
            let until = after.merge.as_ref().map_or(0, |merge| merge.seq);
            rise = steepest(&self.pass(range, step, until, |_| {})?.0);
        }
        let rise = rise.and_then(|(before, after)| {
            let ReplayedMerge { seq, round, fragment, members, .. } = after.merge?;
            Some(Rise { seq, round, fragment, before: before.loss, after: after.loss, members })
        });
        Ok(Losses { first, least, last: self.last, every: self.every, rise })
    }

    /// Replays up to decision `until`. Measures at the start of `range`, after every `step`th merge of it, and after
    /// its last.
    fn pass(
        &mut self,
        range: Range<u64>,
        step: u64,
        until: u64,
        mut on_merge: impl FnMut(&ReplayedMerge),
    ) -> Result<(Vec<Point>, Replayed), ServerError> {
        let recording = self.recording;
        let mut points = Vec::new();
        if range.start == 0 {
            let loss = self.loss(&recording.start()?.0)?;
            points.push(Point { merges: 0, loss, merge: None });
        }
        let mut merges = 0;
        let replayed = recording.play(until, |mut merge, recovery| {
            merges += 1;
            let is_due = merges >= range.start && (merges - range.start).is_multiple_of(step);
            if is_due || merges == range.end {
                let loss = self.loss(recovery)?;
                merge.loss = Some(loss);
                points.push(Point { merges, loss, merge: Some(merge.clone()) });
            }
            on_merge(&merge);
            Ok(())
        })?;
        Ok((points, replayed))
    }

    fn loss(&mut self, recovery: &Recovery) -> Result<f32, ServerError> {
        self.meter.loss(&flat(recovery.states(), &recovery.record().spec, &self.layout)?)
    }
}

/// Returns the two neighbouring points with the largest rise of the loss, if it rose at all. NaN counts as infinite.
fn steepest(points: &[Point]) -> Option<(Point, Point)> {
    let height = |point: &Point| if point.loss.is_nan() { f32::INFINITY } else { point.loss };
    let pairs = points.windows(2).filter_map(|pair| match pair {
        [before, after] if height(after) > height(before) => {
            Some((height(after) - height(before), before, after))
        }
        _ => None,
    });
    let steepest = pairs.max_by(|a, b| a.0.total_cmp(&b.0));
    steepest.map(|(_, before, after)| (before.clone(), after.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_where_the_loss_rose_most() {
        let points = |losses: &[f32]| -> Vec<Point> {
            let point = |(merges, loss): (u64, &f32)| Point { merges, loss: *loss, merge: None };
            (0..).zip(losses).map(point).collect()
        };
        let found = |losses: &[f32]| steepest(&points(losses)).map(|(a, b)| (a.merges, b.merges));
        assert_eq!(found(&[5.0, 4.0, 4.1, 3.0, 3.5, 3.4]), Some((3, 4)));
        assert_eq!(found(&[5.0, 4.0, 3.0]), None, "it only fell");
        assert_eq!(found(&[5.0, 4.0, f32::NAN, 3.0, 100.0]), Some((1, 2)), "no number is worse than any");
        assert_eq!(found(&[5.0]), None);
    }
}
