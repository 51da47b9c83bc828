//! Description of a run that all processes of a cluster derive from their settings. With it, a process can start
//! without the whole model.

use std::error::Error;
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;

use archipelago_cluster::InitialStates;
use archipelago_core::cluster::{LeaderTerms, ProcessId};
use archipelago_core::diloco::syncer::{Syncer, SyncerConfig};
use archipelago_core::diloco::{FragmentState, Fragments, Layout, RunId, Segment, binary16, checksum};
use archipelago_core::wire::{FragmentId, RunSpec};

use super::Plan;
use crate::errors::ServerError;
use crate::initial_model::Origin;
use crate::store::Initial;

/// Description of a run without its parameters. All processes of a cluster derive the same one.
#[derive(Clone)]
pub(crate) struct Shared {
    /// Id of the run.
    pub(crate) run: RunId,
    /// Fragments of the run.
    pub(crate) fragments: Arc<Fragments>,
    spec: Arc<RunSpec>,
    config: SyncerConfig,
    layout: Arc<Layout>,
    origin: Arc<Origin>,
}

impl Shared {
    /// Returns the description for a cluster process with `plan`; `None` if the plan is for a whole run.
    pub(super) fn of(plan: &Plan<'_>) -> Option<Self> {
        let run = plan.config.server.cluster.run(&plan.spec)?;
        let count = NonZeroU16::new(plan.spec.exchange.fragments).unwrap_or(NonZeroU16::MIN);
        Some(Self {
            run,
            fragments: Arc::new(Fragments::plan(&plan.layout, count)),
            spec: Arc::new(plan.spec.clone()),
            config: plan.syncer_config,
            layout: Arc::new(plan.layout.clone()),
            origin: Arc::clone(&plan.origin),
        })
    }

    /// Returns the terms on which `process` leads each fragment; `None` if the run's exchange code cannot be used.
    pub(crate) fn owner_terms(&self, process: ProcessId) -> Option<Vec<LeaderTerms>> {
        LeaderTerms::of(&self.spec, &self.config, &self.fragments, process)
    }

    /// Returns the source of initial fragment states, for processes that lead fragments.
    pub(crate) fn initial_states(&self) -> InitialStates {
        let shared = self.clone();
        InitialStates::new(move |fragment| match shared.theta(fragment) {
            Ok(theta) => Ok(FragmentState::new(theta)),
            Err(error) => Err(Box::<dyn Error + Send + Sync>::from(error)),
        })
    }

    /// Creates a syncer that holds only Θ̂, because other processes lead the rounds.
    ///
    /// # Errors
    /// - `Init`: the initial parameters cannot be read, or learners cannot hold them.
    /// - `Config`: the syncer refuses the settings.
    pub(super) fn syncer(&self) -> Result<Syncer, ServerError> {
        let hat = |fragment| {
            let mut hat = self.theta(fragment)?;
            binary16::round(&mut hat);
            Ok(Arc::new(hat))
        };
        let hats = self.fragments.ids().map(hat).collect::<Result<_, ServerError>>()?;
        let (run, spec) = (self.run, RunSpec::clone(&self.spec));
        let syncer = Syncer::before_others(run, spec, self.config, &self.layout, hats);
        syncer.map_err(|error| ServerError::Config { why: error.to_string() })
    }

    /// Returns the setting that names the source of the initial parameters, with their checksum; `None` if they follow
    /// from the seed. Processes compare these, because the run's spec covers only shapes. All parameters are read, but
    /// one fragment at a time.
    ///
    /// # Errors
    /// `Init`: the initial parameters cannot be read, or learners cannot hold them.
    pub(crate) fn first(&self) -> Result<Option<(String, String)>, ServerError> {
        let setting = match &*self.origin {
            Origin::Folder(_) => "init",
            Origin::Own(_) => "params",
            Origin::Seed | Origin::Kept(_) => return Ok(None),
        };
        let mut all = Vec::new();
        for fragment in self.fragments.ids() {
            all.extend_from_slice(Initial::digest(&self.theta(fragment)?).as_bytes());
        }
        let key = format!("{setting} (a checksum of its parameters)");
        Ok(Some((key, format!("{:016x}", checksum(&all)))))
    }

    /// Returns the initial Θ of `fragment`, `[fragment_len]`, without creating any other part of the model.
    fn theta(&self, fragment: FragmentId) -> Result<Vec<f32>, ServerError> {
        let segments = self.fragments.segments(fragment).unwrap_or_default();
        let ranges: Vec<Range<usize>> = segments.iter().map(Segment::range).collect();
        self.origin.within(&self.spec, &self.layout, &ranges)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::Path;

    use archipelago_cluster::Local;

    use super::*;
    use crate::config::{ClusterArgs, InProcessServices, Role, ServeConfig};
    use crate::progress::Cancellation;
    use crate::store::Store;

    /// Returns the initial parameters of a whole run, and the description for a cluster process with the same settings.
    fn both(config: &ServeConfig) -> (Vec<f32>, Shared) {
        let dir = tempfile::tempdir().unwrap();
        let config = config.clone().with(|it| it.server.dir = dir.path().join("run"));
        let plan = Plan::of(&config, |dir| Ok(Store::open_read_only(dir)), &Cancellation::default()).unwrap();
        assert!(Shared::of(&plan).is_none(), "it is a whole run");
        let whole =
            plan.origin.beginning(&plan.store, &plan.spec, &plan.layout, &Cancellation::default()).unwrap();
        let within = Some(InProcessServices(Local::services()));
        let cluster = ClusterArgs { role: Some(Role::Owner), within, ..config.server.cluster.clone() };
        let part = config.clone().with(|it| it.server.cluster = cluster);
        (whole.theta, super::super::to_lead(&part).unwrap())
    }

    /// Goal: a process that leads a fragment starts from the same bits as a whole run, for every source of parameters,
    /// and a process that serves learners starts from the matching Θ̂.
    #[test]
    fn fragments_begin_as_a_whole_run_does() {
        let plain = ServeConfig::default().with(|it| {
            it.identity.preset = "tiny".into();
            it.identity.seed = 5;
        });
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/init");
        let init = plain.clone().with(|it| {
            it.initial.init = Some(golden.join("model"));
            it.data = Some(golden.join("text.txt").into());
            it.identity.held_out = 0.3;
            it.identity.batch = NonZeroU32::new(2);
        });
        for config in [plain, init] {
            let (whole, shared) = both(&config);
            assert_eq!(shared.fragments.count(), 8);
            for fragment in shared.fragments.ids() {
                assert_eq!(shared.theta(fragment).unwrap(), shared.fragments.gather(fragment, &whole));
            }
            assert_eq!(shared.first().unwrap().is_some(), config.initial.init.is_some());
            let syncer = shared.syncer().unwrap();
            for (state, fragment) in syncer.states().zip(shared.fragments.ids()) {
                let begun = FragmentState::new(shared.theta(fragment).unwrap());
                assert_eq!((state.version, &state.hat), (begun.version, &begun.hat));
                assert!(
                    Arc::ptr_eq(&state.theta, &state.hat) && state.momentum.is_empty(),
                    "and nothing else"
                );
            }
        }
    }
}
