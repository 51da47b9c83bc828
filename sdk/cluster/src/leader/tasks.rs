//! Tasks that lead fragments, one for each, and the leases that they observe.

use std::collections::BTreeMap;

use archipelago_core::wire::{FragmentId, Millis};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Set of one task for each fragment. A task ends when the sender of its lease is dropped.
pub(super) struct LeaderTasks<L> {
    lead: L,
    tasks: JoinSet<()>,
    /// End of each fragment's lease, as its task sees it.
    leases: BTreeMap<FragmentId, watch::Sender<Option<Millis>>>,
}

impl<L, F> LeaderTasks<L>
where
    L: Fn(FragmentId, watch::Receiver<Option<Millis>>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    /// Starts a task for each of `fragments`, without a lease.
    pub(super) fn new(fragments: impl IntoIterator<Item = FragmentId>, lead: L) -> Self {
        let mut crew = Self { lead, tasks: JoinSet::new(), leases: BTreeMap::new() };
        fragments.into_iter().for_each(|fragment| crew.begin(fragment));
        crew
    }

    fn begin(&mut self, fragment: FragmentId) {
        let (sender, lease) = watch::channel(None);
        self.leases.insert(fragment, sender);
        self.tasks.spawn((self.lead)(fragment, lease));
    }

    /// Restarts the tasks that have ended, which only a panic causes. Without a restart, the process would renew the
    /// lease of an idle fragment for its whole life.
    pub(super) fn renew(&mut self) -> Vec<FragmentId> {
        while self.tasks.try_join_next().is_some() {}
        let ended = self.leases.iter().filter(|(_, lease)| lease.is_closed());
        let ended: Vec<FragmentId> = ended.map(|(fragment, _)| *fragment).collect();
        ended.iter().for_each(|&fragment| self.begin(fragment));
        ended
    }

    /// Updates the lease end of each task.
    pub(super) fn tell(&self, until: impl Fn(FragmentId) -> Option<Millis>) {
        for (fragment, lease) in &self.leases {
            lease.send_replace(until(*fragment));
        }
    }

    /// Ends all tasks.
    pub(super) async fn end(mut self) {
        self.leases.clear();
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Goal: a panic in one fragment does not leave a lease without a working task.
    #[tokio::test]
    async fn a_task_that_panicked_begins_anew() {
        let begun = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let counts = Arc::clone(&begun);
        let mut crew = LeaderTasks::new([FragmentId(0), FragmentId(1)], move |fragment, mut lease| {
            let counts = Arc::clone(&counts);
            async move {
                let before = counts[usize::from(fragment.0)].fetch_add(1, Ordering::Relaxed);
                while lease.changed().await.is_ok() {
                    assert!(fragment != FragmentId(1) || before > 0, "the first time it is told something");
                }
            }
        });
        assert!(crew.renew().is_empty());
        crew.tell(|_| Some(Millis(1)));
        let mut renewed = crew.renew();
        while renewed.is_empty() {
            tokio::task::yield_now().await;
            renewed = crew.renew();
        }
        assert_eq!(renewed, [FragmentId(1)]);
        crew.tell(|_| Some(Millis(2)));
        crew.end().await;
        assert_eq!([&begun[0], &begun[1]].map(|count| count.load(Ordering::Relaxed)), [1, 2]);
    }
}
