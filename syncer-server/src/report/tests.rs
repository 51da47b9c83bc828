//! Tests of the report: escaping of texts, absence of fetches, and sums.

use archipelago_core::diloco::syncer::{Syncer, SyncerConfig};
use archipelago_core::wire::{DataSpec, RunId, ShardSpec};

use super::run_report::Contributor;
use super::*;
use crate::status::{Carried, Evaluation, Point};

/// Creates the data of a run that has started and merged nothing, with this course.
pub(super) fn story(carried: Carried) -> RunReport {
    let config = crate::ServeConfig::default();
    let shards = vec![ShardSpec { tokens: 100_000, sha256: [7; 32] }];
    let data = DataSpec { token_bytes: 2, masks: false, shards };
    let model = crate::config::preset(&config).unwrap().model(256).into();
    let spec = crate::config::run_spec(&config, model, data).unwrap();
    let layout = crate::prepare::layout(&spec).unwrap();
    let theta = vec![0.0; layout.len()];
    let syncer = Syncer::new(RunId(7), spec, SyncerConfig::default(), &layout, &theta).unwrap();
    RunReport::new(&syncer.record_amid(), layout.len() as u64, carried, false)
}

fn person(name: &str, tokens_merged: u64) -> Contributor {
    Contributor { name: name.into(), device: "cpu".into(), tokens_merged, updates: 1 }
}

#[test]
fn strangers_write_no_marks() {
    let mut story = story(Carried::default());
    story.people = vec![person("</td><script>alert(1)</script>", 3)];
    story.tokens_merged = 4;
    story.carried.corpus = "<img src=x>".into();
    let evaluation = Evaluation { tokens_merged: 1, rounds: 1, loss: 2.0, time_s: 1.0, measured_by: None };
    story.carried.history.push(evaluation, Some("</pre><script>".into()));
    let page = page(&story);
    assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
    assert!(page.contains("&lt;/td&gt;&lt;script&gt;alert(1)") && page.contains("&lt;/pre&gt;"), "{page}");
    assert!(page.contains("75.0 %"), "{page}");
}

#[test]
fn nothing_is_fetched_from_anywhere() {
    let page = page(&story(Carried::default()));
    for outside in ["src=", "href=", "url(", "@import", "https://"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("not measured") && page.contains("No one yet."));
}

#[test]
fn curves_and_settings_are_told() {
    let mut carried = Carried::default();
    for rounds in 0..40 {
        let evaluation = Evaluation {
            tokens_merged: 1_000 * rounds,
            rounds,
            loss: 5.0,
            time_s: rounds as f64,
            measured_by: None,
        };
        carried.history.push(evaluation, Some(format!("text {rounds}.")));
        let point = Point { time_s: rounds as f64, train_loss: Some(4.0), live: 2.0, ..Point::default() };
        carried.series.push(point);
    }
    let page = page(&story(carried));
    assert_eq!(page.matches("class=\"line\"").count(), 3, "two of losses and one of learners");
    assert_eq!(page.matches("at a held-out loss of").count(), 8);
    assert!(page.contains("text 0.") && page.contains("text 39."));
    assert!(page.contains("exchange.sync_every") && page.contains("model.layers"));
}

#[test]
fn a_crowd_is_added_up() {
    let mut story = story(Carried::default());
    story.people = (0..250).map(|number| person(&format!("learner {number}."), 10)).collect();
    story.tokens_merged = 2_500;
    let page = page(&story);
    assert!(page.contains("learner 199.") && !page.contains("learner 200."));
    assert!(page.contains("50 more") && page.contains("20.0 %"));
}
