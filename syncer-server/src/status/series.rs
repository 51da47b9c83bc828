//! Time series of a run, in at most [`POINTS_MAX`] points regardless of its length.

use std::collections::{BTreeMap, VecDeque};

use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::diloco::{LearnerId, Millis};
use serde::{Deserialize, Serialize};

use super::history::History;
use super::view;

/// Maximum number of points, including the first and the newest.
pub const POINTS_MAX: usize = 600;

/// Statistics of a run over a short interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Total uptime of the run's syncers at the end of the interval, in seconds.
    pub time_s: f64,
    /// Mean training loss over the interval, in nats per token; `None` if no learner reported one.
    pub train_loss: Option<f32>,
    /// Mean of the tokens trained per second, over the interval.
    pub tokens_per_s: f32,
    /// Participation at the end of the interval: merged over trained tokens, 0 to 1.
    pub participation: f32,
    /// Mean number of learners in rounds, over the interval.
    pub live: f32,
    /// Cumulative WebSocket bytes from learners while training, at the end of the interval.
    pub bytes_up: u64,
    /// Cumulative WebSocket bytes to learners while training, at the end of the interval.
    pub bytes_down: u64,
    /// Merged tokens at the end of the interval.
    pub tokens_merged: u64,
    /// Merged rounds at the end of the interval.
    pub rounds: u64,
    /// End of the interval, in milliseconds since 1970, by the clock of the syncer's machine.
    pub at_ms: u64,
}

/// Sums over the samples of a point that is not complete yet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bucket {
    count: u32,
    losses: u32,
    loss_sum: f64,
    tokens_per_s_sum: f64,
    live_sum: f64,
    last: Point,
}

/// Time series of a run: its first sample, then points of `span` samples each. When the number of points reaches the
/// maximum, neighbours are merged in pairs and `span` doubles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    span: u32,
    points: Vec<Point>,
    open: Option<Bucket>,
    /// The newest sample, without averaging.
    newest: Option<Point>,
}

impl Default for Series {
    fn default() -> Self {
        Self { span: 1, points: Vec::new(), open: None, newest: None }
    }
}

impl Series {
    /// Adds a sample. Returns the point that it completes, if any.
    pub fn push(&mut self, sample: Point) -> Option<Point> {
        self.newest = Some(sample);
        let point = if self.points.is_empty() {
            sample
        } else {
            let bucket = self.open.take().map_or_else(|| Bucket::new(sample), |bucket| bucket.and(sample));
            if bucket.count < self.span {
                self.open = Some(bucket);
                return None;
            }
            bucket.point()
        };
        self.points.push(point);
        if self.points.len() == POINTS_MAX - 1 {
            self.halve();
        }
        Some(point)
    }

    /// Returns the number of samples per point.
    #[must_use]
    pub fn span(&self) -> u32 {
        self.span
    }

    /// Returns the points, oldest first, and the newest sample after them.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        let shown = self.points.last().map(|point| point.time_s);
        let newest = self.newest.iter().filter(move |newest| Some(newest.time_s) != shown);
        self.points.iter().chain(newest)
    }

    fn halve(&mut self) {
        let Some((first, rest)) = self.points.split_first() else { return };
        let merged = rest.chunks(2).filter_map(|pair| {
            let (one, others) = pair.split_first()?;
            Some(others.iter().fold(Bucket::new(*one), |bucket, point| bucket.and(*point)).point())
        });
        self.points = std::iter::once(*first).chain(merged).collect();
        self.span = self.span.saturating_mul(2);
    }
}

impl Bucket {
    fn new(point: Point) -> Self {
        Self {
            count: 1,
            losses: point.train_loss.is_some().into(),
            loss_sum: point.train_loss.unwrap_or(0.0).into(),
            tokens_per_s_sum: point.tokens_per_s.into(),
            live_sum: point.live.into(),
            last: point,
        }
    }

    fn and(self, point: Point) -> Self {
        let more = Self::new(point);
        Self {
            count: self.count + 1,
            losses: self.losses + more.losses,
            loss_sum: self.loss_sum + more.loss_sum,
            tokens_per_s_sum: self.tokens_per_s_sum + more.tokens_per_s_sum,
            live_sum: self.live_sum + more.live_sum,
            last: point,
        }
    }

    fn point(&self) -> Point {
        let count = f64::from(self.count);
        Point {
            train_loss: (self.losses > 0).then(|| (self.loss_sum / f64::from(self.losses)) as f32),
            tokens_per_s: (self.tokens_per_s_sum / count) as f32,
            live: (self.live_sum / count) as f32,
            ..self.last
        }
    }
}

/// `/v1/series`: columns of equal length, oldest point first, with measurements and texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SeriesView {
    /// Seconds per point. When it doubles, all points must be fetched again.
    pub span_s: u32,
    /// Total uptime of the run's syncers, in seconds.
    pub time_s: Vec<f64>,
    /// Mean training loss, in nats per token.
    pub train_loss: Vec<Option<f32>>,
    /// Tokens trained per second.
    pub tokens_per_s: Vec<f32>,
    /// Participation so far: merged over trained tokens, 0 to 1.
    pub participation: Vec<f32>,
    /// Learners in rounds.
    pub live: Vec<f32>,
    /// Cumulative WebSocket bytes from learners while training.
    pub bytes_up: Vec<u64>,
    /// Cumulative WebSocket bytes to learners while training.
    pub bytes_down: Vec<u64>,
    /// Merged tokens.
    pub tokens_merged: Vec<u64>,
    /// Merged rounds.
    pub rounds: Vec<u64>,
    /// Measurements of the held-out loss.
    pub evaluations: Vec<view::Evaluation>,
    /// Texts generated over the run.
    pub samples: Vec<view::TextSample>,
}

impl SeriesView {
    /// Returns the columns of `series`.
    #[must_use]
    pub fn new(series: &Series) -> Self {
        let mut view = Self { span_s: series.span(), ..Self::default() };
        for point in series.points() {
            view.time_s.push(point.time_s);
            view.train_loss.push(point.train_loss);
            view.tokens_per_s.push(point.tokens_per_s);
            view.participation.push(point.participation);
            view.live.push(point.live);
            view.bytes_up.push(point.bytes_up);
            view.bytes_down.push(point.bytes_down);
            view.tokens_merged.push(point.tokens_merged);
            view.rounds.push(point.rounds);
        }
        view
    }

    /// Returns the points, oldest first. If columns have unequal lengths, which no syncer sends, the shortest sets the
    /// number.
    pub fn points(&self) -> impl Iterator<Item = view::Point> {
        (0..self.time_s.len()).map_while(|at| {
            Some(view::Point {
                time_s: *self.time_s.get(at)?,
                train_loss: *self.train_loss.get(at)?,
                tokens_per_s: *self.tokens_per_s.get(at)?,
                participation: *self.participation.get(at)?,
                live: *self.live.get(at)?,
                bytes_up: *self.bytes_up.get(at)?,
                bytes_down: *self.bytes_down.get(at)?,
                tokens_merged: *self.tokens_merged.get(at)?,
                rounds: *self.rounds.get(at)?,
            })
        })
    }
}

/// Returns the columns of `series`, with the measurements and texts in `history`.
#[must_use]
pub fn series_of(series: &Series, history: &History) -> SeriesView {
    let evaluations = history.evaluations.iter().map(|&evaluation| evaluation.into()).collect();
    let samples = history.samples.kept().iter().map(Into::into).collect();
    SeriesView { evaluations, samples, ..SeriesView::new(series) }
}

/// The event `point`: a new row for the columns of [`SeriesView`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct PointEvent {
    /// Seconds per point from now on.
    pub span_s: u32,
    /// The new row.
    #[serde(flatten)]
    pub point: view::Point,
}

/// Length of the window of [`Rate`], in milliseconds.
pub const RATE_WINDOW_MS: u64 = 10_000;

/// Growth per second of a count, over a sliding window.
#[derive(Debug, Default)]
pub struct Rate {
    samples: VecDeque<(Millis, u64)>,
}

impl Rate {
    /// Records the value of the count at `now`.
    pub fn sample(&mut self, now: Millis, count: u64) {
        self.samples.push_back((now, count));
        // One sample at or before the start of the window stays as the baseline.
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= RATE_WINDOW_MS) {
            self.samples.pop_front();
        }
    }

    /// Returns the growth per second; 0 before the second sample.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((from, before)), Some((to, after))) if to > from => {
                after.saturating_sub(*before) as f64 * 1e3 / to.since(*from) as f64
            }
            _ => 0.0,
        }
    }
}

/// Tokens per second of each connected learner. Learners that leave are removed.
#[derive(Debug, Default)]
pub struct Speeds {
    rates: BTreeMap<LearnerId, Rate>,
}

impl Speeds {
    /// Records the trained tokens of all connected learners at `now`.
    pub fn sample(&mut self, now: Millis, syncer: &Syncer) {
        let mut before = std::mem::take(&mut self.rates);
        for learner in syncer.present() {
            let mut rate = before.remove(&learner.learner).unwrap_or_default();
            rate.sample(now, learner.tokens_trained);
            self.rates.insert(learner.learner, rate);
        }
    }

    /// Returns the tokens per second of `learner`; 0 if it is not connected.
    #[must_use]
    pub fn of(&self, learner: LearnerId) -> f64 {
        self.rates.get(&learner).map_or(0.0, Rate::per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sample whose values grow with `second`. Every second sample has a loss.
    fn sample(second: u64) -> Point {
        Point {
            time_s: second as f64,
            train_loss: second.is_multiple_of(2).then_some(second as f32),
            tokens_per_s: second as f32,
            participation: 0.5,
            live: 3.0,
            bytes_up: second,
            bytes_down: 2 * second,
            tokens_merged: 3 * second,
            rounds: second / 10,
            at_ms: 1_000 * second,
        }
    }

    #[test]
    fn a_day_fits_and_keeps_its_ends() {
        let mut series = Series::default();
        for second in 1..=86_400 {
            series.push(sample(second));
            assert!(series.points().count() <= POINTS_MAX, "{second}");
        }
        let points: Vec<_> = series.points().collect();
        assert!(points.len() > POINTS_MAX / 4, "{}", points.len());
        assert_eq!((*points[0], *points[points.len() - 1]), (sample(1), sample(86_400)));
        assert!(points.is_sorted_by(|a, b| a.time_s < b.time_s && a.bytes_up < b.bytes_up));
    }

    #[test]
    fn halving_merges_neighbours() {
        let mut series = Series::default();
        for second in 0..POINTS_MAX as u64 - 1 {
            assert_eq!(series.push(sample(second)), Some(sample(second)));
        }
        assert_eq!((series.span(), series.points.len()), (2, 1 + (POINTS_MAX - 2) / 2));
        // Samples 1 and 2 are merged: rates and losses are means, totals are those at the end.
        let merged = Point { train_loss: Some(2.0), tokens_per_s: 1.5, ..sample(2) };
        assert_eq!((series.points[0], series.points[1]), (sample(0), merged));
        assert_eq!(series.push(sample(599)), None);
        assert_eq!(series.points().last(), Some(&sample(599)), "the newest is shown as it is");
        let merged = Point { train_loss: Some(600.0), tokens_per_s: 599.5, ..sample(600) };
        assert_eq!(series.push(sample(600)), Some(merged));
    }

    #[test]
    fn snapshots_hold_it() {
        let mut series = Series::default();
        for second in 0..1_000 {
            series.push(sample(second));
        }
        let json = serde_json::to_string(&series).unwrap();
        assert_eq!(serde_json::from_str::<Series>(&json).unwrap(), series);
    }

    #[test]
    fn columns_are_of_equal_length() {
        let mut series = Series::default();
        for second in 0..1_000 {
            series.push(Point { time_s: f64::from(second), ..Point::default() });
        }
        let view = serde_json::to_value(SeriesView::new(&series)).unwrap();
        let columns = ["timeS", "trainLoss", "tokensPerS", "participation", "live", "bytesUp"];
        let more = ["bytesDown", "tokensMerged", "rounds"];
        for column in columns.iter().chain(&more) {
            assert_eq!(view[column].as_array().unwrap().len(), series.points().count(), "{column}");
        }
    }

    #[test]
    fn rate_slides() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_s(), 0.0);
        for second in 0..=20 {
            // 100 tokens a second, then 300 a second from second 10 on.
            let count = if second <= 10 { second * 100 } else { 1_000 + (second - 10) * 300 };
            rate.sample(Millis(second * 1_000), count);
        }
        assert_eq!(rate.per_s(), 300.0);
        assert!(rate.samples.len() <= 12);
    }
}
