//! A learner with a model of your own: `cargo run -p archipelago --example custom_model`.
//!
//! The model is a table of bigrams: for each byte, the scores of the next byte. [`HostEngine`] turns any [`Trainer`]
//! into an engine by adding the exchange. Without an argument the example trains alone and encodes its progress once.
//! With `-- --write FILE` it writes the initial parameters for a run of this model, which `syncer-server serve
//! --params FILE --lr 20` starts. With an address, `-- ws://HOST:PORT`, it takes part in such a run.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use std::env;
use std::error::Error;
use std::path::Path;

use archipelago::data::bytes_to_tokens;
use archipelago::engine::{EngineError, StepStats};
use archipelago::model::{
    ApplyPolicy, Architecture, Code, DataSpec, ExchangeSpec, Layout, MergeClass, Model, Preset, RunSpec,
    ShardSpec, Tensor,
};
use archipelago::run::Key;
use archipelago::wire::Serial;
use archipelago::{Control, Engine, Event, HostEngine, RunConfig, Trainer, run};
use futures::executor::block_on;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// Number of byte values.
const VOCAB: usize = 256;
/// Training text without a run; any text will do.
const TEXT: &str = include_str!("custom_model.rs");

/// Scores, `[VOCAB, VOCAB]`: row `a` has the scores of the byte after `a`. They are trained by plain gradient
/// descent.
struct Bigrams {
    layout: Layout,
    scores: Vec<f32>,
    /// Tokens of a window, including the last target.
    window: usize,
}

impl Bigrams {
    fn new(spec: &RunSpec) -> Self {
        let layout = Layout::new(vec![table()]).expect("one tensor with a name");
        Self { scores: vec![0.0; layout.len()], layout, window: spec.model.context as usize + 1 }
    }
}

/// Returns the only tensor of the model.
fn table() -> Tensor {
    let size = VOCAB as u32;
    Tensor { name: "bigrams".into(), rows: size, cols: size, merge: MergeClass::Radial }
}

/// Returns the scores of the byte after `token`, and the log of the sum of their exponentials.
fn row(scores: &[f32], token: u32) -> (&[f32], f32) {
    let row = &scores[token as usize * VOCAB..][..VOCAB];
    let max = row.iter().copied().fold(f32::MIN, f32::max);
    (row, max + row.iter().map(|score| (score - max).exp()).sum::<f32>().ln())
}

impl Trainer for Bigrams {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.scores
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.scores
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let pairs = || tokens.chunks(self.window).flat_map(|window| window.windows(2));
        let count = pairs().count().max(1) as f32;
        let mut grad = vec![0.0_f32; self.scores.len()];
        let mut loss = 0.0_f32;
        for pair in pairs() {
            let (start, target) = (pair[0] as usize * VOCAB, pair[1] as usize);
            let (scores, norm) = row(&self.scores, pair[0]);
            loss += norm - scores[target];
            for (grad, score) in grad[start..start + VOCAB].iter_mut().zip(scores) {
                *grad += (score - norm).exp();
            }
            grad[start + target] -= 1.0;
        }
        let (loss, norm) = (loss / count, grad.iter().map(|g| g * g).sum::<f32>().sqrt() / count);
        if !loss.is_finite() || !norm.is_finite() {
            return Err(EngineError::NotFinite { loss, grad_norm: norm });
        }
        for (score, grad) in self.scores.iter_mut().zip(&grad) {
            *score -= lr * grad / count;
        }
        Ok(StepStats { loss, grad_norm: norm, tokens: count as u64 })
    }

    /// With this method, the run's owner can let one of these learners measure the loss: `serve … --evaluator
    /// bigrams`.
    fn held_out_loss(&mut self, params: &[f32], windows: &[u32]) -> Result<Option<f32>, EngineError> {
        let pairs = || windows.chunks(self.window).flat_map(|window| window.windows(2));
        let loss = |pair: &[u32]| {
            let (scores, norm) = row(params, pair[0]);
            norm - scores[pair[1] as usize]
        };
        Ok(Some(pairs().map(loss).sum::<f32>() / pairs().count().max(1) as f32))
    }

    fn describe(&self) -> String {
        "a table of bigrams, 1 thread".into()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.iter().map(|word| &**word).collect::<Vec<_>>()[..] {
        ["--write", file] => write(Path::new(file)),
        [address] => take_part(address),
        _ => {
            let (first, last) = train_alone()?;
            println!("loss {first:.3} → {last:.3} nats per byte");
            Ok(())
        }
    }
}

/// Takes part in the run at `address` until the run ends or Ctrl+C is pressed.
fn take_part(address: &str) -> Result<(), Box<dyn Error>> {
    // A real program should keep its key across starts. This one is a newcomer each time.
    let config = RunConfig { name: "bigrams".into(), ..RunConfig::new(address.parse()?, Key::random()?) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let control = Control::new();
    let stopper = control.clone();
    runtime.spawn(async move {
        // Without this, Ctrl+C would end the program at once, and the syncer would wait for it for a while.
        if tokio::signal::ctrl_c().await.is_ok() {
            stopper.stop();
        }
    });
    let build = async |spec: &RunSpec, _basis| HostEngine::new(spec, Bigrams::new(spec));
    let report = runtime.block_on(run(config, &control, build, |event| {
        if let Event::Progress(now) = event {
            println!("{} steps, loss {:.3}", now.steps, now.loss.unwrap_or(f32::NAN));
        }
    }))?;
    println!("{} updates merged", report.updates_merged);
    Ok(())
}

/// Writes the initial parameters for a run of this model: its tensors by name, in 32 bits.
fn write(file: &Path) -> Result<(), Box<dyn Error>> {
    let bytes = [0.0_f32; VOCAB * VOCAB].map(f32::to_le_bytes).concat();
    let table = TensorView::new(Dtype::F32, vec![VOCAB, VOCAB], &bytes)?;
    // The scores are merged radially, like all tensors without a merge rule in the file. Metadata with the key
    // "merge.bigrams" and the value "mean" would request the mean.
    Ok(safetensors::serialize_to_file([("bigrams", table)], None, file)?)
}

/// Trains for 300 steps and encodes the progress on each fragment. Returns the first and the last loss.
fn train_alone() -> Result<(f32, f32), Box<dyn Error>> {
    let spec = spec();
    let tokens = bytes_to_tokens(TEXT.as_bytes());
    let mut engine = HostEngine::new(&spec, Bigrams::new(&spec))?;
    for fragment in engine.fragments().ids() {
        // These are the run's initial parameters, which a syncer would normally send.
        let start = vec![0.0; engine.fragments().len(fragment)];
        engine.load(fragment, &start, false)?;
    }
    let batch = spec.inner.batch as usize * (spec.model.context as usize + 1);
    let mut losses = Vec::new();
    for tokens in tokens.chunks_exact(batch).cycle().take(300) {
        losses.push(block_on(engine.step(tokens, 20.0))?.loss);
    }
    for fragment in engine.fragments().ids() {
        engine.encode(Serial(1), fragment)?;
    }
    let mut bytes = 0;
    while let Some(encoded) = engine.encoded()? {
        bytes += encoded.body.len();
    }
    let bits = 8.0 * bytes as f64 / engine.layout().len() as f64;
    println!("an update of the whole table is {bytes} bytes, {bits:.2} bits a parameter");
    let (first, last) = (losses.first().copied(), losses.last().copied());
    Ok(first.zip(last).ok_or("the text is too short")?)
}

/// Returns the run's description, which a syncer would normally send.
fn spec() -> RunSpec {
    let architecture = Architecture { name: "bigrams".into(), settings: Vec::new() };
    let model =
        Model { context: 64, vocab: VOCAB as u32, tensors: vec![table()], architecture, experts: None };
    let apply = ApplyPolicy::Keep { residue: true };
    let exchange = ExchangeSpec { fragments: 4, sync_every: 10, block: 256, code: Code::Int4, apply };
    let data = DataSpec {
        token_bytes: 2,
        masks: false,
        shards: vec![ShardSpec { tokens: 100_000, sha256: [0; 32] }],
    };
    RunSpec { model, inner: Preset::Tiny.inner(), exchange, data, seed: 1, frozen: None }
}

#[test]
fn a_table_of_bigrams_learns() {
    let (first, last) = train_alone().expect("a table on one thread");
    assert!((first - (VOCAB as f32).ln()).abs() < 1e-3 && last < 3.0, "{first} → {last}");
}
