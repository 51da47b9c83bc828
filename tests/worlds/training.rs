//! Real training in virtual time on the built-in corpus: effects of the method on the loss.

use std::thread;

use archipelago_core::data::{bytes_to_tokens, grammar};
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::{InnerSpec, Preset, init, learning_rate};
use archipelago_core::token;
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec, Millis};
use archipelago_experiments::lab::{Budget, Corpus, JoinerStart, Recipe, reference_model};
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::CpuTrainer;
use archipelago_sim::world::{Fault, LinkSpec, MachineSpec, Storm, World};
use archipelago_tests::toys::{check, status};

/// Seeds of the runs with faults.
const SEEDS: [u64; 3] = [1, 2, 3];

fn corpus() -> Corpus {
    Corpus::new(grammar::generate(1, 1_000_000).as_bytes()).expect("a text of some length")
}

/// Returns `learners` equal learners with `steps` steps each and the default exchange.
fn recipe(learners: u32, steps: u64) -> Recipe {
    let model = reference_model();
    let batch = 8;
    let tokens = u64::from(learners * batch * model.context) * steps;
    let inner = InnerSpec {
        batch,
        lr_max: 2e-3,
        warmup_tokens: tokens / 20,
        total_tokens: tokens,
        ..Preset::Tiny.inner()
    };
    let apply = ApplyPolicy::Keep { residue: true };
    let link = LinkSpec { latency_ms: 20, jitter_ms: 5, bytes_per_s: None, loss: 0.0 };
    let machine = MachineSpec { step_ms: 100, jitter: 0.02, link, ..MachineSpec::default() };
    Recipe {
        model,
        inner,
        exchange: ExchangeSpec { fragments: 8, sync_every: 24, block: 256, code: Code::Int4, apply },
        syncer: SyncerConfig { learners_start: learners, ..SyncerConfig::default() },
        machines: vec![machine; learners as usize],
        text_at_hand: false,
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

/// Goal: with the same number of steps, two learners get a good part of the gain that synchronous training on both
/// their batches has over one learner alone. Four bits both ways cost next to nothing compared with 32.
#[test]
fn two_learners_train_better_than_one() {
    let corpus = corpus();
    let (alone, pair) = (recipe(1, 390), recipe(2, 390));
    let plain = Recipe { exchange: ExchangeSpec { code: Code::F32, ..pair.exchange }, ..pair.clone() };
    let start = init(&alone.model, alone.seed).unwrap();
    let before = corpus.held_out_loss(&alone.model, &start).unwrap();
    let by_itself = |recipe: &Recipe| {
        recipe.train_baseline(&corpus, u64::from(recipe.learners()) * 390 * 512).unwrap().loss
    };
    let (one, both) = (by_itself(&alone), by_itself(&pair));
    let (int4, f32) = (pair.train(&corpus).unwrap(), plain.train(&corpus).unwrap().loss);
    let all = format!("before {before}, one {one}, both batches {both}, together {} (f32: {f32})", int4.loss);
    println!("{all}");
    let floor = grammar::entropy_nats_per_byte() as f32;
    assert!(one < before - 3.0, "{all}");
    assert!(both > floor && int4.loss > floor, "below the entropy, {floor}: {all}");
    // Measured: 0.48 of the gain after these few steps; it grows with the number of steps.
    assert!(int4.loss < one - 0.3 * (one - both), "{all}");
    assert!(int4.loss < 1.05 * f32, "{all}");
    assert!(int4.tokens_merged as f64 > 0.99 * int4.tokens as f64, "{int4:?}");
}

/// Returns questions with answers, in words that the grammar does not have. The questions are masked, so that only
/// answers are targets.
fn chats() -> Corpus {
    let sentences = grammar::generate(7, 400_000);
    let mut tokens = Vec::new();
    for pair in sentences.split_inclusive('.').collect::<Vec<_>>().chunks_exact(2) {
        let answer = pair[1].replace("the ", "ye ").replace("The ", "Ye ").replace("s ", "eth ");
        let (prompt, answer) = (format!("Q:{}", pair[0]), format!(" A:{answer}\n"));
        tokens.extend(bytes_to_tokens(prompt.as_bytes()).into_iter().map(|token| token | token::MASKED));
        tokens.extend(bytes_to_tokens(answer.as_bytes()));
    }
    Corpus::of_tokens(&tokens).expect("a text of some length")
}

/// Returns the parameters of one trainer after training on the built-in corpus.
fn pretrained(recipe: &Recipe) -> Vec<f32> {
    let Recipe { model, inner, .. } = recipe;
    let mut trainer = CpuTrainer::fixed(model, inner).expect("a model");
    trainer.params_mut().copy_from_slice(&init(model, 1).expect("a model"));
    let text = bytes_to_tokens(grammar::generate(1, 400_000).as_bytes());
    let batch = inner.batch as usize * (model.context as usize + 1);
    let mut trained = 0;
    for tokens in text.chunks_exact(batch) {
        trained += trainer.step(tokens, learning_rate(inner, trained)).expect("it trains").tokens;
    }
    trainer.params().to_vec()
}

/// Goal: four learners with four bits both ways fine-tune a pretrained model to the answers of another text. They come
/// within 1 % of the held-out loss of one trainer with all their batches. As usual in fine-tuning, the rate is lower
/// and exchanges are more frequent than in training from scratch.
#[test]
fn four_learners_fine_tune_as_well_as_one_trainer() {
    let chats = chats();
    let start = pretrained(&recipe(1, 600));
    let base = recipe(4, 400);
    let tuned = Recipe {
        inner: InnerSpec { lr_max: 5e-4, ..base.inner },
        exchange: ExchangeSpec { sync_every: 8, ..base.exchange },
        start: Some(start.clone().into()),
        ..base
    };
    let before = chats.held_out_loss(&tuned.model, &start).unwrap();
    let alone = tuned.train_baseline(&chats, 4 * 400 * 512).unwrap().loss;
    let together = tuned.train(&chats).unwrap();
    let all = format!("before {before}, alone {alone}, together {}", together.loss);
    println!("{all}");
    // Measured: 2.469, 0.712 and 0.717.
    assert!(before > 2.0 && alone < 0.35 * before, "{all}");
    assert!(together.loss < 1.01 * alone, "{all}");
}

/// Goal: faults cost time, not quality. At the same number of merged tokens the loss nearly equals that of a run
/// without faults. Such short runs differ by a tenth between seeds, so the test averages several.
#[test]
fn a_storm_costs_little_loss() {
    let corpus = corpus();
    let train = |seed: u64, storm: Option<Storm>| -> f32 {
        let recipe = Recipe { machines: vec![MachineSpec::default(); 4], seed, ..recipe(4, 100) };
        let mut world = recipe.world(&corpus).unwrap();
        if let Some(storm) = storm {
            for (at, fault) in storm.plan(recipe.seed, recipe.learners(), Millis(3_000), Millis(40_000)) {
                world.plan(at, fault);
            }
        }
        let Budget::Tokens(tokens) = recipe.budget else { panic!("{:?}", recipe.budget) };
        let done = |world: &World| world.status().is_some_and(|status| status.tokens_merged >= tokens);
        assert!(world.run_until(300_000, 500, done), "{:#?}", status(&world));
        world.inject(Fault::Finish);
        // A syncer that has crashed in the meantime comes back.
        let is_over = |world: &World| world.is_finished() && world.syncer().is_some();
        assert!(world.run_until(60_000, 500, is_over), "{:#?}", status(&world));
        check(&world, recipe.seed);
        let theta = world.syncer().and_then(|syncer| syncer.theta()).unwrap();
        corpus.held_out_loss(&recipe.model, &theta).unwrap()
    };
    let storm = Storm { faults_per_h: 1_800.0, repair_ms_min: 500, repair_ms_max: 6_000, syncer: true };
    let losses: Vec<[f32; 2]> = thread::scope(|scope| {
        let runs = SEEDS.map(|seed| scope.spawn(move || [train(seed, None), train(seed, Some(storm))]));
        runs.map(|run| run.join().expect("each run comes to its end")).to_vec()
    });
    println!("without and with a storm: {losses:?}");
    let [calm, stormy] = [0, 1].map(|i| losses.iter().map(|both| both[i]).sum::<f32>());
    assert!(stormy < 1.06 * calm, "{losses:?}");
}
