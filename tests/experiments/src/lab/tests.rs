//! Whole experiments, small enough to take only moments.

use super::*;
use archipelago_core::data::grammar;
use archipelago_core::diloco::Layout;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::ModelSpec;
use archipelago_core::model::Preset;
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec, InnerSpec};
use archipelago_runtime::engine::cpu::{CpuModel, CpuTrainer};
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};
use archipelago_sim::world::{Attack, Fault, MachineSpec, MonitorSpec, Poison};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn corpus() -> Corpus {
    Corpus::new(grammar::generate(1, 20_000).as_bytes()).unwrap()
}

/// Returns the recipe of two learners with batches of one window, and 40 steps each.
fn recipe() -> Recipe {
    let (model, tokens) = (reference_model(), 2 * 40 * 64);
    let inner = Preset::Tiny.inner();
    Recipe {
        model,
        inner: InnerSpec { batch: 1, warmup_tokens: tokens / 20, total_tokens: tokens, ..inner },
        exchange: ExchangeSpec {
            fragments: 4,
            sync_every: 8,
            block: 256,
            code: Code::Int4,
            apply: ApplyPolicy::Keep { residue: true },
        },
        syncer: SyncerConfig { learners_start: 2, ..SyncerConfig::default() },
        machines: vec![MachineSpec::default(); 2],
        text_at_hand: true,
        faults: Vec::new(),
        joining: JoinerStart::Zero,
        budget: Budget::Tokens(tokens),
        seed: 1,
        start: None,
        samples: 0,
        undo: None,
        cosines: false,
        average: 0.0,
        measures_test: false,
        lookahead: None,
        loss_checks: false,
        trainers: None,
    }
}

/// Goal: loss measurements during a run do not affect it, in a world or with a single trainer.
#[test]
fn samples_do_not_affect_a_run() {
    type TrainFn = fn(&Recipe, &Corpus) -> Result<TrainingResult, LabError>;
    let (corpus, plain) = (corpus(), recipe());
    let sampled = Recipe { samples: 4, ..plain.clone() };
    let Budget::Tokens(tokens) = plain.budget else { panic!("{:?}", plain.budget) };
    let ways: [TrainFn; 2] = [Recipe::train, |recipe, corpus| recipe.train_baseline(corpus, 2 * 40 * 64)];
    for train in ways {
        let (without, with) = (train(&plain, &corpus).unwrap(), train(&sampled, &corpus).unwrap());
        assert!(without.samples.is_empty());
        for (sample, due) in with.samples.iter().zip([tokens / 4, tokens / 2, 3 * tokens / 4, tokens]) {
            // Learners end their steps together, with up to one window each.
            assert!((due..due + 3 * 64).contains(&sample.tokens), "{:?}", with.samples);
        }
        assert_eq!(with.samples.len(), 4);
        assert_eq!(TrainingResult { samples: vec![], ..with }, without);
    }
}

/// Goal: averaging and test measurements do not affect the run, and give the requested losses.
#[test]
fn final_measurements_do_not_affect_a_run() {
    let text = b"What is averaged is smoother than what comes last. ".repeat(120);
    let documents = Documents { train: text.clone(), validation: text.clone(), test: text[50..].to_vec() };
    let corpus = Corpus::try_from(&documents).unwrap();
    let plain = recipe();
    let told = Recipe { average: 0.1, measures_test: true, ..plain.clone() };
    for train in
        [Recipe::train, |recipe: &Recipe, corpus: &Corpus| recipe.train_baseline(corpus, 2 * 40 * 64)]
    {
        let (without, with) = (train(&plain, &corpus).unwrap(), train(&told, &corpus).unwrap());
        assert_eq!(without.ends, FinalLosses::default());
        let [averaged, test, both] =
            [with.ends.averaged, with.ends.test, with.ends.averaged_test].map(Option::unwrap);
        assert!((test - with.loss).abs() < 0.1 && (averaged - both).abs() < 0.1, "{:?}", with.ends);
        // In so short a run, earlier parameters are worse.
        assert!(averaged > with.loss, "{:?}", with.ends);
        assert_eq!(TrainingResult { ends: FinalLosses::default(), ..with }, without);
    }
    let alone =
        |lookahead| Recipe { lookahead, ..plain.clone() }.train_baseline(&corpus, 2 * 40 * 64).unwrap();
    let whole = Some(Lookahead { steps: 1, share: 1.0 });
    let loss = alone(None).loss;
    assert!((alone(whole).loss - loss).abs() < 1e-4, "all of the way is no way back, but for rounding");
    assert!(
        alone(Some(Lookahead { steps: 6, share: 0.5 })).loss > loss + 0.01,
        "half of it is half of the way"
    );
}

/// Goal: divergence is reported as such, and not as a standstill.
#[test]
fn divergence_is_reported() {
    let corpus = corpus();
    for lr_max in [1e30, f32::MAX] {
        let plain = recipe();
        let recipe = Recipe { inner: InnerSpec { lr_max, ..plain.inner }, ..plain };
        let error = recipe.train(&corpus).unwrap_err();
        assert!(matches!(error, LabError::Stopped { seed: 1, .. }), "{error}");
        let alone = recipe.train_baseline(&corpus, 4 * 64).unwrap_err();
        assert!(alone.to_string().contains("lower the learning rate"), "{alone}");
    }
}

/// Returns the recipe of five learners, the last of them hostile. The others train as many tokens as in [`recipe`]
/// each.
fn attacked(poison: Poison) -> Recipe {
    let plain = recipe();
    let tokens = 4 * 40 * 64;
    Recipe {
        inner: InnerSpec { warmup_tokens: tokens / 20, total_tokens: tokens, ..plain.inner },
        syncer: SyncerConfig { learners_start: 5, ..plain.syncer },
        machines: vec![MachineSpec::default(); 5],
        faults: vec![(0, Fault::Poison(4, Some(poison)))],
        budget: Budget::Tokens(tokens),
        undo: None,
        cosines: true,
        ..plain
    }
}

/// Goal: the budget does not include tokens of hostile learners, and the run continues after one of them is sent away.
/// No honest learner is refused.
#[test]
fn hostile_tokens_are_not_part_of_the_budget() {
    let mut recipe = attacked(Poison::NotFinite);
    recipe.syncer.refusals_max = 3;
    let outcome = recipe.train(&corpus()).unwrap();
    assert!((4 * 40 * 64..4 * 44 * 64).contains(&outcome.tokens), "{outcome:#?}");
    assert!((40.0..44.0).contains(&outcome.steps_per_learner), "{outcome:#?}");
    let AttackStats { after_rounds, hostile, honest } = outcome.attack_stats;
    assert!(after_rounds.is_some_and(|rounds| rounds < 3), "{outcome:#?}");
    assert!(hostile.merged == 0 && hostile.weight == 0.0 && hostile.closed > 0, "{outcome:#?}");
    assert!(hostile.refused >= 3 * hostile.closed, "{outcome:#?}");
    assert!(honest.merged > 0 && honest.refused == 0 && honest.closed == 0, "{outcome:#?}");
    assert_eq!(outcome.broken, None);
}

/// Goal: well-formed updates of hostile learners are merged, and the cosines of honest pairs do not include them.
#[test]
fn well_formed_hostile_updates_are_merged() {
    let corpus = corpus();
    let outcome = attacked(Poison::Lie(Attack::Times(-1))).train(&corpus).unwrap();
    assert!((0.1..0.3).contains(&outcome.attack_stats.hostile_share()), "{outcome:#?}");
    assert_eq!(
        (outcome.attack_stats.after_rounds, outcome.attack_stats.hostile.refused),
        (None, 0),
        "{outcome:#?}"
    );
    let pairs: u64 = outcome.cosines.iter().map(|cosines| cosines.pairs).sum();
    let segments =
        archipelago_core::model::layout(&reference_model()).unwrap().tensors().len() as u64 / 4 + 1;
    assert!(pairs > 0 && pairs <= 4 * 3 / 2 * segments * outcome.rounds, "{outcome:#?}");
    let whole = Recipe { cosines: false, ..attacked(Poison::Lie(Attack::Times(-1))) }.train(&corpus).unwrap();
    assert_eq!(TrainingResult { cosines: vec![], ..outcome }, whole, "looking changes nothing");
}

/// Goal: a learner that computes one step in ten, and hides that, has updates as long as the others'.
#[test]
fn a_sandbagger_sends_updates_of_normal_length() {
    let mut world = attacked(Poison::Lie(Attack::Sandbags)).world(&corpus()).unwrap();
    world.inject(Fault::Poison(4, Some(Poison::Lie(Attack::Sandbags))));
    world.watch_merges();
    world.run_for(4_000);
    let jobs = world.take_merges();
    let norms = |is_odd: bool| {
        let updates = jobs.iter().flat_map(|job| &job.updates);
        let its = updates.filter(|update| (world.machine_of(update.learner) == Some(4)) == is_odd);
        let norms: Vec<f64> = its.map(|update| update.body.norm()).collect();
        norms.iter().sum::<f64>() / norms.len() as f64
    };
    let ratio = norms(true) / norms(false);
    assert!((0.8..1.2).contains(&ratio), "{ratio}");
}

/// Goal: a run ruined by hostile learners has an outcome instead of an error; any other failed run has an error.
#[test]
fn a_ruined_run_is_an_outcome() {
    let corpus = corpus();
    let mut recipe = attacked(Poison::NotFinite);
    recipe.inner.lr_max = f32::MAX;
    let outcome = recipe.train(&corpus).unwrap();
    assert!(outcome.broken.is_some_and(|why| why.contains("stopped")), "{:?}", outcome.attack_stats);
    recipe.faults.clear();
    assert!(matches!(recipe.train(&corpus), Err(LabError::Stopped { .. })));
}

/// Goal: one of six learners trains well until it is trusted, and then against the others, in a way that no bound
/// stops. With rollback the loss ends as if it had left; without rollback it does not.
#[test]
fn harm_is_rolled_back_in_real_training() {
    let corpus = corpus();
    let tokens = 6 * 120 * 64;
    let run = |poison: Option<Poison>, undo: bool| {
        let plain = attacked(Poison::NotFinite);
        let faults = poison.map(|poison| (6_000, Fault::Poison(5, Some(poison))));
        let recipe = Recipe {
            inner: InnerSpec { warmup_tokens: tokens / 20, total_tokens: tokens, ..plain.inner },
            syncer: SyncerConfig { learners_start: 6, norm_ratio_max: 0.0, ..plain.syncer },
            machines: vec![MachineSpec::default(); 6],
            faults: faults.into_iter().collect(),
            budget: Budget::Tokens(tokens),
            undo: undo.then_some(MonitorSpec { every_ms: 500, trial_ms: 20 }),
            cosines: false,
            ..plain
        };
        recipe.train(&corpus).unwrap()
    };
    let traitor = Some(Poison::Lie(Attack::Reaches));
    let (clean, harmed, undone) = (run(None, true), run(traitor, false), run(traitor, true));
    assert!(clean.harms.iter().all(|harm| harm.culprits.is_empty()), "{:?}", clean.harms);
    assert!(harmed.loss > 1.05 * clean.loss, "{} {}", clean.loss, harmed.loss);
    let blamed: usize = undone.harms.iter().map(|harm| harm.culprits.len()).sum();
    assert_eq!((blamed, undone.attack_stats.honest.closed), (1, 0), "{:?}", undone.harms);
    assert!(undone.loss < 1.02 * clean.loss, "{} {} {}", clean.loss, undone.loss, harmed.loss);
}

/// Source of CPU trainers, which counts them.
#[derive(Debug, Default)]
struct CustomTrainers {
    made: AtomicU32,
    measured: Arc<AtomicU32>,
}

struct CountingTrainer {
    trainer: CpuTrainer,
    model: CpuModel,
    measured: Arc<AtomicU32>,
}

impl Trainers for CustomTrainers {
    fn trainer(&self, model: &ModelSpec, inner: &InnerSpec) -> Result<Box<dyn Trainer>, EngineError> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let (trainer, measured) = (CpuTrainer::fixed(model, inner)?, Arc::clone(&self.measured));
        Ok(Box::new(CountingTrainer { trainer, model: CpuModel::fixed(model)?, measured }))
    }

    fn check(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

impl Trainer for CountingTrainer {
    fn layout(&self) -> &Layout {
        self.trainer.layout()
    }
    fn params(&self) -> &[f32] {
        self.trainer.params()
    }
    fn params_mut(&mut self) -> &mut [f32] {
        self.trainer.params_mut()
    }
    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        self.trainer.step(tokens, lr)
    }
    fn held_out_loss(&mut self, params: &[f32], windows: &[u32]) -> Result<Option<f32>, EngineError> {
        self.measured.fetch_add(1, Ordering::Relaxed);
        Ok(Some(self.model.loss(params, windows)?))
    }
    fn supports_masks(&self) -> bool {
        true
    }
    fn describe(&self) -> String {
        self.trainer.describe()
    }
}

/// Goal: the source of the trainers does not affect the run. All ways of training take them from the recipe's source,
/// and measure with them.
#[test]
fn the_source_of_trainers_does_not_affect_a_run() {
    type TrainFn = fn(&Recipe, &Corpus) -> Result<TrainingResult, LabError>;
    let (corpus, plain) = (corpus(), Recipe { samples: 2, ..recipe() });
    let ways: [(TrainFn, u32); 3] = [
        (Recipe::train, 2),
        (|recipe, corpus| recipe.train_baseline(corpus, 2 * 40 * 64), 1),
        (|recipe, corpus| recipe.train_in_lockstep(corpus, 2 * 40 * 64), 2),
    ];
    for (train, learners) in ways {
        let elsewhere = Arc::new(CustomTrainers::default());
        let recipe = Recipe { trainers: Some(elsewhere.clone()), ..plain.clone() };
        let (ours, theirs) = (train(&plain, &corpus).unwrap(), train(&recipe, &corpus).unwrap());
        assert!((ours.loss - theirs.loss).abs() < 1e-5, "{} {}", ours.loss, theirs.loss);
        let steps = |outcome: &TrainingResult| (outcome.tokens, outcome.rounds, outcome.updates_merged);
        assert_eq!(steps(&ours), steps(&theirs));
        assert!(elsewhere.made.load(Ordering::Relaxed) > learners, "one more measures");
        assert!(elsewhere.measured.load(Ordering::Relaxed) >= 3);
        let donor = Recipe { joining: JoinerStart::Donor, ..recipe };
        assert!(matches!(train(&donor, &corpus), Err(LabError::Donor)));
    }
}
