//! The data of a report.

use std::cmp::Reverse;

use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::wire::{LearnerId, RunId, RunSpec};

use crate::status::{Carried, hidden_name};
use crate::store::decoder;

/// The data of a report on a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The run.
    pub run: RunId,
    /// Its description.
    pub spec: RunSpec,
    /// Parameters of its model.
    pub params: u64,
    /// Whether the model is the built-in decoder.
    pub is_decoder: bool,
    /// Whether the run is complete.
    pub is_over: bool,
    /// Number of rounds that led to a version.
    pub rounds: u64,
    /// Tokens merged.
    pub tokens_merged: u64,
    /// Merged over trained tokens, 0 to 1.
    pub participation: f64,
    /// The learners, those with the most merged tokens first.
    pub people: Vec<Contributor>,
    /// Its series, measurements and texts.
    pub carried: Carried,
}

/// A learner and its contribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contributor {
    /// Its name.
    pub name: String,
    /// Its own description of its device.
    pub device: String,
    /// Its merged tokens.
    pub tokens_merged: u64,
    /// Number of its updates.
    pub updates: u64,
}

impl RunReport {
    /// Creates the data of a run from `record` and `carried`; its model has `params` parameters. If it `hides_names`,
    /// numbers replace the learners' names, and devices are left out.
    #[must_use]
    pub fn new(record: &SyncerRecord, params: u64, carried: Carried, hides_names: bool) -> Self {
        let ledger = &record.ledger;
        let person = |(learner, account): (LearnerId, &archipelago_core::diloco::Account)| Contributor {
            name: if hides_names { hidden_name(learner) } else { account.name.clone() },
            device: if hides_names { String::new() } else { account.device.clone() },
            tokens_merged: ledger.tokens_merged(account),
            updates: account.updates,
        };
        let mut people: Vec<Contributor> = ledger.accounts().map(person).collect();
        people.sort_by_key(|person| Reverse(person.tokens_merged));
        Self {
            run: record.run,
            spec: record.spec.clone(),
            params,
            is_decoder: decoder(&record.spec.model).is_ok_and(|decoder| decoder.is_some()),
            is_over: record.finished,
            rounds: record.rounds_merged,
            tokens_merged: ledger.clock_tokens(),
            participation: ledger.participation(),
            people,
            carried,
        }
    }
}
