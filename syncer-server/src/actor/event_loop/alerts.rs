//! Alerts: raised, cleared, logged, and posted to the owner's webhook.

use super::{EventLoop, State};
use crate::clock::unix_ms;
use crate::status::{AlertChange, AlertKind, LogEvent};
use crate::webhook::Notice;

impl EventLoop {
    /// Checks for alerts and reports the changes.
    pub(super) fn look(&mut self, state: &State) {
        for AlertChange { kind, is_raised, text } in self.board.look(self.clock.now(), &self.syncer) {
            if is_raised {
                tracing::warn!(?kind, text, "alert");
            } else {
                tracing::info!(?kind, text, "alert resolved");
            }
            if let Some(webhook) = &self.webhook {
                let (run, at_ms) = (self.syncer.run().to_string(), unix_ms());
                webhook.tell(Notice { text: text.clone(), run, alert: kind, raised: is_raised, at_ms });
            }
            // Disk faults have log lines of their own.
            if kind != AlertKind::DiskFault {
                self.log(&state.record, LogEvent::Alert { alert: kind, raised: is_raised, text });
            }
        }
    }
}
