//! Tests of loss checks: real training reveals from single updates which learners do not train.
//!
//! `cargo xtask test --only proofs --seeds FROM..UNTIL` runs those seeds instead of the two in a test run.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use archipelago_core::data::grammar;
use archipelago_core::diloco::QuorumPolicy;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::{InnerSpec, ModelSpec, Preset};
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec};
use archipelago_experiments::lab::{Budget, Corpus, JoinerStart, Recipe, TrainingResult, reference_model};
use archipelago_sim::world::{Attack, Fault, LinkSpec, MachineSpec, Poison};
use archipelago_tests::toys::{for_seeds_in, seeds};

/// Largest number of loss checks until a learner that does not train is suspected.
const CHECKS_MAX: u32 = 160;
/// Machines that do not train, and the lies that they send.
const RIDERS: [(u32, Attack); 3] = [(5, Attack::Times(0)), (6, Attack::Noise), (7, Attack::Copies)];

fn corpus() -> Corpus {
    Corpus::new(grammar::generate(1, 1_000_000).as_bytes()).expect("a text of some length")
}

/// Returns a run of learners of a small model with an average of `steps` steps, in which each merge may be checked.
fn recipe(seed: u64, machines: Vec<MachineSpec>, (batch, sync_every, steps): (u32, u32, u64)) -> Recipe {
    let model = ModelSpec { d_model: 32, d_ff: 88, context: 16, ..reference_model() };
    let tokens = u64::from(batch * model.context) * steps * machines.len() as u64;
    let inner = InnerSpec {
        batch,
        lr_max: 4e-3,
        lr_min_ratio: 1.0,
        warmup_tokens: tokens / 20,
        total_tokens: tokens,
        ..Preset::Small.inner()
    };
    let syncer = SyncerConfig { learners_start: machines.len() as u32, ..SyncerConfig::default() };
    let quorum = QuorumPolicy { updates_min: NonZeroU32::MIN, ..syncer.quorum };
    let apply = ApplyPolicy::Keep { residue: true };
    Recipe {
        model,
        inner,
        exchange: ExchangeSpec { fragments: 4, sync_every, block: 256, code: Code::Int4, apply },
        syncer: SyncerConfig { quorum, ..syncer },
        machines,
        text_at_hand: true,
        faults: Vec::new(),
        joining: JoinerStart::Zero,
        budget: Budget::Tokens(tokens),
        seed,
        start: None,
        samples: 0,
        undo: None,
        cosines: false,
        average: 0.0,
        measures_test: false,
        lookahead: None,
        loss_checks: true,
        trainers: None,
    }
}

fn machine(step_ms: u64, latency_ms: u64, batch: u32) -> MachineSpec {
    let link = LinkSpec { latency_ms, jitter_ms: 5, bytes_per_s: None, loss: 0.0 };
    MachineSpec { step_ms, jitter: 0.02, link, batch: batch.try_into().ok(), ..MachineSpec::default() }
}

/// Returns the number of loss checks before the first suspicion of each suspected machine.
fn suspected(outcome: &TrainingResult) -> BTreeMap<u32, u32> {
    let (mut checks, mut found) = (BTreeMap::new(), BTreeMap::new());
    for shown in &outcome.loss_checks {
        let checks: &mut u32 = checks.entry(shown.machine).or_default();
        *checks += 1;
        if shown.regard.is_some_and(|regard| regard.suspicion().is_some()) {
            found.entry(shown.machine).or_insert(*checks);
        }
    }
    found
}

/// Goal: learners that send zeros, noise or copies of another's update are suspected within 160 loss checks, for every
/// seed. No honest learner next to them is.
#[test]
fn only_free_riders_are_suspected() {
    let corpus = corpus();
    for_seeds_in(seeds(2), |seed| {
        let poison = |(machine, lie)| (0, Fault::Poison(machine, Some(Poison::Lie(lie))));
        let faults = RIDERS.map(poison).to_vec();
        let machines = vec![machine(100, 20, 0); 8];
        let outcome = Recipe { faults, ..recipe(seed, machines, (2, 3, 80)) }.train(&corpus).unwrap();
        let found = suspected(&outcome);
        println!("seed {seed}: {found:?}, loss {}", outcome.loss);
        assert!(
            RIDERS.iter().all(|(machine, _)| found.get(machine).is_some_and(|checks| *checks <= CHECKS_MAX))
        );
        assert_eq!(found.len(), RIDERS.len(), "seed {seed}: {found:?}");
        assert_eq!(
            (outcome.attack_stats.hostile.closed, outcome.attack_stats.honest.closed),
            (0, 0),
            "nobody has to go"
        );
    });
}

/// Goal: fewer than one in a hundred honest learners are ever suspected, whether near or far, fast or slow, with large
/// or small batches.
#[test]
fn honest_learners_are_hardly_ever_suspected() {
    let corpus = corpus();
    for_seeds_in(seeds(2), |seed| {
        let of = |(step_ms, latency_ms, batch)| machine(step_ms, latency_ms, batch);
        let machines = [
            (100, 20, 0),
            (100, 400, 1),
            (200, 20, 8),
            (400, 20, 0),
            (50, 20, 0),
            (100, 1_500, 0),
            (300, 20, 2),
            (150, 600, 0),
            (100, 20, 16),
            (800, 20, 0),
        ];
        let outcome = recipe(seed, machines.map(of).to_vec(), (4, 12, 480)).train(&corpus).unwrap();
        let found = suspected(&outcome);
        println!("seed {seed}: {} loss checks, {found:?}", outcome.loss_checks.len());
        assert!(outcome.loss_checks.len() > 450);
        assert_eq!(found, BTreeMap::new(), "seed {seed}");
    });
}
