//! The data of a report.

use super::Running;
use crate::report::Story;

impl Running {
    /// Returns the data of a report on the run as it is now.
    pub(super) fn story(&self) -> Story {
        let carried = self.board.carried(self.clock.now(), self.meters.read());
        let fragments = self.syncer.fragments();
        let params = fragments.ids().map(|fragment| fragments.len(fragment) as u64).sum();
        Story::new(&self.syncer.record_amid(), params, carried, self.board.names_hidden())
    }
}
