//! Everything that is shown of a run, brought up to date as it goes.

use std::sync::Arc;

use archipelago::diloco::Millis;
use archipelago::diloco::syncer::{Event, Syncer};

use super::learners::{foremost, page_of};
use super::rate::Speeds;
use super::{
    Carried, Facts, LearnersPage, LearnersQuery, Point, PointEvent, Rate, Rounds, RoundsView, Series,
    SeriesView, ServerStatus, TextSample,
};
use crate::evaluate::{Evaluation, History};
use crate::meters::Traffic;

/// What is shown, beside what the core knows.
pub struct Board {
    facts: Facts,
    /// Time that earlier starts were up, in seconds.
    run_s_before: f64,
    history: History,
    series: Series,
    /// The series as JSON, as long as it is current.
    series_json: Option<Arc<str>>,
    rounds: Rounds,
    rate: Rate,
    speeds: Speeds,
}

impl Board {
    /// A board that goes on from `carried`.
    #[must_use]
    pub fn new(facts: Facts, carried: Carried) -> Self {
        Self {
            facts,
            run_s_before: carried.run_s,
            history: carried.history,
            series: carried.series,
            series_json: None,
            rounds: Rounds::default(),
            rate: Rate::default(),
            speeds: Speeds::default(),
        }
    }

    /// What of this a snapshot keeps.
    #[must_use]
    pub fn carried(&self, now: Millis, traffic: Traffic) -> Carried {
        let (history, series) = (self.history.clone(), self.series.clone());
        Carried { traffic, history, series, run_s: self.run_s(now) }
    }

    /// Takes in an event of the core.
    pub fn note(&mut self, now: Millis, event: &Event) {
        self.rounds.note(now, event);
    }

    /// Takes in a measurement of the held-out loss, and the text that came with it, if one did.
    pub fn evaluated(&mut self, now: Millis, evaluation: Evaluation, text: Option<String>) -> Evaluation {
        let evaluation = Evaluation { time_s: self.run_s(now), ..evaluation };
        self.history.push(evaluation, text);
        self.series_json = None;
        evaluation
    }

    /// The newest text.
    #[must_use]
    pub fn newest_sample(&self) -> Option<&TextSample> {
        self.history.samples.kept().last()
    }

    /// Once a second: measures rates and adds to the series. Gives the point that is complete now, if any.
    pub fn tick(&mut self, now: Millis, syncer: &Syncer, traffic: Traffic) -> Option<PointEvent> {
        let core = syncer.status();
        self.rate.sample(now, core.tokens_trained);
        self.speeds.sample(now, syncer);
        self.series_json = None;
        let point = self.series.push(Point {
            time_s: self.run_s(now),
            train_loss: core.train_loss,
            tokens_per_s: self.rate.per_s() as f32,
            participation: core.participation as f32,
            live: core.live as f32,
            bytes_up: traffic.bytes_up,
            bytes_down: traffic.bytes_down,
            tokens_merged: core.tokens_merged,
            rounds: core.rounds,
        })?;
        Some(PointEvent { span_s: self.series.span(), point })
    }

    /// How the run stands.
    #[must_use]
    pub fn status(&self, now: Millis, syncer: &Syncer, traffic: Traffic, sockets: u32) -> ServerStatus {
        let (learners, learners_by_state) = foremost(syncer, &self.speeds, now);
        ServerStatus {
            core: syncer.status(),
            facts: self.facts.clone(),
            traffic,
            bits_per_param_up: traffic.bits_per_param_up(),
            bits_per_param_down: traffic.bits_per_param_down(),
            tokens_per_s: self.rate.per_s(),
            val_loss_first: self.history.first(),
            val_loss_last: self.history.last(),
            sample: self.history.sample.clone(),
            learners,
            learners_by_state,
            sockets,
            uptime_s: now.0 as f64 / 1e3,
            run_s: self.run_s(now),
        }
    }

    /// Some learners of all.
    #[must_use]
    pub fn learners(&self, now: Millis, syncer: &Syncer, query: LearnersQuery) -> LearnersPage {
        page_of(syncer, &self.speeds, now, query)
    }

    /// The last rounds.
    #[must_use]
    pub fn rounds(&self, now: Millis) -> RoundsView {
        self.rounds.all(now)
    }

    /// The rounds that changed since the last call; `None` if none did.
    pub fn take_changed_rounds(&mut self, now: Millis) -> Option<RoundsView> {
        self.rounds.take_changed(now)
    }

    /// The course of the run as JSON.
    pub fn series_json(&mut self) -> Arc<str> {
        let (series, history) = (&self.series, &self.history);
        let json = self.series_json.get_or_insert_with(|| {
            let evaluations = history.evaluations.clone();
            let samples = history.samples.kept().to_vec();
            let view = SeriesView { evaluations, samples, ..SeriesView::new(series) };
            serde_json::to_string(&view).expect("plain data").into()
        });
        Arc::clone(json)
    }

    fn run_s(&self, now: Millis) -> f64 {
        self.run_s_before + now.0 as f64 / 1e3
    }
}
