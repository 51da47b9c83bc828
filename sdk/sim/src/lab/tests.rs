//! Whole experiments, so small that they take moments.

use super::*;
use crate::world::MachineSpec;
use archipelago::data::grammar;
use archipelago::diloco::syncer::SyncerConfig;
use archipelago::model::Preset;
use archipelago::wire::{ApplyPolicy, Code, ExchangeSpec, InnerSpec};

fn corpus() -> Corpus {
    Corpus::new(grammar::generate(1, 20_000).as_bytes()).unwrap()
}

/// Two learners with batches of one window, and 40 steps each.
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
        joining: Joining::Zero,
        budget: Budget::Tokens(tokens),
        seed: 1,
        samples: 0,
    }
}

/// Looking at the loss on the way changes nothing of the run, together or alone.
#[test]
fn samples_change_nothing() {
    type Way = fn(&Recipe, &Corpus) -> Result<Outcome, LabError>;
    let (corpus, plain) = (corpus(), recipe());
    let sampled = Recipe { samples: 4, ..plain.clone() };
    let Budget::Tokens(tokens) = plain.budget else { panic!("{:?}", plain.budget) };
    let ways: [Way; 2] = [Recipe::train, |recipe, corpus| recipe.train_alone(corpus, 2 * 40 * 64)];
    for train in ways {
        let (without, with) = (train(&plain, &corpus).unwrap(), train(&sampled, &corpus).unwrap());
        assert!(without.samples.is_empty());
        for (sample, due) in with.samples.iter().zip([tokens / 4, tokens / 2, 3 * tokens / 4, tokens]) {
            // Learners end their steps together, up to a window each.
            assert!((due..due + 3 * 64).contains(&sample.tokens), "{:?}", with.samples);
        }
        assert_eq!(with.samples.len(), 4);
        assert_eq!(Outcome { samples: vec![], ..with }, without);
    }
}

/// Who trains too fast is told so, and not that something stands still.
#[test]
fn what_blows_up_says_why() {
    let corpus = corpus();
    for lr_max in [1e30, f32::MAX] {
        let plain = recipe();
        let recipe = Recipe { inner: InnerSpec { lr_max, ..plain.inner }, ..plain };
        let error = recipe.train(&corpus).unwrap_err();
        assert!(matches!(error, LabError::Stopped { seed: 1, .. }), "{error}");
        let alone = recipe.train_alone(&corpus, 4 * 64).unwrap_err();
        assert!(alone.to_string().contains("lower the learning rate"), "{alone}");
    }
}
