//! The CPU engine.

use std::num::NonZeroUsize;

use super::{BATCH_MAX, EngineError, StepStats, Trainer};
use crate::diloco::Layout;
use crate::model::{
    AdamW, InnerSpec, ModelSpec, Sampler, init, layout, reference_logits, reference_loss_and_grad,
};

/// Trains a model on the processor.
pub struct CpuTrainer {
    model: ModelSpec,
    inner: InnerSpec,
    layout: Layout,
    params: Vec<f32>,
    grad: Vec<f32>,
    adamw: AdamW,
    threads: NonZeroUsize,
}

impl CpuTrainer {
    /// A trainer whose parameters are [`init`] with seed 0 until they are overwritten.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `model` is no model.
    /// - [`EngineError::Batch`], [`EngineError::Inner`]: `inner` is out of range.
    /// - [`EngineError::Thread`]: the system gives no more threads.
    pub fn new(model: &ModelSpec, inner: &InnerSpec, threads: NonZeroUsize) -> Result<Self, EngineError> {
        let layout = layout(model)?;
        if inner.batch == 0 || inner.batch > BATCH_MAX {
            return Err(EngineError::Batch { batch: inner.batch });
        }
        let (params, len) = (init(model, 0)?, layout.len());
        let adamw = AdamW::new(len);
        Ok(Self { model: *model, inner: *inner, layout, params, grad: vec![0.0; len], adamw, threads })
    }
}

impl Trainer for CpuTrainer {
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
        let loss = reference_loss_and_grad(&self.model, &self.params, tokens, &mut self.grad)? as f32;
        let grad_norm = self.adamw.step(&self.layout, &self.inner, lr, &mut self.params, &self.grad);
        let windows = tokens.len() as u64 / u64::from(self.model.context + 1);
        Ok(StepStats { loss, grad_norm, tokens: windows * u64::from(self.model.context) })
    }

    fn describe(&self) -> String {
        format!("cpu {} threads", self.threads)
    }
}

/// Runs a model forwards: held-out loss, logits, text.
pub struct CpuModel {
    spec: ModelSpec,
}

impl CpuModel {
    /// A model of this shape; parameters are given to each call.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `spec` is no model.
    /// - [`EngineError::Thread`]: the system gives no more threads.
    pub fn new(spec: &ModelSpec, _threads: NonZeroUsize) -> Result<Self, EngineError> {
        layout(spec)?;
        Ok(Self { spec: *spec })
    }

    /// Mean loss of `tokens`, `[n, context + 1]`, in nats per token.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `params` or `tokens` does not fit the model.
    pub fn loss(&mut self, params: &[f32], tokens: &[u32]) -> Result<f32, EngineError> {
        Ok(reference_loss_and_grad(&self.spec, params, tokens, &mut vec![0.0; params.len()])? as f32)
    }

    /// Logits `[t, V]` after each of the `t` tokens of one sequence.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `params` or `tokens` does not fit the model.
    pub fn logits(&mut self, params: &[f32], tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        Ok(reference_logits(&self.spec, params, tokens)?)
    }

    /// Continues `prompt` by `count` tokens; temperature 0 takes the likeliest.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `params` or `prompt` does not fit the model.
    pub fn sample(
        &mut self,
        params: &[f32],
        prompt: &[u32],
        count: usize,
        temperature: f32,
        seed: u64,
    ) -> Result<Vec<u32>, EngineError> {
        let (vocab, context) = (self.spec.vocab as usize, self.spec.context as usize);
        let mut sampler = Sampler::new(temperature, seed);
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let window = &tokens[tokens.len().saturating_sub(context)..];
            let logits = self.logits(params, window)?;
            tokens.push(sampler.choose(&logits[logits.len() - vocab..]));
        }
        Ok(tokens.split_off(prompt.len()))
    }
}
