//! Settings of a world that change while it goes on.

use super::{LinkSpec, World};
use archipelago_core::diloco::syncer::Input;
use archipelago_core::diloco::{MergeRule, QuorumPolicy};

impl World {
    /// From now on the syncer ends rounds by `quorum` and merges by `merge`, and so does one that goes on after it.
    pub fn retune_syncer(&mut self, quorum: QuorumPolicy, merge: MergeRule) {
        (self.spec.syncer.quorum, self.spec.syncer.merge) = (quorum, merge);
        let Some(host) = &mut self.host else { return };
        host.core.retune(quorum, merge);
        self.tell_syncer(Input::Timeout);
    }

    /// From now on steps of machine `index` take `step_ms` milliseconds with this `jitter`, and what it sends and gets
    /// goes over such a link. The step and the messages under way stay as they are. Where there is no such machine,
    /// nothing changes.
    pub fn retune_machine(&mut self, index: u32, step_ms: u64, jitter: f64, link: LinkSpec) {
        let Some(machine) = self.machines.get_mut(index as usize) else { return };
        (machine.spec.step_ms, machine.spec.jitter, machine.spec.link) = (step_ms, jitter, link);
        machine.link.set(link);
    }
}
