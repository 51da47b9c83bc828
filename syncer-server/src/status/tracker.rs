//! Tracker of everything that the server publishes about a run.

use std::sync::Arc;

use archipelago_core::diloco::Millis;
use archipelago_core::diloco::syncer::{Event, Syncer};

use super::learners::{hidden_name, page_of, top_learners};
use super::series::Speeds;
use super::{
    AlertChange, AlertInputs, AlertTerms, Alerts, Disk, Evaluation, EventLog, History, LearnerView,
    LearnersPage, LearnersQuery, LogEntry, LogQuery, LogView, Point, PointEvent, Rate, Rounds, RoundsView,
    RunFacts, RunStatistics, Series, ServerStatus, Sort, series_of, view,
};
use crate::clock::unix_ms;
use crate::meters::Traffic;

/// Minimum time between two writes of the statistics, in milliseconds. A crash loses at most this much of the series.
const FIGURES_EVERY_MS: u64 = 10_000;

/// Status of a run beyond the core's own. The actor updates it.
pub struct StatusTracker {
    facts: RunFacts,
    /// Total uptime of earlier starts, in seconds.
    run_s_before: f64,
    /// Total uptime when the run was completed, in seconds; `None` before that.
    ended_s: Option<f64>,
    history: History,
    series: Series,
    /// The series as JSON, if it is current.
    series_json: Option<Arc<str>>,
    rounds: Rounds,
    rate: Rate,
    speeds: Speeds,
    disk: Disk,
    log: EventLog,
    alerts: Alerts,
    /// Time of the newest merge.
    merged_at: Option<Millis>,
    /// State at the last write of the statistics: the time, the merged tokens, and the uptime at the newest
    /// measurement.
    figures_kept: Option<(Millis, u64, Option<f64>)>,
}

impl StatusTracker {
    /// Creates a tracker that continues from `statistics` and from the stored lines of the log, oldest first.
    #[must_use]
    pub fn new(facts: RunFacts, statistics: RunStatistics, log: Vec<LogEntry>, terms: AlertTerms) -> Self {
        Self {
            facts,
            run_s_before: statistics.run_s,
            ended_s: None,
            history: statistics.history,
            series: statistics.series,
            series_json: None,
            rounds: Rounds::default(),
            rate: Rate::default(),
            speeds: Speeds::default(),
            disk: Disk::default(),
            log: EventLog::new(log),
            alerts: Alerts::new(terms),
            merged_at: None,
            figures_kept: None,
        }
    }

    /// Returns the state of tape, snapshots and shared services.
    pub fn disk(&mut self) -> &mut Disk {
        &mut self.disk
    }

    /// Updates the alerts. Returns those that were raised or cleared.
    pub fn update_alerts(&mut self, now: Millis, syncer: &Syncer) -> Vec<AlertChange> {
        let core = syncer.status();
        let inputs = AlertInputs {
            live: core.live,
            losses: self.history.last().zip(self.history.best()),
            snapshot_age_ms: self.disk.snapshot_age_ms(now),
            disk_fault: self.disk.fault(),
            disk_shortage: self.disk.shortage(),
            suspects: syncer.suspects().collect(),
            is_held: core.paused,
            is_over: core.finished,
        };
        self.alerts.update(now, &inputs)
    }

    /// Returns the run's log.
    pub fn log(&mut self) -> &mut EventLog {
        &mut self.log
    }

    /// Returns the lines of the run's log that `query` selects. `now_ms` is the current time in milliseconds since
    /// 1970.
    #[must_use]
    pub fn log_view(&self, now_ms: u64, query: &LogQuery) -> LogView {
        self.log.view(now_ms, query, self.facts.names_hidden)
    }

    /// Returns the statistics that snapshots store.
    #[must_use]
    pub fn statistics(&self, now: Millis, traffic: Traffic) -> RunStatistics {
        let (history, series) = (self.history.clone(), self.series.clone());
        RunStatistics { traffic, history, series, run_s: self.run_s(now), corpus: self.facts.corpus.clone() }
    }

    /// Returns the statistics if a write is due and the run has made progress since the last one. The first measurement
    /// is written immediately, because all later ones are compared with it.
    pub fn due_figures(&mut self, now: Millis, syncer: &Syncer, traffic: Traffic) -> Option<RunStatistics> {
        let merged = syncer.status().tokens_merged;
        let measured = self.history.evaluations.last().map(|evaluation| evaluation.time_s);
        let is_due = match self.figures_kept {
            None => merged > 0 || measured.is_some(),
            Some((_, _, None)) if measured.is_some() => true,
            Some((at, tokens, time_s)) => {
                now.since(at) >= FIGURES_EVERY_MS && (tokens, time_s) != (merged, measured)
            }
        };
        is_due.then(|| {
            self.figures_kept = Some((now, merged, measured));
            self.statistics(now, traffic)
        })
    }

    /// Returns true if the names and devices of learners are hidden.
    #[must_use]
    pub fn names_hidden(&self) -> bool {
        self.facts.names_hidden
    }

    /// Marks the run as complete: its uptime stops, and its series gets no more points.
    pub fn end(&mut self, now: Millis) {
        self.ended_s = Some(self.run_s(now));
    }

    /// Records an event of the core.
    pub fn note(&mut self, now: Millis, event: &Event) {
        if matches!(event, Event::Merged { .. }) {
            self.merged_at = Some(now);
        }
        self.rounds.note(now, event);
    }

    /// Records a measurement of the held-out loss, with the text generated at the same time, if any.
    pub fn evaluated(
        &mut self,
        now: Millis,
        evaluation: Evaluation,
        text: Option<String>,
    ) -> view::Evaluation {
        let evaluation = Evaluation { time_s: self.run_s(now), ..evaluation };
        self.history.push(evaluation, text);
        self.series_json = None;
        evaluation.into()
    }

    /// Returns the first and the newest held-out loss, in nats per token.
    #[must_use]
    pub fn losses(&self) -> [Option<f32>; 2] {
        [self.history.first(), self.history.last()]
    }

    /// Returns the newest generated text.
    #[must_use]
    pub fn newest_sample(&self) -> Option<view::TextSample> {
        self.history.samples.kept().last().map(Into::into)
    }

    /// Updates rates and the series; called once a second. Returns the point that this completes, if any.
    pub fn tick(&mut self, now: Millis, syncer: &Syncer, traffic: Traffic) -> Option<PointEvent> {
        let core = syncer.status();
        self.rate.sample(now, core.tokens_trained);
        self.speeds.sample(now, syncer);
        if self.ended_s.is_some() {
            return None;
        }
        self.series_json = None;
        let point = self.series.push(Point {
            time_s: self.run_s(now),
            at_ms: unix_ms(),
            train_loss: core.train_loss,
            tokens_per_s: self.rate.per_s() as f32,
            participation: core.participation as f32,
            live: core.live as f32,
            bytes_up: traffic.bytes_up,
            bytes_down: traffic.bytes_down,
            tokens_merged: core.tokens_merged,
            rounds: core.rounds,
        })?;
        Some(PointEvent { span_s: self.series.span(), point: point.into() })
    }

    /// Returns the status of the run.
    #[must_use]
    pub fn status(&self, now: Millis, syncer: &Syncer, traffic: Traffic, sockets: u32) -> ServerStatus {
        let (mut learners, learners_by_state) = top_learners(syncer, &self.speeds, now);
        self.hide(&mut learners);
        ServerStatus {
            core: syncer.status().into(),
            facts: self.facts.clone(),
            traffic: traffic.into(),
            bits_per_param_up: traffic.bits_per_param_up(),
            bits_per_param_down: traffic.bits_per_param_down(),
            tokens_per_s: self.rate.per_s(),
            disk: self.disk.view(now),
            alerts: self.alerts.view(now),
            last_merge_age_s: self.merged_at.map(|at| now.since(at) as f64 / 1e3),
            val_loss_first: self.history.first(),
            val_loss_last: self.history.last(),
            val_measured_by: self.history.measured_by(),
            sample: self.history.sample.clone(),
            learners,
            learners_by_state,
            sockets,
            uptime_s: now.0 as f64 / 1e3,
            run_s: self.run_s(now),
        }
    }

    /// Returns one page of learners.
    #[must_use]
    pub fn learners(&self, now: Millis, syncer: &Syncer, query: LearnersQuery) -> LearnersPage {
        // Sorting by name would reveal hidden names, so another order is used.
        let by_name = query.sort == Sort::Name && self.facts.names_hidden;
        let sort = if by_name { Sort::Merged } else { query.sort };
        let mut page = page_of(syncer, &self.speeds, now, LearnersQuery { sort, ..query });
        self.hide(&mut page.learners);
        page
    }

    /// Returns `event` as watchers may see it: without name and device if these are hidden.
    #[must_use]
    pub fn redacted(&self, event: Event) -> Event {
        match event {
            Event::Joined { learner, returning, .. } if self.facts.names_hidden => {
                Event::Joined { learner, name: hidden_name(learner), device: String::new(), returning }
            }
            event => event,
        }
    }

    /// Removes names and devices if these are hidden.
    fn hide(&self, learners: &mut [LearnerView]) {
        if self.facts.names_hidden {
            learners.iter_mut().for_each(LearnerView::hide);
        }
    }

    /// Returns the reports on the last rounds.
    #[must_use]
    pub fn rounds(&self, now: Millis) -> RoundsView {
        self.rounds.all(now)
    }

    /// Returns the reports on rounds that changed since the last call; `None` if none did.
    pub fn take_changed_rounds(&mut self, now: Millis) -> Option<RoundsView> {
        self.rounds.take_changed(now)
    }

    /// Returns the series with measurements and texts, as JSON.
    pub fn series_json(&mut self) -> Arc<str> {
        let (series, history) = (&self.series, &self.history);
        let json = self.series_json.get_or_insert_with(|| {
            serde_json::to_string(&series_of(series, history)).expect("plain data").into()
        });
        Arc::clone(json)
    }

    fn run_s(&self, now: Millis) -> f64 {
        self.ended_s.unwrap_or(self.run_s_before + now.0 as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use archipelago_core::diloco::syncer::{Input, SyncerConfig};
    use archipelago_core::diloco::{ConnId, RunId};
    use archipelago_core::model::Preset;
    use archipelago_core::wire::{
        DataSpec, Hello, Identity, LearnerState, Message, Progress, ShardSpec, Signature,
    };

    use super::*;
    use crate::config::{ServeConfig, run_spec};
    use crate::prepare::layout;
    use crate::status::{AlertTerms, PAGE_MAX, POINTS_MAX, SAMPLES_MAX, TOP_LEARNERS_MAX};

    const RUN: RunId = RunId(7);

    /// Returns a run with `count` learners.
    fn crowd(count: u32) -> Syncer {
        let shards = vec![ShardSpec { tokens: 1 << 24, sha256: [0; 32] }];
        let config = ServeConfig::default().with(|it| it.identity.preset = "tiny".into());
        let spec = run_spec(
            &config,
            Preset::Tiny.model(256).into(),
            DataSpec { token_bytes: 2, masks: false, shards },
        )
        .unwrap();
        let layout = layout(&spec).unwrap();
        let theta = vec![0.0; layout.len()];
        let mut syncer = Syncer::new(RUN, spec, SyncerConfig::default(), &layout, &theta).unwrap();
        for number in 0..count {
            let conn = ConnId(number.into());
            let mut identity = [0; 32];
            identity[..4].copy_from_slice(&number.to_le_bytes());
            let hello = Hello {
                run: None,
                layout: None,
                identity: Identity(identity),
                signature: Signature::NONE,
                // The longest permitted name.
                name: format!("{number:064}"),
                device: format!("gpu, {}", "x".repeat(59)),
                invite: None,
            };
            syncer.handle(Millis(0), Input::Message(conn, Message::Hello(hello)));
            // Only tokens under a lease are credited as trained.
            let ready = Message::Ready { run: RUN, layout: syncer.fragments().hash(), batch: 1 };
            syncer.handle(Millis(0), Input::Message(conn, ready));
            report(&mut syncer, number, 1, 0);
        }
        syncer
    }

    fn report(syncer: &mut Syncer, number: u32, tokens: u64, at_ms: u64) {
        let progress = Progress {
            run: RUN,
            leases: vec![],
            steps: 1,
            tokens,
            step_ms: 31.25,
            loss: 3.25,
            state: LearnerState::Training,
        };
        syncer.handle(Millis(at_ms), Input::Message(ConnId(number.into()), Message::Progress(progress)));
    }

    fn board() -> StatusTracker {
        let facts = RunFacts {
            init: None,
            adapters: None,
            preset: "tiny".into(),
            corpus: "text".into(),
            corpus_tokens: 1,
            bytes_per_token: 1.0,
            token_is_byte: true,
            entropy_floor: None,
            total_tokens: 1,
            invite_required: false,
            classroom: false,
            names_hidden: false,
            links: vec![],
        };
        StatusTracker::new(facts, RunStatistics::default(), Vec::new(), AlertTerms::default())
    }

    #[test]
    fn a_crowd_keeps_the_status_small() {
        let (syncer, mut board) = (crowd(1_000), board());
        for second in 0..20 {
            board.tick(Millis(second * 1_000), &syncer, Traffic::default());
        }
        let status = board.status(Millis(20_000), &syncer, Traffic::default(), 1_000);
        assert_eq!((status.learners.len(), status.core.learners_total), (TOP_LEARNERS_MAX, 1_000));
        assert_eq!(status.learners_by_state.training, 1_000);
        let json = serde_json::to_string(&status).unwrap();
        assert!(json.len() < 48 << 10, "{} bytes", json.len());
    }

    #[test]
    fn pages_show_everyone_once() {
        let (mut syncer, mut board) = (crowd(450), board());
        syncer.handle(Millis(0), Input::Disconnected(ConnId(3)));
        board.tick(Millis(0), &syncer, Traffic::default());
        // The highest speed that the step time allows. The core would not credit more.
        report(&mut syncer, 5, 4_001, 1_000);
        board.tick(Millis(1_000), &syncer, Traffic::default());
        let page = |offset, limit, sort| {
            board.learners(Millis(1_000), &syncer, LearnersQuery { offset, limit, sort })
        };
        for sort in [Sort::Merged, Sort::Speed, Sort::Name, Sort::State] {
            let mut seen = BTreeSet::new();
            for offset in [0, 200, 400] {
                let page = page(offset, usize::MAX, sort);
                assert_eq!((page.total, page.learners.len()), (450, PAGE_MAX.min(450 - offset)));
                seen.extend(page.learners.iter().map(|learner| learner.learner));
            }
            assert_eq!(seen.len(), 450, "{sort:?}");
        }
        // Learners are numbered from 1, connections from 0.
        let fastest = &page(0, 1, Sort::Speed).learners[0];
        assert_eq!((fastest.learner.0, fastest.tokens_per_s), (6, 4_001.0));
        assert_eq!(fastest.connected_s, Some(1.0));
        assert_eq!(page(0, 1, Sort::Name).learners[0].learner.0, 1);
        let away = &page(449, 1, Sort::State).learners[0];
        assert_eq!((away.learner.0, away.state, away.connected_s), (4, None, None));
        assert_eq!(page(900, 10, Sort::Name).learners, []);
    }

    #[test]
    fn a_day_of_history_stays_small() {
        let (syncer, mut board) = (crowd(1), board());
        for second in 0..86_400 {
            board.tick(Millis(second * 1_000), &syncer, Traffic::default());
            if second % 5 == 0 {
                let evaluation =
                    Evaluation { tokens_merged: second, rounds: second, loss: 3.0, ..Evaluation::default() };
                let text = (second % 30 == 0).then(|| "x".repeat(600));
                board.evaluated(Millis(second * 1_000), evaluation, text);
            }
        }
        let json = board.series_json();
        assert!(json.len() < 256 << 10, "{} bytes", json.len());
        let view: serde_json::Value = serde_json::from_str(&json).unwrap();
        let times = view["timeS"].as_array().unwrap();
        assert!(times.len() <= POINTS_MAX && view["samples"].as_array().unwrap().len() <= SAMPLES_MAX);
        assert_eq!((times[0].as_f64(), times[times.len() - 1].as_f64()), (Some(0.0), Some(86_399.0)));
        assert_eq!(view["evaluations"].as_array().unwrap().last().unwrap()["timeS"], 86_395.0);
    }
}
