//! Real training in virtual time: homogeneous learners around the real cores, and one trainer alone
//! beside them.

use std::num::NonZeroUsize;
use std::sync::Arc;

use archipelago::data::{self, BYTE_VOCAB, Feed, SHARD_TOKENS_MAX};
use archipelago::diloco::syncer::SyncerConfig;
use archipelago::diloco::{LeasePool, Millis};
use archipelago::engine::Trainer;
use archipelago::engine::cpu::{CpuModel, CpuTrainer};
use archipelago::model::{init, layout, learning_rate};
use archipelago::sim::{Fault, LinkSpec, MachineSpec, ShellSpec, World, WorldSpec};
use archipelago::wire::{DataSpec, ExchangeSpec, InnerSpec, LearnerId, ModelSpec, RunId, RunSpec};

/// Share of a corpus that is kept for measuring.
const HELD_OUT_RATIO: f64 = 0.1;
/// Most held-out windows measured.
const HELD_OUT_WINDOWS_MAX: usize = 1_280;
/// Windows measured at a time.
const HELD_OUT_BATCH: usize = 32;

/// A corpus, cut up.
pub struct Corpus {
    /// The training tokens.
    pub data: DataSpec,
    /// Bytes of its shards, in order.
    pub shards: Vec<Arc<[u8]>>,
    /// Tokens that are never trained on.
    pub held_out: Vec<u32>,
}

impl Corpus {
    /// From the bytes of a text.
    ///
    /// # Panics
    /// If the text has fewer than two bytes.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        let tokens = data::bytes_to_tokens(text);
        let split = data::split(&tokens, HELD_OUT_RATIO, SHARD_TOKENS_MAX).expect("a text of some length");
        let shards = split.shards.iter().map(|shard| data::encode_shard(shard, 2).expect("bytes fit"));
        let shards: Vec<Vec<u8>> = shards.collect();
        let specs = shards.iter().map(|shard| data::shard_spec(shard, 2).expect("encoded above"));
        Self {
            data: DataSpec { token_bytes: 2, shards: specs.collect() },
            held_out: split.held_out.to_vec(),
            shards: shards.into_iter().map(Arc::from).collect(),
        }
    }

    /// Mean loss over a fixed set of held-out windows, evenly spread, in nats per token.
    ///
    /// # Panics
    /// If `params` do not fit `model`, or the held-out text is shorter than one window.
    #[must_use]
    pub fn held_out_loss(&self, model: &ModelSpec, params: &[f32], threads: NonZeroUsize) -> f32 {
        let length = model.context as usize + 1;
        let starts = self.held_out.len() - length;
        let count = (starts / model.context as usize).clamp(1, HELD_OUT_WINDOWS_MAX);
        let windows: Vec<&[u32]> = (0..count)
            .map(|i| i * starts / count)
            .map(|start| &self.held_out[start..start + length])
            .collect();
        let mut engine = CpuModel::new(model, threads).expect("the model was trained");
        let sum: f64 = windows
            .chunks(HELD_OUT_BATCH)
            .map(|batch| {
                let loss = engine.loss(params, &batch.concat()).expect("the parameters fit the model");
                f64::from(loss) * batch.len() as f64
            })
            .sum();
        (sum / count as f64) as f32
    }
}

/// What is trained, and how.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Shape of the model.
    pub model: ModelSpec,
    /// Inner optimisation of one learner.
    pub inner: InnerSpec,
    /// How learners and syncer exchange parameters.
    pub exchange: ExchangeSpec,
    /// The syncer's knobs.
    pub syncer: SyncerConfig,
    /// M.
    pub learners: u32,
    /// Tokens to train on, all learners together.
    pub tokens: u64,
    /// Seed of parameters, data order and world.
    pub seed: u64,
    /// Threads of each trainer.
    pub threads: NonZeroUsize,
}

/// The shape of the independent model of the method that our results are set beside: two layers of
/// width 64, context 64, a byte vocabulary.
#[must_use]
pub fn reference_model() -> ModelSpec {
    ModelSpec {
        vocab: BYTE_VOCAB,
        d_model: 64,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        d_ff: 176,
        context: 64,
        rope_theta: 1e4,
        norm_eps: 1e-5,
    }
}

/// What training led to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Held-out loss of the parameters that result, in nats per token.
    pub val: f32,
    /// Tokens trained on.
    pub tokens: u64,
    /// Tokens merged.
    pub tokens_merged: u64,
    /// Mean steps of a learner.
    pub steps_per_learner: f64,
    /// Rounds that led to a version.
    pub rounds: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
}

impl Recipe {
    /// The run that follows, on `corpus`.
    #[must_use]
    pub fn run_spec(&self, corpus: &Corpus) -> RunSpec {
        let (model, inner, exchange) = (self.model, self.inner, self.exchange);
        RunSpec { model, inner, exchange, data: corpus.data.clone(), seed: self.seed }
    }

    /// A world of `learners` machines as given by `machine`, all training for real.
    ///
    /// # Panics
    /// If the recipe cannot be run.
    #[must_use]
    pub fn world(&self, corpus: &Corpus, machine: impl Fn(u32) -> MachineSpec) -> World {
        let (model, inner, threads) = (self.model, self.inner, self.threads);
        let spec = WorldSpec {
            run: RunId(self.seed),
            run_spec: self.run_spec(corpus),
            syncer: self.syncer,
            theta: init(&model, self.seed).expect("a model"),
            shards: corpus.shards.clone(),
            machines: (0..self.learners).map(machine).collect(),
            shell: ShellSpec::default(),
        };
        let make = move |_| -> Box<dyn Trainer> {
            Box::new(CpuTrainer::new(&model, &inner, threads).expect("a model that can be trained"))
        };
        World::new(self.seed, spec, layout(&model).expect("a model"), Box::new(make)).expect("a recipe")
    }

    /// Trains with M equal learners to the token, collects their last progress, and measures Θ.
    ///
    /// # Panics
    /// If the recipe cannot be run, if the run stands still, or if an invariant is broken.
    #[must_use]
    pub fn train(&self, corpus: &Corpus) -> Outcome {
        let link = LinkSpec { latency_ms: 20, jitter_ms: 5, bytes_per_s: None };
        let machine = MachineSpec { step_ms: 100, jitter: 0.02, link, starts_ms: 0 };
        let mut world = self.world(corpus, |_| machine);
        let tokens = |world: &World| world.machines().iter().map(|machine| machine.tokens).sum::<u64>();
        let mut before = 0;
        while !world.run_until(100 * machine.step_ms, machine.step_ms, |world| tokens(world) >= self.tokens) {
            let now = tokens(&world);
            assert!(now > before, "seed {}: stands still at {now} tokens", self.seed);
            before = now;
        }
        world.inject(Fault::Finish);
        let ended = world.run_until(600_000, 100, World::is_finished);
        assert!(ended, "seed {}: does not finish", self.seed);
        world.check().unwrap_or_else(|violation| panic!("seed {}: {violation}", self.seed));
        let status = world.status().expect("the syncer is up");
        let theta = world.syncer().and_then(|syncer| syncer.theta()).expect("nothing is merged any more");
        let steps: u64 = world.machines().iter().map(|machine| machine.steps).sum();
        Outcome {
            val: corpus.held_out_loss(&self.model, &theta, self.threads),
            tokens: tokens(&world),
            tokens_merged: status.tokens_merged,
            steps_per_learner: steps as f64 / f64::from(self.learners),
            rounds: status.rounds,
            virtual_ms: world.now().0,
        }
    }

    /// Trains one learner alone with the batches of all M at once: synchronous data-parallel training
    /// at equal tokens, from the same parameters, over the same windows, by the same schedule.
    ///
    /// # Panics
    /// If the recipe cannot be run.
    #[must_use]
    pub fn train_alone(&self, corpus: &Corpus) -> Outcome {
        let inner = InnerSpec { batch: self.inner.batch * self.learners, ..self.inner };
        let mut trainer = CpuTrainer::new(&self.model, &inner, self.threads).expect("a model");
        trainer.params_mut().copy_from_slice(&init(&self.model, self.seed).expect("a model"));
        let windows = corpus.data.shards.iter().map(|shard| data::windows(shard.tokens, self.model.context));
        let mut pool = LeasePool::new(windows.collect()).expect("a corpus with windows");
        let mut feed = Feed::new(&self.run_spec(corpus));
        let (mut tokens, mut steps) = (0, 0_u32);
        while tokens < self.tokens {
            let batch = next_batch(&mut feed, &mut pool, corpus, inner.batch);
            let lr = learning_rate(&inner, tokens);
            tokens += trainer.step(&batch, lr).expect("training is stable").tokens;
            steps += 1;
        }
        Outcome {
            val: corpus.held_out_loss(&self.model, trainer.params(), self.threads),
            tokens,
            tokens_merged: tokens,
            steps_per_learner: f64::from(steps),
            rounds: 0,
            virtual_ms: 0,
        }
    }
}

/// The next batch of one who has all leases to himself.
fn next_batch(feed: &mut Feed, pool: &mut LeasePool, corpus: &Corpus, batch: u32) -> Vec<u32> {
    let alone = LearnerId(1);
    loop {
        if let Some(tokens) = feed.next_batch(batch) {
            return tokens;
        }
        let progress = feed.progress();
        for &(lease, done) in &progress {
            pool.progress(alone, lease, done, Millis(u64::MAX));
        }
        feed.reported(&progress);
        let grant = pool.grant(alone, 16 * batch, Millis(u64::MAX));
        feed.grant(grant).expect("the pool grants what exists");
        if let Some(shard) = feed.needs() {
            feed.add_shard(shard, corpus.shards[shard as usize].to_vec()).expect("the corpus's own shard");
        }
    }
}
