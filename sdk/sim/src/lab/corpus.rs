//! A text, cut into shards to train on and windows to measure on.

use std::sync::Arc;

use super::LabError;
use archipelago_core::data::{self, SHARD_TOKENS_MAX, ShardForm};
use archipelago_core::model::ModelSpec;
use archipelago_core::token;
use archipelago_core::wire::DataSpec;
use archipelago_runtime::engine::cpu::CpuModel;

/// Share of a corpus that is kept for measuring; constant of ours.
const HELD_OUT_RATIO: f64 = 0.1;
/// Most held-out windows measured; constant of ours.
const HELD_OUT_WINDOWS_MAX: usize = 1_280;
/// Windows measured at a time.
const HELD_OUT_BATCH: usize = 32;

/// A text, cut up: tokens that are given and not learnt are marked as in [`archipelago_core::token`].
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The training tokens.
    pub data: DataSpec,
    /// Bytes of its shards, in order.
    pub shards: Vec<Arc<[u8]>>,
    /// Tokens that are never trained on.
    pub held_out: Vec<u32>,
}

impl Corpus {
    /// From the bytes of a text, each a token; the last tenth is held out.
    ///
    /// # Errors
    /// [`LabError::Split`]: the text is empty, or too short to hold a part of it out.
    pub fn new(text: &[u8]) -> Result<Self, LabError> {
        Self::of_tokens(&data::bytes_to_tokens(text))
    }

    /// From tokens below 65,536, of which some may be given; the last tenth is held out.
    ///
    /// # Errors
    /// [`LabError::Split`]: there are none, or too few to hold a part of them out.
    ///
    /// # Panics
    /// If a token is 65,536 or above.
    pub fn of_tokens(tokens: &[u32]) -> Result<Self, LabError> {
        let form = ShardForm { token_bytes: 2, masks: tokens.iter().any(|&token| !token::is_learnt(token)) };
        let split = data::split(tokens, HELD_OUT_RATIO, SHARD_TOKENS_MAX)?;
        let shards = split.shards.iter().map(|shard| data::encode_shard(shard, form).expect("they fit"));
        let shards: Vec<Vec<u8>> = shards.collect();
        let specs = shards.iter().map(|shard| data::shard_spec(shard, form).expect("encoded above"));
        Ok(Self {
            data: DataSpec { token_bytes: 2, masks: form.masks, shards: specs.collect() },
            held_out: split.held_out.to_vec(),
            shards: shards.into_iter().map(Arc::from).collect(),
        })
    }

    /// Mean loss over what is learnt of a fixed set of held-out windows, evenly spread, in nats per token.
    ///
    /// # Errors
    /// - [`LabError::Short`]: not one window is held out.
    /// - [`LabError::Engine`]: `params`, `[len]`, do not fit `model`, or `model` is none.
    pub fn held_out_loss(&self, model: &ModelSpec, params: &[f32]) -> Result<f32, LabError> {
        let mut engine = CpuModel::fixed(model)?;
        let windows = self.held_out_windows(model)?;
        let (mut sum, mut learnt) = (0.0, 0.0);
        for batch in windows.chunks(HELD_OUT_BATCH) {
            let tokens = batch.concat();
            let count = token::learnt(&tokens, model.context as usize) as f64;
            sum += f64::from(engine.loss(params, &tokens)?) * count;
            learnt += count;
        }
        Ok((sum / learnt) as f32)
    }

    fn held_out_windows(&self, model: &ModelSpec) -> Result<Vec<&[u32]>, LabError> {
        let (tokens, needed) = (self.held_out.len(), model.context as usize + 1);
        let starts = tokens.checked_sub(needed).ok_or(LabError::Short { tokens, needed })?;
        let count = (starts / model.context as usize).clamp(1, HELD_OUT_WINDOWS_MAX);
        let window = |i: usize| &self.held_out[i * starts / count..][..needed];
        Ok((0..count).map(window).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference_model;
    use super::*;

    #[test]
    fn refuses_what_is_too_short() {
        assert!(matches!(Corpus::new(b""), Err(LabError::Split(_))));
        let corpus = Corpus::new(&[b'a'; 300]).unwrap();
        let loss = corpus.held_out_loss(&reference_model(), &[]);
        assert!(matches!(loss, Err(LabError::Short { tokens: 30, needed: 65 })), "{loss:?}");
    }

    /// All that is held out is looked at, and nothing beyond.
    #[test]
    fn windows_span_what_is_held_out() {
        let text: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let corpus = Corpus::new(&text).unwrap();
        let windows = corpus.held_out_windows(&reference_model()).unwrap();
        assert_eq!(windows.len(), (10_000 - 65) / 64);
        assert!(windows.iter().all(|window| window.len() == 65));
        assert_eq!(windows[0][0], corpus.held_out[0]);
        assert!(windows.windows(2).all(|pair| pair[0].as_ptr() < pair[1].as_ptr()));
        let end = windows.last().unwrap().as_ptr_range().end;
        assert!(end <= corpus.held_out.as_ptr_range().end);
    }
}
