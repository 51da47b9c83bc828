//! Whoever drives a syncer: the server, the simulator, a test.

use super::{Event, Input, Output, RemakeJob, Syncer, Upward};
use crate::diloco::{Entry, MergeJob};
use crate::wire::{Bye, ConnId, Message, Millis};

/// What a syncer's surroundings do for it, in the order in which it asks.
pub trait Host {
    /// Send `message` on each of `conns`; encode it once.
    fn send(&mut self, conns: &[ConnId], message: Message);

    /// Send the goodbye, then close the connection. No [`Input::Disconnected`] is expected, one does no harm.
    fn close(&mut self, conn: ConnId, bye: Bye);

    /// Run the job, here or elsewhere, and bring the result back as [`Input::Merged`].
    fn merge(&mut self, job: MergeJob);

    /// Have the job follow the tape from where it goes back to, once the version of its fragment is on it, and bring
    /// the result back as [`Input::Merged`]. A host that keeps no tape, as here, gives the
    /// job back, and the fragment stays as it is; who hands in no [`Input::Undo`] is never asked.
    fn remake(&mut self, job: RemakeJob) -> Option<RemakeJob> {
        Some(job)
    }

    /// Pass `said` on to who leads the rounds. The host of a syncer that leads them itself, as here, is never asked.
    fn upward(&mut self, said: Upward) {
        let _ = said;
    }

    /// Have the other end of `conn` send this number back, and bring it as [`Input::Probed`]. The host of a syncer that
    /// leads rounds itself, as here, is never asked.
    fn probe(&mut self, conn: ConnId, number: u64) {
        let _ = (conn, number);
    }

    /// Keep `entry`, and send nothing that comes later before it is safe. A host that keeps no tape, as here, goes back
    /// to its last snapshot after a crash, and what it told learners since then is not true any more.
    fn record(&mut self, entry: Entry) {
        let _ = entry;
    }

    /// Something happened that logs, the dashboard and tests may want to know; `syncer` is as it is after that.
    fn note(&mut self, syncer: &Syncer, event: Event);

    /// The run is complete: everyone has been told, nothing more will come.
    fn finished(&mut self);
}

impl Syncer {
    /// [`Self::handle`], and then everything that it asks for.
    pub fn drive(&mut self, now: Millis, input: Input, host: &mut impl Host) {
        self.handle(now, input);
        self.drain(host);
    }

    /// Everything that is still asked for.
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
                Output::Upward(said) => host.upward(said),
                Output::Probe(conn, number) => host.probe(conn, number),
                Output::Event(event) => host.note(self, event),
                Output::Finished => host.finished(),
            }
        }
    }
}
