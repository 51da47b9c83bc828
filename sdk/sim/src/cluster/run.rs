//! The run of a cluster: one fragment, and learners without any restriction.

use std::sync::Arc;

use archipelago_core::cluster::{LeaderTerms, ProcessId};
use archipelago_core::diloco::{
    Codec, FragmentState, Fragments, Influence, Layout, MergeRule, OuterSpec, QuorumPolicy, RoundTerms,
    Segment, SenderInfo, SenderTrust, Tensor, Timing, Verifier,
};
use archipelago_core::model::Preset;
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec, FragmentId, MergeClass};

use crate::world::Rng;

/// The only fragment.
pub(super) const P: FragmentId = FragmentId(0);

/// The standing of every learner, without any restriction.
pub(super) const STANDING: SenderInfo = SenderInfo {
    step_ms_least: 1.0,
    steps_max: None,
    step_tokens: 8,
    stranger_ms: None,
    unmerged_tokens: 1_000_000,
    repute: SenderTrust { is_new: false, is_doubted: false, is_shown: None },
    has_voice: true,
    clock_tokens: 0,
};

/// The constants of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) fragments: Arc<Fragments>,
    pub(super) codec: Codec,
    pub(super) verifier: Verifier,
    pub(super) owner: LeaderTerms,
    /// The fragment's initial state.
    pub(super) initial: FragmentState,
    pub(super) segments: Arc<Vec<Segment>>,
}

/// Creates a run of one fragment, with a tensor whose directions cancel out when learners disagree.
pub(super) fn run(seed: u64) -> Run {
    let tensor = |name: &str, rows, cols, merge| Tensor { name: name.to_owned(), rows, cols, merge };
    let tensors = vec![
        tensor("matrix", 4, 40, MergeClass::Radial),
        tensor("embedding", 1, 30, MergeClass::Mean),
        tensor("scalar", 1, 1, MergeClass::Radial),
    ];
    let layout = Layout::new(tensors).expect("a layout");
    let apply = ApplyPolicy::Keep { residue: true };
    let exchange = ExchangeSpec { fragments: 1, sync_every: 10, block: 16, code: Code::Int4, apply };
    let fragments = Arc::new(Fragments::plan(&layout, 1.try_into().expect("one fragment")));
    let codec = Codec::new(&exchange).expect("a code");
    let segments = fragments.segments(P).expect("the first fragment").to_vec();
    let mut rng = Rng::stream(seed, 0xc2);
    let theta = (0..fragments.len(P)).map(|_| rng.bell()).collect();
    let rounds = RoundTerms {
        fragment: P,
        segments: segments.clone(),
        experts: Vec::new(),
        mixture: None,
        codec,
        inner: Preset::Tiny.inner(),
        sync_every: exchange.sync_every,
        is_additive: true,
        lease_ms: 60_000,
        quorum: QuorumPolicy { updates_min: 2.try_into().expect("above 0"), ..QuorumPolicy::default() },
        merge: MergeRule::Radial,
        influence: Influence::default(),
        norm_ratio_max: 1.5,
    };
    let owner = LeaderTerms {
        process: ProcessId(0),
        rounds,
        outer: OuterSpec::default(),
        momentum_warmup_tokens: 0.0,
        fragments: 1,
        timing: Timing { step_ms: 10.0, launch_ms: 300.0, ..Timing::default() },
        rest_ms: 100,
        idle_ms: 0,
        again_ms: 300,
        sums_ms: 2_000,
        learners_start: 1,
        cohort_max: 256,
        states_kept: 2,
    };
    let verifier = Verifier::new(Arc::clone(&fragments), codec);
    let initial = FragmentState::new(theta);
    Run { fragments, codec, verifier, owner, initial, segments: Arc::new(segments) }
}
