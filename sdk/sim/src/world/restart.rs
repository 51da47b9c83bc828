//! Death of the syncer's process, and recovery from the disk.

use super::file::Loss;
use super::happening::Happening;
use super::record::Record;
use super::tape::Followed;
use super::{Fault, World};
use archipelago_core::diloco::syncer::{Recovery, Syncer};

/// Wait before a failed start is retried, in milliseconds.
const START_AGAIN_MS: u64 = 1_000;

impl World {
    /// Kills the syncer's process; with `loss`, the power fails too.
    pub(super) fn crash_syncer(&mut self, loss: Option<Loss>) {
        let was_starting = std::mem::take(&mut self.starting);
        let was_up = self.host.take().is_some();
        if !was_starting && !was_up {
            return;
        }
        self.generation += 1;
        self.disk.tape.crash(loss, &mut self.disk.rng);
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.drop_at_syncer(conn);
        }
    }

    /// Begins to start a syncer from the disk.
    pub(super) fn restart_syncer(&mut self) {
        if self.host.is_some() || self.starting {
            return;
        }
        self.starting = true;
        match self.spec.shell.start_ms {
            0 => self.go_on(self.generation),
            start_ms => {
                let generation = self.generation;
                self.queue.plan(self.now.after(start_ms), Happening::Started { generation });
            }
        }
    }

    /// Recovers from the disk and serves. As the server, the syncer does not start if it cannot write, or if the disk's
    /// content is damaged.
    pub(super) fn go_on(&mut self, generation: u32) {
        if generation != self.generation || !std::mem::take(&mut self.starting) {
            return;
        }
        if self.disk.fails() {
            return self.start_again();
        }
        let (recovery, followed) = match self.recover() {
            Ok(recovered) => recovered,
            Err(why) => {
                self.refusals.push(why);
                return self.start_again();
            }
        };
        self.recoveries += 1;
        self.audit.on_recovered(followed.last, &recovery);
        // The world began one second after the Unix epoch.
        let started_s = u32::try_from(1 + self.now.0 / 1_000).unwrap_or(u32::MAX);
        let core = Syncer::go_on(recovery, &self.layout, self.spec.syncer, started_s)
            .expect("it was followed to its end");
        self.audit.on_started(&core);
        self.generation += 1;
        self.disk.tape.reopen(&followed);
        self.record = Record::new(followed.last, core.fragments().count());
        self.forget_moments();
        self.start_host(core);
        self.plan_snapshot();
        self.drive_host();
    }

    /// Returns the run at the end of its tape, from the newest intact snapshot or from the beginning.
    fn recover(&self) -> Result<(Recovery, Followed), String> {
        let (record, states, seq) = match self.disk.latest() {
            Some(snapshot) => (snapshot.record.clone(), snapshot.states.clone(), snapshot.seq),
            None => {
                let spec = &self.spec;
                let syncer =
                    Syncer::new(spec.run, spec.run_spec.clone(), spec.syncer, &self.layout, &spec.theta);
                let syncer = syncer.expect("the run began like this");
                (syncer.record_amid(), syncer.states().cloned().collect(), 0)
            }
        };
        let mut recovery =
            Recovery::new(record, &self.layout, states).expect("the snapshot is this run's own");
        let followed = self.disk.tape.follow(&mut recovery, seq)?;
        Ok((recovery, followed))
    }

    fn start_again(&mut self) {
        self.queue.plan(self.now.after(START_AGAIN_MS), Happening::Fault(Fault::RestartSyncer));
    }
}
