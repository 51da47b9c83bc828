//! Checks that every eligible learner is merged within its time limit.

use super::machine::Machine;
use super::{Violation, World};
use archipelago_core::wire::Millis;

impl World {
    /// Requires from now on that each learner that trains and is reachable is merged within its machine's number of
    /// milliseconds; [`Self::check`] reports a violation. Any fault or order that affects the machine or the syncer
    /// restarts the time.
    pub fn expect_merges(&mut self, within_ms: &[u64]) {
        for (machine, &ms) in self.machines.iter_mut().zip(within_ms) {
            machine.merged_within_ms = Some(ms);
            machine.well_since = self.now;
        }
    }

    /// Restarts the time of `machine`, or of all machines, at `at`.
    pub(super) fn excuse(&mut self, machine: Option<u32>, at: Millis) {
        for (i, there) in (0..).zip(&mut self.machines) {
            if machine.is_none_or(|machine| machine == i) {
                there.well_since = there.well_since.max(at);
            }
        }
    }

    /// # Errors
    /// [`Violation::Starved`].
    pub(super) fn check_starving(&self) -> Result<(), Violation> {
        let Some(host) = self.host.as_ref().filter(|host| !self.finished && !host.core.status().paused)
        else {
            return Ok(());
        };
        if host.core.status().finishing {
            return Ok(());
        }
        let starved = (0..).zip(&self.machines).find_map(|(machine, there)| {
            let waited_ms = self.now.since(there.well_since.max(there.merged_at));
            let is_owed = there.merged_within_ms.is_some_and(|ms| waited_ms > ms) && self.is_well(there);
            is_owed.then_some(Violation::Starved { machine, waited_ms })
        });
        starved.map_or(Ok(()), Err)
    }

    /// Returns true if no fault and no order prevents the machine's updates from being merged.
    fn is_well(&self, machine: &Machine) -> bool {
        let Some(process) = &machine.process else { return false };
        let swallowed =
            process.conn.and_then(|conn| self.conns.get(&conn)).is_some_and(|conn| conn.swallowed);
        !(swallowed || machine.frozen || machine.cut || machine.forged || machine.paused || process.leaving)
    }
}
