//! The data of a report.

use super::EventLoop;
use crate::report::RunReport;

impl EventLoop {
    /// Returns the data of a report on the run as it is now.
    pub(super) fn story(&self) -> RunReport {
        let carried = self.board.carried(self.clock.now(), self.meters.read());
        let fragments = self.syncer.fragments();
        let params = fragments.ids().map(|fragment| fragments.len(fragment) as u64).sum();
        RunReport::new(&self.syncer.record_amid(), params, carried, self.board.names_hidden())
    }
}
