//! Roster in a key-value bucket, written by compare-and-set.

use std::time::Duration;

use archipelago_core::cluster::ProcessId;
use archipelago_core::wire::FragmentId;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::kv::Config;

use super::{Nats, direct};
use crate::error::ServiceError;
use crate::service::{Answer, Cell, Entry, Roster};

/// Time without a write after which an entry is deleted; leases are much shorter.
const FORGET_AFTER: Duration = Duration::from_hours(1);

impl Nats {
    fn bucket(&self) -> String {
        format!("{}_roster", self.prefix)
    }

    /// Creates the bucket unless it exists.
    pub(super) async fn make_roster(&self, replicas: usize) -> Result<(), ServiceError> {
        if self.jetstream.get_key_value(self.bucket()).await.is_ok() {
            return Ok(());
        }
        let config = Config {
            bucket: self.bucket(),
            history: 1,
            max_age: FORGET_AFTER,
            num_replicas: replicas,
            ..Config::default()
        };
        let made = self.jetstream.create_key_value(config).await;
        made.map(drop).map_err(|error| self.silent(&error.to_string()))
    }

    async fn all(&self) -> Result<Vec<Entry>, ServiceError> {
        let question = format!("{{\"multi_last\":[\"$KV.{}.>\"]}}", self.bucket());
        let got = direct::get(&self.client, &format!("KV_{}", self.bucket()), question).await;
        let (got, _) = got.map_err(|detail| self.silent(&detail))?;
        let entry = |message: direct::Got| {
            let cell = cell(message.subject.splitn(3, '.').nth(2)?)?;
            let holder = std::str::from_utf8(&message.payload).ok().and_then(number).map(ProcessId);
            Some(Entry { cell, holder, revision: message.seq })
        };
        // Foreign keys are ignored.
        Ok(got.into_iter().filter_map(entry).collect())
    }
}

/// Returns the key of a cell.
fn key(cell: Cell) -> String {
    match cell {
        Cell::Lease(fragment) => format!("lease.{fragment}"),
        Cell::Present(process) => format!("present.{:016x}", process.0),
    }
}

/// Returns the cell of a key.
fn cell(key: &str) -> Option<Cell> {
    match key.split_once('.')? {
        ("lease", fragment) => fragment.parse().ok().map(FragmentId).map(Cell::Lease),
        ("present", process) => number(process).map(ProcessId).map(Cell::Present),
        _ => None,
    }
}

fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

impl Roster for Nats {
    fn look(&self) -> Answer<'_, Vec<Entry>> {
        Box::pin(self.in_time(self.all()))
    }

    fn write(&self, cell: Cell, holder: Option<ProcessId>, expect: u64) -> Answer<'_, Option<u64>> {
        let value = holder.map(|process| format!("{:016x}", process.0)).unwrap_or_default();
        let subject = format!("$KV.{}.{}", self.bucket(), key(cell));
        let fence = (NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expect);
        Box::pin(self.in_time(self.put(subject, fence, value.into_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        for place in
            [Cell::Lease(FragmentId(0)), Cell::Lease(FragmentId(63)), Cell::Present(ProcessId(u64::MAX))]
        {
            assert_eq!(cell(&key(place)), Some(place));
        }
        for text in ["", "lease", "lease.x", "present.y", "other.1"] {
            assert_eq!(cell(text), None, "{text}");
        }
    }
}
