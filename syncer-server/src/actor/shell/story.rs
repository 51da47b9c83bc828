//! The run as a report tells of it.

use super::Running;
use crate::report::Story;

impl Running {
    /// What there is to tell of the run as it is now.
    pub(super) fn story(&self) -> Story {
        let carried = self.board.carried(self.clock.now(), self.meters.read());
        let fragments = self.syncer.fragments();
        let params = fragments.ids().map(|fragment| fragments.len(fragment) as u64).sum();
        Story::new(&self.syncer.record_amid(), params, carried, self.board.names_hidden())
    }
}
