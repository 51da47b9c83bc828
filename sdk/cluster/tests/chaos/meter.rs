//! When each fragment was merged, as somebody sees who reads the tape ten times a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_cluster::Services;
use archipelago_core::cluster::Record;
use archipelago_core::wire::FragmentId;
use tokio::time::{Instant, sleep};

/// When merges of each fragment were seen.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Mutex<BTreeMap<FragmentId, Vec<Instant>>>>);

impl Meter {
    /// Reads on for ever.
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

    /// Merges of the fragment that was merged least often since `from`.
    pub fn least(&self, fragments: &[FragmentId], from: Instant) -> usize {
        let seen = self.0.lock().unwrap();
        let count = |p| seen.get(p).map_or(0, |seen| seen.iter().filter(|at| **at > from).count());
        fragments.iter().map(count).min().unwrap_or_default()
    }

    /// For each fragment, the time from `fault` to the second merge after it: the first may have been on its way.
    pub fn again(&self, fault: Instant) -> Vec<Duration> {
        let seen = self.0.lock().unwrap();
        let again = |seen: &Vec<Instant>| Some(*seen.iter().filter(|at| **at > fault).nth(1)? - fault);
        seen.values().filter_map(again).collect()
    }

    /// Times between one merge and the next of the same fragment that are longer than `limit`.
    pub fn gaps(&self, limit: Duration) -> Vec<Duration> {
        let seen = self.0.lock().unwrap();
        let gaps = seen.values().flat_map(|seen| seen.windows(2).map(|pair| pair[1] - pair[0]));
        gaps.filter(|gap| *gap > limit).collect()
    }
}

/// The middle and the largest of `times`, in milliseconds.
pub fn middle_and_worst(mut times: Vec<Duration>) -> (u128, u128) {
    times.sort_unstable();
    let at = |index: usize| times.get(index).map_or(0, Duration::as_millis);
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}
