//! Static parameters of owners and gateways.

use std::sync::Arc;

use super::{GatewayId, GatewayTerms, ProcessId};
use crate::diloco::syncer::{Syncer, SyncerConfig};
use crate::diloco::{Codec, Fragments, OuterSpec, RoundTerms, Timing, fragment_len};
use crate::wire::{FragmentId, RunSpec};

/// Static parameters of an owner for its fragment.
#[derive(Clone, Debug)]
pub struct LeaderTerms {
    /// Id of this process.
    pub process: ProcessId,
    /// Terms of the fragment's rounds.
    pub rounds: RoundTerms,
    /// Outer step at full momentum.
    pub outer: OuterSpec,
    /// Merged tokens over which the momentum rises linearly from 0; 0 gives full momentum from the first round.
    pub momentum_warmup_tokens: f64,
    /// P: each learner is asked for a fragment every H/P steps.
    pub fragments: u16,
    /// Initial estimates of the timing, until rounds are measured.
    pub timing: Timing,
    /// Minimum time from the end of a round to the next one, in milliseconds. Rounds are also H steps of the median
    /// learner apart, once gateways report the time of a step.
    pub rest_ms: u64,
    /// Time between rounds while no gateway reports a step time, in milliseconds. Such rounds end without a merge; they
    /// serve learners that wait for the end of a round.
    pub idle_ms: u64,
    /// Time after which unanswered messages are repeated, in milliseconds.
    pub again_ms: u64,
    /// Time after which a round without all sums is abandoned, in milliseconds.
    pub sums_ms: u64,
    /// Minimum number of connected learners for the first round.
    pub learners_start: usize,
    /// Maximum number of learners invited to one round, until a decree changes it. Beyond it, a rotating sample is
    /// invited.
    pub cohort_max: u32,
    /// Number of newest states retained in storage, at least 1. A process that is behind continues from the newest one.
    pub states_kept: usize,
}

/// Time between two rounds while no learner is known to train, in milliseconds. Constant of ours.
const IDLE_MS: u64 = 2_000;
/// Time after which an owner repeats an unanswered request, in milliseconds. Constant of ours.
const AGAIN_MS: u64 = 300;
/// Time after which a round without all sums is abandoned, in milliseconds. Constant of ours.
const SUMS_MS: u64 = 10_000;
/// Number of newest states of a fragment retained in storage. A gateway on a slow link has this many rounds to load
/// one. Constant of ours.
const STATES_KEPT: usize = 8;

impl LeaderTerms {
    /// Returns the parameters of process `process` for each of `fragments`, the fragments of the run `spec`.
    ///
    /// Returns `None` if the codec of the run is unusable.
    #[must_use]
    pub fn of(
        spec: &RunSpec,
        config: &SyncerConfig,
        fragments: &Fragments,
        process: ProcessId,
    ) -> Option<Vec<Self>> {
        let codec = Codec::new(&spec.exchange).ok()?;
        let terms = |fragment| Self {
            process,
            rounds: config.round_terms(spec, fragment, fragments, codec),
            outer: config.outer,
            momentum_warmup_tokens: config.momentum_warmup_ratio * spec.inner.total_tokens as f64,
            fragments: fragments.count(),
            timing: Timing::default(),
            rest_ms: 0,
            idle_ms: IDLE_MS,
            again_ms: AGAIN_MS,
            sums_ms: SUMS_MS,
            learners_start: config.learners_start as usize,
            cohort_max: config.cohort_max,
            states_kept: STATES_KEPT,
        };
        Some(fragments.ids().map(terms).collect())
    }

    /// Returns the number of values of the fragment.
    pub(super) fn len(&self) -> usize {
        fragment_len(&self.rounds.segments)
    }
}

impl GatewayTerms {
    /// Returns the parameters of gateway `gateway` for each fragment of the run of `syncer`, or `None` if the codec of
    /// the run is unusable.
    #[must_use]
    pub fn of(syncer: &Syncer, gateway: GatewayId) -> Option<Vec<(FragmentId, Self)>> {
        let codec = Codec::new(&syncer.spec().exchange).ok()?;
        let fragments = syncer.fragments();
        let terms = |fragment| {
            let segments = Arc::new(fragments.segments(fragment)?.to_vec());
            Some((fragment, Self { gateway, segments, codec }))
        };
        fragments.ids().map(terms).collect()
    }
}
