//! Interface to the program that drives a syncer: the server, the simulator, a test.

use super::{Event, Input, LeaderRequest, Output, RemakeJob, Syncer};
use crate::diloco::{Entry, MergeJob};
use crate::wire::{Bye, ConnId, Message, Millis};

/// Services that a syncer's host performs, in the order in which the syncer requests them.
pub trait Host {
    /// Sends `message` on each of `conns`; encodes it once.
    fn send(&mut self, conns: &[ConnId], message: Message);

    /// Sends the goodbye, then closes the connection. No [`Input::Disconnected`] is expected, but one does no harm.
    fn close(&mut self, conn: ConnId, bye: Bye);

    /// Runs the job, here or elsewhere, and returns the result as [`Input::Merged`].
    fn merge(&mut self, job: MergeJob);

    /// Lets the job follow the tape from its starting point, once the tape has the version of its fragment, and returns
    /// the result as [`Input::Merged`]. The default is for a host without a tape: it gives the job back, and the
    /// fragment stays as it is. A host that sends no [`Input::Undo`] is never asked.
    fn remake(&mut self, job: RemakeJob) -> Option<RemakeJob> {
        Some(job)
    }

    /// Forwards `said` to the leaders of the rounds. Never called if the syncer leads its own rounds, as the default
    /// assumes.
    fn leader_request(&mut self, request: LeaderRequest) {
        let _ = request;
    }

    /// Has the peer of `conn` echo this number, and returns the echo as [`Input::Probed`]. Never called if the syncer
    /// leads its own rounds, as the default assumes.
    fn probe(&mut self, conn: ConnId, number: u64) {
        let _ = (conn, number);
    }

    /// Stores `entry`, and sends no later output before the entry is safe. The default is for a host without a tape:
    /// after a crash it returns to its last snapshot, and what it told learners since then no longer holds.
    fn record(&mut self, entry: Entry) {
        let _ = entry;
    }

    /// Reports an event to logs, the dashboard and tests; `syncer` is in the state after it.
    fn note(&mut self, syncer: &Syncer, event: Event);

    /// Handles the end of the run: all learners have been informed, and no output follows.
    fn finished(&mut self);
}

impl Syncer {
    /// Handles an input and all outputs that follow from it.
    pub fn drive(&mut self, now: Millis, input: Input, host: &mut impl Host) {
        self.handle(now, input);
        self.drain(host);
    }

    /// Handles all pending outputs.
    pub fn drain(&mut self, host: &mut impl Host) {
        while let Some(output) = self.poll() {
            match output {
                Output::Send(conn, message) => host.send(&[conn], message),
                Output::Broadcast(conns, message) => host.send(&conns, message),
                Output::Close(conn, bye) => host.close(conn, bye),
                Output::Record(entry) => host.record(entry),
                Output::Merge(job) => host.merge(*job),
                Output::Remake(job) => {
                    if let Some(job) = host.remake(*job) {
                        self.give_back(job);
                    }
                }
                Output::LeaderRequest(request) => host.leader_request(request),
                Output::Probe(conn, number) => host.probe(conn, number),
                Output::Event(event) => host.note(self, event),
                Output::Finished => host.finished(),
            }
        }
    }
}
