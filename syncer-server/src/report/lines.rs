//! `history.jsonl`: the curves of a run, one line per point.

use archipelago_core::wire::LearnerId;
use serde::Serialize;

use crate::status::{Carried, Evaluation, Point};

/// A point of the series, or a measurement of the held-out loss. Names and units are those of `/v1/series`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    time_s: f64,
    tokens_merged: u64,
    rounds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    val_loss: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_by: Option<LearnerId>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    course: Option<Course>,
}

/// Fields that only points of the series have.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Course {
    train_loss: Option<f32>,
    tokens_per_s: f32,
    participation: f32,
    live: f32,
    bytes_up: u64,
    bytes_down: u64,
}

/// Renders one JSON object per line, by time. A measurement of the held-out loss has a line of its own with `valLoss`;
/// the other lines have means and totals of the series.
#[must_use]
pub fn lines(carried: &Carried) -> String {
    let course = carried.series.points().map(of_point);
    let mut lines: Vec<Line> = course.chain(carried.history.evaluations.iter().map(of_evaluation)).collect();
    lines.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
    lines.iter().map(|line| serde_json::to_string(line).expect("plain data") + "\n").collect()
}

fn of_point(point: &Point) -> Line {
    let course = Course {
        train_loss: point.train_loss,
        tokens_per_s: point.tokens_per_s,
        participation: point.participation,
        live: point.live,
        bytes_up: point.bytes_up,
        bytes_down: point.bytes_down,
    };
    let Point { time_s, tokens_merged, rounds, .. } = *point;
    Line { time_s, tokens_merged, rounds, val_loss: None, measured_by: None, course: Some(course) }
}

fn of_evaluation(evaluation: &Evaluation) -> Line {
    let Evaluation { time_s, tokens_merged, rounds, loss, measured_by } = *evaluation;
    Line { time_s, tokens_merged, rounds, val_loss: Some(loss), measured_by, course: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_measurements_are_in_the_order_of_time() {
        let mut carried = Carried::default();
        for second in [1.0, 3.0] {
            let (train_loss, live) = ((second > 2.0).then_some(1.5), 2.0);
            carried.series.push(Point {
                time_s: second,
                train_loss,
                live,
                tokens_merged: 7,
                ..Point::default()
            });
        }
        let evaluation = Evaluation {
            tokens_merged: 7,
            rounds: 4,
            loss: 2.5,
            time_s: 2.0,
            measured_by: Some(LearnerId(3)),
        };
        carried.history.push(evaluation, None);
        let course = r#""tokensPerS":0.0,"participation":0.0,"live":2.0,"bytesUp":0,"bytesDown":0}"#;
        let expected = [
            format!(r#"{{"timeS":1.0,"tokensMerged":7,"rounds":0,"trainLoss":null,{course}"#),
            r#"{"timeS":2.0,"tokensMerged":7,"rounds":4,"valLoss":2.5,"measuredBy":3}"#.to_owned(),
            format!(r#"{{"timeS":3.0,"tokensMerged":7,"rounds":0,"trainLoss":1.5,{course}"#),
        ];
        assert_eq!(lines(&carried).lines().collect::<Vec<_>>(), expected);
        assert_eq!(lines(&Carried::default()), "");
    }
}
