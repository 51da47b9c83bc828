//! Run of the cluster tests: a few small fragments, and fully trusted learners.

use std::sync::Arc;

use archipelago_cluster::InitialStates;
use archipelago_core::cluster::{AdminCommands, GatewayId, GatewayTerms, LeaderTerms, ProcessId};
use archipelago_core::diloco::{
    Codec, FragmentState, Fragments, Influence, Layout, MergeRule, OuterSpec, QuorumPolicy, RoundTerms,
    Segment, SenderInfo, SenderTrust, Tensor, Timing, Verified, Verifier, checksum,
};
use archipelago_core::model::Preset;
use archipelago_core::rng::Rng;
use archipelago_core::wire::{
    ApplyPolicy, Code, ExchangeSpec, FragmentId, MergeClass, RunId, Serial, Update, Version,
};
use tokio::sync::watch;

/// Standing of every learner: fully trusted.
pub const STANDING: SenderInfo = SenderInfo {
    step_ms_least: 1.0,
    steps_max: None,
    step_tokens: 8,
    stranger_ms: None,
    unmerged_tokens: 1_000_000,
    repute: SenderTrust { is_new: false, is_doubted: false, is_shown: None },
    has_voice: true,
    clock_tokens: 0,
};

/// Constant data of a run.
pub struct Run {
    pub fragments: Arc<Fragments>,
    pub codec: Codec,
    pub verifier: Verifier,
    rest_ms: u64,
    seed: u64,
}

impl Run {
    /// Creates a run of `fragments` fragments, whose rounds begin `rest_ms` apart. Each fragment has a tensor whose
    /// directions cancel out whenever learners disagree.
    pub fn new(seed: u64, fragments: u16, rest_ms: u64) -> Self {
        let tensor = |name: String, rows, cols, merge| Tensor { name, rows, cols, merge };
        let tensors = (0..fragments)
            .flat_map(|p| {
                [
                    tensor(format!("matrix{p}"), 4, 40, MergeClass::Radial),
                    tensor(format!("embedding{p}"), 1, 30, MergeClass::Mean),
                ]
            })
            .collect();
        let layout = Layout::new(tensors).expect("a layout");
        let fragments = Arc::new(Fragments::plan(&layout, fragments.try_into().expect("a fragment")));
        let codec = Codec::new(&exchange(fragments.count())).expect("a code");
        let verifier = Verifier::new(Arc::clone(&fragments), codec);
        Self { fragments, codec, verifier, rest_ms, seed }
    }

    /// Returns the ids of its fragments.
    pub fn ids(&self) -> Vec<FragmentId> {
        self.fragments.ids().collect()
    }

    /// Returns the initial state of a fragment.
    pub fn initial(&self, fragment: FragmentId) -> FragmentState {
        let mut rng = Rng::new(self.seed ^ u64::from(fragment.0) << 32);
        FragmentState::new((0..self.fragments.len(fragment)).map(|_| bell(&mut rng)).collect())
    }

    /// Returns the source of initial states.
    pub fn beginnings(self: &Arc<Self>) -> InitialStates {
        let run = Arc::clone(self);
        InitialStates::new(move |fragment| Ok(run.initial(fragment)))
    }

    /// Returns the owner's terms of each fragment.
    pub fn owner(&self) -> Vec<LeaderTerms> {
        let terms = |fragment| LeaderTerms {
            process: ProcessId(0),
            rounds: self.rounds(fragment),
            outer: OuterSpec::default(),
            momentum_warmup_tokens: 0.0,
            fragments: 1,
            timing: Timing { step_ms: 10.0, launch_ms: 100.0, ..Timing::default() },
            rest_ms: self.rest_ms,
            idle_ms: 0,
            again_ms: 300,
            sums_ms: 2_000,
            learners_start: 1,
            cohort_max: u32::MAX,
            // The checks read all states.
            states_kept: usize::MAX,
        };
        self.ids().into_iter().map(terms).collect()
    }

    /// Returns the default orders.
    pub fn orders(&self) -> watch::Receiver<AdminCommands> {
        watch::channel(AdminCommands::none(&self.rounds(FragmentId(0)), u32::MAX)).1
    }

    /// Returns the gateway's terms of each fragment.
    pub fn gateway(&self, gateway: GatewayId) -> Vec<(FragmentId, GatewayTerms)> {
        let terms = |fragment| {
            let segments = Arc::new(self.segments(fragment));
            (fragment, GatewayTerms { gateway, segments, codec: self.codec })
        };
        self.ids().into_iter().map(terms).collect()
    }

    /// Returns a coded update of noise with the usual length.
    pub fn noise(&self, fragment: FragmentId, rng: &mut Rng) -> Vec<u8> {
        let values: Vec<f32> = (0..self.fragments.len(fragment)).map(|_| 1e-3 * bell(rng)).collect();
        self.codec.encode(&self.segments(fragment), &values)
    }

    /// Returns a verified update with this body.
    pub fn update(&self, fragment: FragmentId, serial: Serial, body: Vec<u8>) -> Verified {
        let (run, base, seen, checksum) = (RunId(1), Version(0), Vec::new(), checksum(&body));
        self.verifier.verify(Update {
            run,
            fragment,
            serial,
            base,
            steps: 10,
            tokens: 80,
            body,
            checksum,
            seen,
        })
    }

    fn segments(&self, fragment: FragmentId) -> Vec<Segment> {
        self.fragments.segments(fragment).expect("one of its fragments").to_vec()
    }

    fn rounds(&self, fragment: FragmentId) -> RoundTerms {
        RoundTerms {
            fragment,
            segments: self.segments(fragment),
            experts: Vec::new(),
            mixture: None,
            codec: self.codec,
            inner: Preset::Tiny.inner(),
            sync_every: 10,
            is_additive: true,
            lease_ms: 60_000,
            quorum: QuorumPolicy { updates_min: 2.try_into().expect("above 0"), ..QuorumPolicy::default() },
            merge: MergeRule::Radial,
            influence: Influence::default(),
            norm_ratio_max: 1.5,
        }
    }
}

fn exchange(fragments: u16) -> ExchangeSpec {
    let apply = ApplyPolicy::Keep { residue: true };
    ExchangeSpec { fragments, sync_every: 10, block: 16, code: Code::Int4, apply }
}

/// Returns a roughly normal number: the sum of twelve uniform numbers.
fn bell(rng: &mut Rng) -> f32 {
    ((0..12).map(|_| rng.unit()).sum::<f64>() - 6.0) as f32
}
