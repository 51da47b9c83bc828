//! The course of a run for pages: columns, and events that append rows.

use serde::Serialize;

use super::history::History;
use super::series::Series;
use super::view;

/// `/v1/series`: columns of equal length, oldest first, with measurements and texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SeriesView {
    /// Seconds per point. When it doubles, fetch all points again.
    pub span_s: u32,
    /// Uptime of the run's syncers, in seconds.
    pub time_s: Vec<f64>,
    /// Mean training loss, in nats per token.
    pub train_loss: Vec<Option<f32>>,
    /// Tokens trained per second.
    pub tokens_per_s: Vec<f32>,
    /// Participation so far: merged over trained tokens, 0 to 1.
    pub participation: Vec<f32>,
    /// Learners in rounds.
    pub live: Vec<f32>,
    /// WebSocket bytes from learners so far.
    pub bytes_up: Vec<u64>,
    /// WebSocket bytes to learners so far.
    pub bytes_down: Vec<u64>,
    /// Tokens merged so far.
    pub tokens_merged: Vec<u64>,
    /// Rounds merged so far.
    pub rounds: Vec<u64>,
    /// Measurements of the held-out loss.
    pub evaluations: Vec<view::Evaluation>,
    /// Texts of the model over the run.
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
}

/// Returns the columns of `series` with the measurements and texts of `history`.
#[must_use]
pub fn series_of(series: &Series, history: &History) -> SeriesView {
    let evaluations = history.evaluations.iter().map(|&evaluation| evaluation.into()).collect();
    let samples = history.samples.kept().iter().map(Into::into).collect();
    SeriesView { evaluations, samples, ..SeriesView::new(series) }
}

/// The event `point`: one more row of [`SeriesView`].
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

#[cfg(test)]
mod tests {
    use super::super::series::Point;
    use super::*;

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
}
