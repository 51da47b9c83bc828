//! The run's log: lines to add and to publish.

use std::sync::Arc;

use super::super::host::json;
use super::{EventLoop, Record, State};
use crate::clock::unix_ms;
use crate::status::{LogEvent, LogQuery};

impl EventLoop {
    /// Adds a line to the run's log.
    pub(super) fn log(&mut self, record: &Record, what: LogEvent) {
        record.log(&mut self.board, self.clock.now(), what);
    }

    /// Records a fault of the services that the run's processes share, or its end.
    pub(super) fn served(&mut self, state: &State, fault: Option<Arc<str>>) {
        if let Some(news) = self.board.disk().served(fault) {
            self.log(&state.record, news);
            // Watchers see the change at once.
            self.mailbox.status.send_replace(json(&self.status(state)));
        }
    }

    /// Returns the lines that `query` asks for, as JSON.
    pub(super) fn log_json(&self, query: &LogQuery) -> Arc<str> {
        json(&self.board.log_view(unix_ms(), query))
    }

    /// Sends watchers the log lines that may now be published.
    pub(super) fn publish_log(&mut self, state: &State) {
        let is_faulty = self.board.disk().is_faulty();
        let count = self.board.log().reach(state.record.logged(), is_faulty);
        if count > 0 {
            let newest = LogQuery { name: String::new(), limit: count };
            let view = self.board.log_view(unix_ms(), &newest);
            self.tell("log", &view);
        }
    }
}
