//! Text generation, token by token.
//!
//! The writer keeps the keys and values of earlier tokens. So a new token costs one row through the matrices and not
//! the whole context again.

use std::sync::Arc;

use super::matmul::Products;
use super::network::{MicrobatchPass, Network};
use super::workspace::Workspace;
use crate::engine::EngineError;
use crate::model::{FrozenWeights, ModelError, ModelSpec, Sampler, check_len, check_vocab, layout};

/// Endless iterator that continues a text, one token at each [`Iterator::next`]; the caller decides when to stop.
/// Before [`Self::begin`] there is no text, and the iterator returns no token.
///
/// The model sees at most `context` tokens. When the context is full, the older half is dropped and the newer half is
/// read again from position 0. So a token sees between half the context and all of it.
///
/// ```
/// use archipelago_runtime::engine::cpu::Writer;
/// use archipelago_core::model::{Preset, init};
///
/// let spec = Preset::Tiny.model(256);
/// let mut writer = Writer::new(&spec, init(&spec, 1)?)?;
/// writer.begin(&b"To be, ".map(u32::from), 0.8, 1)?;
/// let text: Vec<u32> = writer.take(20).collect();
/// assert_eq!(text.len(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer<P> {
    network: Network,
    params: P,
    work: Workspace,
    /// Tokens with saved keys and values, at most T, followed by at most one unread token.
    text: Vec<u32>,
    /// Number of tokens already read.
    read: usize,
    sampler: Sampler,
}

impl<P: AsRef<[f32]>> Writer<P> {
    /// Creates a writer with these parameters, `[len]`, on one thread.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `spec` is invalid, or `params` does not fit it.
    /// - [`EngineError::Frozen`]: `spec` has adapters, see [`Self::on`].
    pub fn new(spec: &ModelSpec, params: P) -> Result<Self, EngineError> {
        Self::with(spec, params, Products::FASTEST, None)
    }

    /// Does the same as [`Self::new`], on the weights `frozen` if `spec` has adapters. Only the adapters are in
    /// `params` then.
    ///
    /// # Errors
    /// Those of [`Self::new`], and [`EngineError::FrozenUnfit`]: the weights belong to another model.
    pub fn on(frozen: Option<Arc<FrozenWeights>>, spec: &ModelSpec, params: P) -> Result<Self, EngineError> {
        Self::with(spec, params, Products::FASTEST, frozen)
    }

    /// Does the same as [`Self::new`], with the same bits on every machine: see [`super::CpuTrainer::fixed`].
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn fixed(spec: &ModelSpec, params: P) -> Result<Self, EngineError> {
        Self::with(spec, params, Products::FIXED, None)
    }

    fn with(
        spec: &ModelSpec,
        params: P,
        products: Products,
        frozen: Option<Arc<FrozenWeights>>,
    ) -> Result<Self, EngineError> {
        layout(spec)?;
        let network = Network::new(spec, products, frozen)?;
        check_len(params.as_ref().len(), &network.slots)?;
        let work = Workspace::for_writing(&network.dims);
        let text = Vec::with_capacity(network.dims.context + 1);
        Ok(Self { network, params, work, text, read: 0, sampler: Sampler::new(0.0, 0) })
    }

    /// Begins a new text after the last `context` tokens of `prompt`. Tokens are drawn from `softmax(logits /
    /// temperature)`. A `temperature` of 0, below 0 or NaN selects the likeliest token each time. The same seed gives
    /// the same text.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `prompt` is empty or holds a token outside the vocabulary; the text stays as it was.
    pub fn begin(&mut self, prompt: &[u32], temperature: f32, seed: u64) -> Result<(), EngineError> {
        let dims = &self.network.dims;
        check_vocab(prompt, dims)?;
        if prompt.is_empty() {
            return Err(ModelError::Sequence { found: 0, context: dims.context }.into());
        }
        self.text.clear();
        self.text.extend_from_slice(&prompt[prompt.len().saturating_sub(dims.context)..]);
        (self.read, self.sampler) = (0, Sampler::new(temperature, seed));
        Ok(())
    }

    /// Reads the unread tokens and leaves the logits of the next token in the workspace.
    fn read_on(&mut self) {
        let context = self.network.dims.context;
        if self.text.len() > context {
            self.text.drain(..self.text.len() - context.div_ceil(2));
            self.read = 0;
        }
        let unread = self.text.len() - self.read;
        let params = self.params.as_ref();
        let pass =
            MicrobatchPass { network: &self.network, params, past: self.read, len: unread, rows: unread };
        pass.forward(self.text[self.read..].iter().copied(), &mut self.work);
        pass.logits(unread - 1, 1, &mut self.work);
        self.read = self.text.len();
    }
}

impl<P: AsRef<[f32]> + AsMut<[f32]>> Writer<P> {
    /// Returns the parameters, `[len]`, to overwrite in part or whole. Clears the text, because its saved keys and
    /// values belong to the old parameters.
    pub fn params_mut(&mut self) -> &mut [f32] {
        self.text.clear();
        self.params.as_mut()
    }
}

impl<P: AsRef<[f32]>> Iterator for Writer<P> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.text.is_empty() {
            return None;
        }
        self.read_on();
        let token = self.sampler.choose(&self.work.logits[..self.network.dims.vocab]);
        self.text.push(token);
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::engine::cpu::CpuModel;
    use crate::model::{Preset, init};

    /// The logits after each token are the same as for the whole text read at once, before and after the older half is
    /// dropped.
    #[test]
    fn what_is_kept_changes_nothing() {
        let mut spec = Preset::Tiny.model(50);
        // More than one block of attention, with groups of heads that share keys.
        (spec.context, spec.heads, spec.kv_heads) = (150, 4, 2);
        let params = init(&spec, 3).expect("a model");
        let mut model = CpuModel::new(&spec, NonZeroUsize::MIN).expect("a model");
        let mut writer = Writer::new(&spec, &params).expect("a model");
        let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 50).collect();
        writer.begin(&prompt, 1.0, 5).expect("a prompt");
        let mut text = prompt;
        for _ in 0..250 {
            let token = writer.next().expect("a text was begun");
            // Of 151 tokens, the newest 75 are read again.
            let forgotten = if text.len() <= 150 { 0 } else { (text.len() - 75) / 76 * 76 };
            let seen = &text[forgotten..];
            let all = model.logits(&params, seen).expect("within the context");
            let expected = &all[(seen.len() - 1) * 50..];
            let apart = expected.iter().zip(&writer.work.logits[..50]).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f32::max) < 1e-4, "after {} tokens", text.len());
            text.push(token);
        }
    }

    #[test]
    fn a_second_text_knows_nothing_of_the_first() {
        let spec = Preset::Tiny.model(256);
        let params = init(&spec, 1).expect("a model");
        let mut writer = Writer::new(&spec, &params).expect("a model");
        let mut write = |prompt: &[u32]| {
            writer.begin(prompt, 0.9, 7).expect("a prompt");
            writer.by_ref().take(100).collect::<Vec<_>>()
        };
        let first = write(&[1, 2, 3]);
        assert_ne!(write(&[9; 200]), first);
        assert_eq!(write(&[1, 2, 3]), first);
    }

    #[test]
    fn other_parameters_write_another_text() {
        let spec = Preset::Tiny.model(256);
        let mut writer = Writer::new(&spec, init(&spec, 1).expect("a model")).expect("a model");
        let write = |writer: &mut Writer<Vec<f32>>| {
            writer.begin(&[1, 2, 3], 0.9, 7).expect("a prompt");
            writer.by_ref().take(50).collect::<Vec<_>>()
        };
        let first = write(&mut writer);
        writer.params_mut().copy_from_slice(&init(&spec, 2).expect("a model"));
        assert_eq!(writer.next(), None, "what was kept is of the parameters before");
        assert_ne!(write(&mut writer), first);
    }

    #[test]
    fn refuses_bad_input_and_goes_on() {
        let spec = Preset::Tiny.model(50);
        let params = init(&spec, 1).expect("a model");
        assert!(Writer::new(&spec, &params[1..]).is_err());
        let mut writer = Writer::new(&spec, &params).expect("a model");
        assert_eq!(writer.next(), None, "nothing was begun");
        writer.begin(&[1], 0.0, 1).expect("a prompt");
        assert!(writer.begin(&[], 0.0, 1).is_err());
        assert!(writer.begin(&[50], 0.0, 1).is_err());
        assert!(writer.next().is_some());
    }
}
