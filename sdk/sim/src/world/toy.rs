//! Training task so small that thousands of worlds run in a second.

use std::sync::Arc;

use super::{MachineSpec, Rng, ShellSpec, World, WorldSpec};
use archipelago_core::data::{encode_shard, shard_spec};
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::diloco::{Layout, MergeClass, Tensor};
use archipelago_core::wire::{
    ApplyPolicy, Architecture, Code, DataSpec, ExchangeSpec, InnerSpec, Model, Optimiser, RunId, RunSpec,
};
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};

/// Standard deviation of a toy gradient's noise, per parameter.
const NOISE: f32 = 0.3;
/// Number of tokens of a run, so small that outer momentum has warmed up after some seconds.
const TOTAL_TOKENS: u64 = 20_000;

/// Trainer of a quadratic function, `loss = ½ mean((θ − target)²)`, with gradient noise that depends only on the batch.
///
/// It uses plain gradient descent. It has 220 parameters in five tensors, one of them with an embedding's merge class.
#[derive(Clone, Debug)]
pub struct Toy {
    layout: Layout,
    params: Vec<f32>,
}

impl Toy {
    /// Creates a toy at θ = 0.
    #[must_use]
    pub fn new() -> Self {
        let layout = Self::layout();
        Self { params: vec![0.0; layout.len()], layout }
    }

    /// Returns the layout of a toy's parameters.
    #[must_use]
    pub fn layout() -> Layout {
        let tensor = |name: &str, rows, cols, merge| Tensor { name: name.into(), rows, cols, merge };
        let tensors = vec![
            tensor("embedding", 10, 6, MergeClass::Mean),
            tensor("first", 10, 8, MergeClass::Radial),
            tensor("second", 8, 5, MergeClass::Radial),
            tensor("third", 4, 8, MergeClass::Radial),
            tensor("norm", 1, 8, MergeClass::Radial),
        ];
        Layout::new(tensors).expect("five tensors with names of their own")
    }

    /// Returns the target of parameter `i`, between −1 and 1.
    #[must_use]
    pub fn target(i: usize) -> f32 {
        // The cast keeps the low bits, which suffices for a pseudorandom number.
        (i as u32).wrapping_mul(2_654_435_761) as f32 / (1_u64 << 31) as f32 - 1.0
    }

    /// Returns the loss at `params`, `[220]`.
    #[must_use]
    pub fn loss(params: &[f32]) -> f32 {
        let squares = params.iter().enumerate().map(|(i, p)| f64::from(p - Self::target(i)).powi(2));
        (0.5 * squares.sum::<f64>() / params.len().max(1) as f64) as f32
    }

    /// Returns the spec of a run of toys and its shards. A batch has 4 windows of 8 tokens; there are 5 fragments, and
    /// H is 10. Each of `shards` shards has `windows` windows.
    #[must_use]
    pub fn run(seed: u64, shards: u32, windows: u32) -> (RunSpec, Vec<Arc<[u8]>>) {
        let (vocab, context) = (256, 8);
        let mut rng = Rng::stream(seed, 0xda7a);
        let bytes = (0..shards).map(|_| {
            let tokens = (0..(windows + 1) * context).map(|_| rng.below(u64::from(vocab)) as u32);
            let tokens: Vec<u32> = tokens.collect();
            encode_shard(&tokens, 2).expect("the tokens are below the vocabulary")
        });
        let bytes: Vec<Vec<u8>> = bytes.collect();
        let specs = bytes.iter().map(|bytes| shard_spec(bytes, 2).expect("encoded above"));
        let data = DataSpec { token_bytes: 2, masks: false, shards: specs.collect() };
        let (tensors, architecture) = (Self::layout().tensors().to_vec(), Architecture::default());
        let model = Model { context, vocab, tensors, architecture, experts: None };
        let inner = InnerSpec {
            batch: 4,
            lr_max: 0.05,
            lr_min_ratio: 1.0,
            warmup_tokens: 1,
            total_tokens: TOTAL_TOKENS,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: 0.0,
            optimiser: Optimiser::AdamW,
        };
        let apply = ApplyPolicy::Keep { residue: true };
        let exchange = ExchangeSpec { fragments: 5, sync_every: 10, block: 16, code: Code::Int4, apply };
        (
            RunSpec { model, inner, exchange, data, seed, frozen: None },
            bytes.into_iter().map(Arc::from).collect(),
        )
    }
}

impl World {
    /// Creates a world in which `machines` train toys, with a syncer with default settings.
    #[must_use]
    pub fn of_toys(seed: u64, machines: Vec<MachineSpec>) -> Self {
        let (run_spec, shards) = Toy::run(seed, 4, 4_000);
        let (syncer, shell) = (SyncerConfig::default(), ShellSpec::default());
        let theta = vec![0.0; Toy::layout().len()];
        let spec = WorldSpec { run: RunId(seed), run_spec, syncer, theta, shards, machines, shell };
        Self::new(seed, spec, Toy::layout(), Box::new(|_| Box::new(Toy::new()))).expect("a run of toys")
    }
}

impl Default for Toy {
    fn default() -> Self {
        Self::new()
    }
}

impl Trainer for Toy {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let loss = Self::loss(&self.params);
        let seed = tokens.iter().fold(0, |hash: u64, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3).rotate_left(17)
        });
        let mut rng = Rng::new(seed);
        let mut square = 0.0;
        for (i, param) in self.params.iter_mut().enumerate() {
            let gradient = *param - Self::target(i) + NOISE * rng.normal();
            square += f64::from(gradient * gradient);
            *param -= lr * gradient;
        }
        // The last token of each window of 9 is only predicted.
        let windows = tokens.len() / 9;
        Ok(StepStats { loss, grad_norm: square.sqrt() as f32, tokens: 8 * windows as u64 })
    }

    fn describe(&self) -> String {
        "toy".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toy_learns() {
        let mut toy = Toy::new();
        let before = Toy::loss(toy.params());
        for i in 0..200 {
            toy.step(&[i; 36], 0.05).unwrap();
        }
        let after = Toy::loss(toy.params());
        assert!(after < 0.05 * before, "{before} → {after}");
    }

    #[test]
    fn the_batch_alone_decides_the_noise() {
        let step = |tokens: &[u32]| {
            let mut toy = Toy::new();
            toy.step(tokens, 0.05).unwrap();
            toy.params
        };
        assert_eq!(step(&[1; 36]), step(&[1; 36]));
        assert_ne!(step(&[1; 36]), step(&[2; 36]));
    }
}
