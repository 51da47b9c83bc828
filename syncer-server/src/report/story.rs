//! What there is to tell of a run.

use std::cmp::Reverse;

use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::wire::{LearnerId, RunId, RunSpec};

use crate::status::{Carried, hidden_name};
use crate::store::decoder;

/// A run as a report tells of it.
#[derive(Clone, Debug)]
pub struct Story {
    /// The run.
    pub run: RunId,
    /// What it is.
    pub spec: RunSpec,
    /// Parameters of its model.
    pub params: u64,
    /// Whether the model is the built-in decoder.
    pub is_decoder: bool,
    /// Whether it is over for good.
    pub is_over: bool,
    /// Rounds that led to a version.
    pub rounds: u64,
    /// Tokens merged.
    pub tokens_merged: u64,
    /// Merged of trained tokens, 0 to 1.
    pub participation: f64,
    /// Who took part, those with the most merged tokens first.
    pub people: Vec<Person>,
    /// Its course, its measurements and its texts.
    pub carried: Carried,
}

/// A learner, and what it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// What it called itself.
    pub name: String,
    /// What it computed with, in its own words.
    pub device: String,
    /// Its tokens that are merged.
    pub tokens_merged: u64,
    /// Its updates.
    pub updates: u64,
}

impl Story {
    /// What `record` and `carried` tell of a run whose model has `params` parameters. Where it `hides_names`, learners
    /// are numbers, and their devices are nobody's business.
    #[must_use]
    pub fn new(record: &SyncerRecord, params: u64, carried: Carried, hides_names: bool) -> Self {
        let ledger = &record.ledger;
        let person = |(learner, account): (LearnerId, &archipelago_core::diloco::Account)| Person {
            name: if hides_names { hidden_name(learner) } else { account.name.clone() },
            device: if hides_names { String::new() } else { account.device.clone() },
            tokens_merged: ledger.tokens_merged(account),
            updates: account.updates,
        };
        let mut people: Vec<Person> = ledger.accounts().map(person).collect();
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
