//! Changes of settings while a world runs.

use super::{LinkSpec, World};
use archipelago_core::diloco::syncer::Input;
use archipelago_core::diloco::{MergeRule, QuorumPolicy};

impl World {
    /// Sets the quorum policy and the merge rule of the syncer and its successors.
    pub fn retune_syncer(&mut self, quorum: QuorumPolicy, merge: MergeRule) {
        (self.spec.syncer.quorum, self.spec.syncer.merge) = (quorum, merge);
        let Some(host) = &mut self.host else { return };
        host.core.retune(quorum, merge);
        self.tell_syncer(Input::Timeout);
    }

    /// Sets the step time, `jitter` and `link` of machine `index`. The step and the messages under way are unaffected.
    /// An unknown machine changes nothing.
    pub fn retune_machine(&mut self, index: u32, step_ms: u64, jitter: f64, link: LinkSpec) {
        let Some(machine) = self.machines.get_mut(index as usize) else { return };
        (machine.spec.step_ms, machine.spec.jitter, machine.spec.link) = (step_ms, jitter, link);
        machine.link.set(link);
    }
}
