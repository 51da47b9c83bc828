//! Text of a simulated run: shards for training, and held-out tokens for loss measurements.

use std::sync::Arc;

use archipelago_core::data::{self, Feed, SHARD_TOKENS_MAX, ShardForm, SplitError};
use archipelago_core::diloco::{LeaseError, LeasePool};
use archipelago_core::model::ModelSpec;
use archipelago_core::token;
use archipelago_core::wire::{DataSpec, LearnerId, Millis, RunSpec};
use archipelago_runtime::engine::cpu::CpuModel;
use archipelago_runtime::engine::{EngineError, Trainer};

/// Fraction of a text that is held out. Our own constant.
const HELD_OUT_RATIO: f64 = 0.1;
/// Maximum number of held-out windows in a measurement. Our own constant.
const HELD_OUT_WINDOWS_MAX: usize = 1_280;
/// Number of windows per forward pass of a measurement.
const HELD_OUT_BATCH: usize = 32;
/// Number of batches that a [`WindowReader`] leases at a time.
const LEASE_BATCHES: u32 = 16;
/// Learner to which a [`WindowReader`] leases all windows.
const SINGLE: LearnerId = LearnerId(1);

/// Reason why a text cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The text cannot be split into training and held-out tokens.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The held-out or test text is shorter than one window.
    #[error("{tokens} held-out tokens, one window takes {needed}: give a longer text")]
    Short {
        /// Number of tokens in the text.
        tokens: usize,
        /// Number of tokens in a window, last target included.
        needed: usize,
    },
    /// The model or its parameters are invalid.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Text divided into training and held-out tokens. Masked tokens are marked as in [`archipelago_core::token`].
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Shards of the training tokens, as a run's spec describes them.
    pub data: DataSpec,
    /// Content of each shard, in order.
    pub shards: Vec<Arc<[u8]>>,
    /// Tokens that are never trained on. They serve to choose settings.
    pub held_out: Vec<u32>,
    /// Tokens that are neither trained on nor used to choose settings. They serve to report final losses. Empty unless
    /// created by [`Self::of_parts`].
    pub test: Vec<u32>,
}

impl Corpus {
    /// Divides a text; each byte is a token, and the last tenth is held out.
    ///
    /// # Errors
    /// [`CorpusError::Split`]: the text is empty, or too short for a held-out part.
    pub fn new(text: &[u8]) -> Result<Self, CorpusError> {
        Self::of_tokens(&data::bytes_to_tokens(text))
    }

    /// Creates a corpus from three separate texts, each byte a token.
    ///
    /// # Errors
    /// [`CorpusError::Split`]: `train` is empty.
    pub fn of_parts(train: &[u8], held_out: &[u8], test: &[u8]) -> Result<Self, CorpusError> {
        let corpus = Self::split(&data::bytes_to_tokens(train), 0.0)?;
        let [held_out, test] = [held_out, test].map(data::bytes_to_tokens);
        Ok(Self { held_out, test, ..corpus })
    }

    /// Divides tokens below 65,536; some may be masked. The last tenth is held out.
    ///
    /// # Errors
    /// [`CorpusError::Split`]: there are no tokens, or too few for a held-out part.
    ///
    /// # Panics
    /// If a token is 65,536 or above.
    pub fn of_tokens(tokens: &[u32]) -> Result<Self, CorpusError> {
        Self::split(tokens, HELD_OUT_RATIO)
    }

    fn split(tokens: &[u32], held_out_ratio: f64) -> Result<Self, CorpusError> {
        let form = ShardForm { token_bytes: 2, masks: tokens.iter().any(|&token| !token::is_target(token)) };
        let split = data::split(tokens, held_out_ratio, SHARD_TOKENS_MAX)?;
        let shards = split.shards.iter().map(|shard| data::encode_shard(shard, form).expect("they fit"));
        let shards: Vec<Vec<u8>> = shards.collect();
        let specs = shards.iter().map(|shard| data::shard_spec(shard, form).expect("encoded above"));
        Ok(Self {
            data: DataSpec { token_bytes: 2, masks: form.masks, shards: specs.collect() },
            held_out: split.held_out.to_vec(),
            test: Vec::new(),
            shards: shards.into_iter().map(Arc::from).collect(),
        })
    }

    /// Returns the mean loss over the target tokens of evenly spaced held-out windows, in nats per token. The windows
    /// depend only on the text and the context length.
    ///
    /// # Errors
    /// - [`CorpusError::Short`]: the held-out part is shorter than one window.
    /// - [`CorpusError::Engine`]: `params`, `[len]`, do not match `model`, or `model` is invalid.
    pub fn held_out_loss(&self, model: &ModelSpec, params: &[f32]) -> Result<f32, CorpusError> {
        loss(model, params, &self.held_out)
    }

    /// Returns the mean loss for [`Self::test`], measured as in [`Self::held_out_loss`].
    ///
    /// # Errors
    /// Those of [`Self::held_out_loss`].
    pub fn test_loss(&self, model: &ModelSpec, params: &[f32]) -> Result<f32, CorpusError> {
        loss(model, params, &self.test)
    }

    /// Returns the mean loss for `text`, measured as in [`Self::held_out_loss`]. `trainer` measures it if it can, and
    /// otherwise the CPU does.
    ///
    /// # Errors
    /// Those of [`Self::held_out_loss`].
    pub fn loss_with(
        trainer: &mut dyn Trainer,
        model: &ModelSpec,
        params: &[f32],
        text: &[u32],
    ) -> Result<f32, CorpusError> {
        match trainer.held_out_loss(params, &windows(model, text)?.concat())? {
            Some(found) => Ok(found),
            None => loss(model, params, text),
        }
    }
}

fn loss(model: &ModelSpec, params: &[f32], text: &[u32]) -> Result<f32, CorpusError> {
    let mut engine = CpuModel::fixed(model)?;
    let windows = windows(model, text)?;
    let (mut sum, mut target_count) = (0.0, 0.0);
    for batch in windows.chunks(HELD_OUT_BATCH) {
        let tokens = batch.concat();
        let count = token::target_count(&tokens, model.context as usize) as f64;
        sum += f64::from(engine.loss(params, &tokens)?) * count;
        target_count += count;
    }
    Ok((sum / target_count) as f32)
}

/// Returns evenly spaced windows of `text`, at most [`HELD_OUT_WINDOWS_MAX`].
fn windows<'a>(model: &ModelSpec, text: &'a [u32]) -> Result<Vec<&'a [u32]>, CorpusError> {
    let (tokens, needed) = (text.len(), model.context as usize + 1);
    let starts = tokens.checked_sub(needed).ok_or(CorpusError::Short { tokens, needed })?;
    let count = (starts / model.context as usize).clamp(1, HELD_OUT_WINDOWS_MAX);
    Ok((0..count).map(|i| &text[i * starts / count..][..needed]).collect())
}

/// Reader of a run's windows in the order in which its syncer leases them to a single learner.
#[derive(Debug)]
pub struct WindowReader {
    feed: Feed,
    pool: LeasePool,
}

impl WindowReader {
    /// Creates a reader at the beginning of the run's data.
    ///
    /// # Errors
    /// Those of [`LeasePool::new`].
    pub fn new(run: &RunSpec) -> Result<Self, LeaseError> {
        let windows = run.data.shards.iter().map(|shard| data::windows(shard.tokens, run.model.context));
        Ok(Self { feed: Feed::new(run), pool: LeasePool::new(windows.collect())? })
    }

    /// Returns the next windows, `[windows, context + 1]`. `corpus` must be the text of the run.
    pub fn next_batch(&mut self, corpus: &Corpus, windows: u32) -> Vec<u32> {
        loop {
            if let Some(tokens) = self.feed.next_batch(windows) {
                return tokens;
            }
            let progress = self.feed.progress();
            for &(lease, done) in &progress {
                self.pool.progress(SINGLE, lease, done, Millis(u64::MAX));
            }
            self.feed.reported(&progress);
            let grant = self.pool.grant(SINGLE, windows.saturating_mul(LEASE_BATCHES), 1, Millis(u64::MAX));
            self.feed.grant(grant).expect("the pool grants what exists");
            if let Some(shard) = self.feed.needs() {
                let bytes = corpus.shards[shard as usize].to_vec();
                self.feed.add_shard(shard, bytes).expect("the corpus's own shard");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::Preset;

    use super::*;

    fn model() -> ModelSpec {
        ModelSpec { context: 64, ..Preset::Tiny.model(data::BYTE_VOCAB) }
    }

    #[test]
    fn parts_stay_apart() {
        let part = |byte: u8, count| vec![byte; count];
        let (train, validation, test) = (part(b'a', 900), part(b'b', 100), part(b'c', 120));
        let corpus = Corpus::of_parts(&train, &validation, &test).unwrap();
        assert_eq!(corpus.data.shards[0].tokens, 900);
        assert_eq!((corpus.held_out, corpus.test), (vec![98; 100], vec![99; 120]));
        assert!(matches!(Corpus::of_parts(b"", &validation, b""), Err(CorpusError::Split(_))));
    }

    #[test]
    fn refuses_what_is_too_short() {
        assert!(matches!(Corpus::new(b""), Err(CorpusError::Split(_))));
        let corpus = Corpus::new(&[b'a'; 300]).unwrap();
        let loss = corpus.held_out_loss(&model(), &[]);
        assert!(matches!(loss, Err(CorpusError::Short { tokens: 30, needed: 65 })), "{loss:?}");
    }

    /// Goal: the windows lie within the held-out tokens and are spread over all of them.
    #[test]
    fn windows_span_what_is_held_out() {
        let text: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let corpus = Corpus::new(&text).unwrap();
        let windows = windows(&model(), &corpus.held_out).unwrap();
        assert_eq!(windows.len(), (10_000 - 65) / 64);
        assert!(windows.iter().all(|window| window.len() == 65));
        assert_eq!(windows[0][0], corpus.held_out[0]);
        assert!(windows.windows(2).all(|pair| pair[0].as_ptr() < pair[1].as_ptr()));
        let end = windows.last().unwrap().as_ptr_range().end;
        assert!(end <= corpus.held_out.as_ptr_range().end);
    }
}
