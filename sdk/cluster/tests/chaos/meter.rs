//! Times of merges, as seen by a reader that polls the tape ten times a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_cluster::Services;
use archipelago_core::cluster::Record;
use archipelago_core::wire::FragmentId;
use tokio::time::{Instant, sleep};

/// Times at which merges of each fragment were seen.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<BTreeMap<FragmentId, Vec<Instant>>>>);

impl Meter {
    /// Reads the tape forever.
    pub async fn read(self, services: Services, fragment: FragmentId) {
        let mut last = 0;
        loop {
            if let Ok(records) = services.tape.read(fragment, last).await {
                last += records.len() as u64;
                let merged = records.iter().filter(|record| matches!(record, Record::Merged { .. })).count();
                let now = Instant::now();
                self.0.lock().unwrap().entry(fragment).or_default().extend(vec![now; merged]);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the smallest number of merges of any fragment since `from`.
    pub fn least(&self, fragments: &[FragmentId], from: Instant) -> usize {
        let seen = self.0.lock().unwrap();
        let count = |p| seen.get(p).map_or(0, |seen| seen.iter().filter(|at| **at > from).count());
        fragments.iter().map(count).min().unwrap_or_default()
    }

    /// Returns the time from `fault` to the second following merge of each fragment. The first one may have been in
    /// flight.
    pub fn again(&self, fault: Instant) -> Vec<Duration> {
        let seen = self.0.lock().unwrap();
        let again = |seen: &Vec<Instant>| Some(*seen.iter().filter(|at| **at > fault).nth(1)? - fault);
        seen.values().filter_map(again).collect()
    }

    /// Returns the times between two merges of the same fragment that are longer than `limit`.
    pub fn gaps(&self, limit: Duration) -> Vec<Duration> {
        let seen = self.0.lock().unwrap();
        let gaps = seen.values().flat_map(|seen| seen.windows(2).map(|pair| pair[1] - pair[0]));
        gaps.filter(|gap| *gap > limit).collect()
    }
}

/// Returns the median and the maximum of `times`, in milliseconds.
pub fn middle_and_worst(mut times: Vec<Duration>) -> (u128, u128) {
    times.sort_unstable();
    let at = |index: usize| times.get(index).map_or(0, Duration::as_millis);
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}
