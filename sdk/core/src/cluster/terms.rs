//! What owners and gateways know of a run.

use std::sync::Arc;

use super::{GatewayId, GatewayTerms, ProcessId};
use crate::diloco::syncer::{Syncer, SyncerConfig};
use crate::diloco::{Codec, Fragments, OuterSpec, RoundTerms, Timing, fragment_len};
use crate::wire::{FragmentId, RunSpec};

/// What an owner knows of its fragment.
#[derive(Clone, Debug)]
pub struct OwnerTerms {
    /// This process.
    pub process: ProcessId,
    /// What decides its rounds.
    pub rounds: RoundTerms,
    /// The outer step, once its momentum is in full.
    pub outer: OuterSpec,
    /// Merged tokens over which its momentum rises in a line from 0; 0 has it in full from the first round.
    pub momentum_warmup_tokens: f64,
    /// P: a learner is asked for another fragment every H/P steps.
    pub fragments: u16,
    /// Times by which rounds end until they are measured.
    pub timing: Timing,
    /// Time from the end of a round to the next one, in milliseconds, at least. Rounds are also H steps of the median
    /// learner apart, as far as gateways say what a step takes.
    pub rest_ms: u64,
    /// Time from one round to the next while nobody says what a step takes, in milliseconds: they end with nothing, and
    /// are there for learners who wait for the end of one.
    pub idle_ms: u64,
    /// What is not answered is said or asked again after so many milliseconds.
    pub again_ms: u64,
    /// A round whose sums do not come is given up after so many milliseconds.
    pub sums_ms: u64,
    /// Learners that are there before the first round.
    pub learners_start: usize,
    /// Learners that are asked in one round, until something else is ordered; of more, a sample that moves on.
    pub cohort_max: u32,
    /// So many of the newest states stay in the storage, at least 1: whoever is behind goes on from the newest one.
    pub states_kept: usize,
}

/// Time between two rounds while nobody is known to train, in milliseconds. Constant of ours.
const IDLE_MS: u64 = 2_000;
/// An owner looks again for what it was not answered after so many milliseconds. Constant of ours.
const AGAIN_MS: u64 = 300;
/// A round whose sums do not come is given up after so many milliseconds. Constant of ours.
const SUMS_MS: u64 = 10_000;
/// The newest states of a fragment that stay in the storage: a gateway on a slow link to it has so many rounds to load
/// one. Constant of ours.
const STATES_KEPT: usize = 8;

impl OwnerTerms {
    /// What an owner knows of each of `fragments`, which are those of the run `spec`, for `process`.
    ///
    /// `None` if the code of the run cannot be used.
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

    /// Values of its fragment.
    pub(super) fn len(&self) -> usize {
        fragment_len(&self.rounds.segments)
    }
}

impl GatewayTerms {
    /// What the gateway of this number knows of each fragment of the run of `syncer`; `None` if the code of the run
    /// cannot be used.
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
