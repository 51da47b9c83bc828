//! Adapter that makes an engine of a [`Trainer`] in host memory and a [`Replica`].

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::{Encoded, Engine, EngineError, Exchange, OptimiserState, StepStats, Trainer};
use crate::diloco::{Codec, Fragments, Layout, Replica};
use crate::token;
use crate::wire::{FragmentId, RunSpec, Serial};

/// Adapter that makes any [`Trainer`] an [`Engine`]. Each call completes its work before it returns.
pub struct HostEngine<T> {
    trainer: T,
    fragments: Arc<Fragments>,
    replica: Replica,
    encoded: VecDeque<Encoded>,
}

impl<T: Trainer> HostEngine<T> {
    /// Creates an engine that exchanges the parameters of `trainer` in fragments, with the settings in `spec`.
    ///
    /// # Errors
    /// [`EngineError::Codec`] and [`EngineError::NoFragments`].
    pub fn new(spec: &RunSpec, trainer: T) -> Result<Self, EngineError> {
        let count = NonZeroU16::new(spec.exchange.fragments).ok_or(EngineError::NoFragments)?;
        let codec = Codec::new(&spec.exchange)?;
        let fragments = Arc::new(Fragments::plan(trainer.layout(), count));
        let replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
        Ok(Self { trainer, fragments, replica, encoded: VecDeque::new() })
    }

    /// Checks that the trainer supports masked tokens if `tokens` has any.
    ///
    /// # Errors
    /// [`EngineError::Masked`].
    fn check_mask(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let is_known = self.trainer.supports_masks() || tokens.iter().all(|&token| token::is_target(token));
        if is_known { Ok(()) } else { Err(EngineError::Masked) }
    }

    /// Returns the parameters, `[len]`.
    #[cfg(feature = "cpu-portable")]
    pub(super) fn params(&self) -> &[f32] {
        self.trainer.params()
    }

    /// Returns the trainer.
    #[cfg(feature = "cpu-portable")]
    pub(super) fn trainer_mut(&mut self) -> &mut T {
        &mut self.trainer
    }
}

impl<T: Trainer> Exchange for HostEngine<T> {
    fn layout(&self) -> &Layout {
        self.trainer.layout()
    }

    fn fragments(&self) -> &Arc<Fragments> {
        &self.fragments
    }

    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        let body = self.replica.encode(fragment, self.trainer.params())?;
        let digest = self.replica.digest(fragment);
        self.encoded.push_back(Encoded { serial, fragment, body, digest });
        Ok(())
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        Ok(self.encoded.pop_front())
    }

    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError> {
        Ok(self.replica.include(fragment, self.trainer.params_mut())?)
    }

    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError> {
        Ok(self.replica.apply(fragment, body, self.trainer.params_mut())?)
    }

    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        Ok(self.replica.load(fragment, values, keep, self.trainer.params_mut())?)
    }
}

impl<T: Trainer> Engine for HostEngine<T> {
    fn exchange(&self) -> &dyn Exchange {
        self
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self
    }

    fn describe(&self) -> String {
        self.trainer.describe()
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        self.check_mask(tokens)?;
        self.trainer.step(tokens, lr)
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        self.check_mask(tokens)?;
        self.trainer.rehearse(tokens)
    }

    async fn held_out_loss(&mut self, windows: &[u32]) -> Result<Option<f32>, EngineError> {
        self.check_mask(windows)?;
        self.trainer.held_out_loss(self.replica.hat(), windows)
    }

    fn saved_moments(&mut self) -> Option<OptimiserState> {
        self.trainer.moments()
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        self.trainer.take_expert_counts()
    }
}

#[cfg(all(test, feature = "platform"))]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::diloco::{MergeClass, Tensor};
    use crate::engine::Rehearsal;
    use crate::model::Preset;

    /// Trainer that reports the number of tokens in each step.
    struct Counter {
        layout: Layout,
        params: Vec<f32>,
        supports_masks: bool,
    }

    impl Trainer for Counter {
        fn layout(&self) -> &Layout {
            &self.layout
        }
        fn params(&self) -> &[f32] {
            &self.params
        }
        fn params_mut(&mut self) -> &mut [f32] {
            &mut self.params
        }
        fn step(&mut self, tokens: &[u32], _: f32) -> Result<StepStats, EngineError> {
            Ok(StepStats { loss: 0.0, grad_norm: 0.0, tokens: tokens.len() as u64 })
        }
        fn supports_masks(&self) -> bool {
            self.supports_masks
        }
        fn describe(&self) -> String {
            "a counter".into()
        }
    }

    #[test]
    fn masked_tokens_are_refused_without_support() {
        let step = |supports_masks: bool, tokens: &[u32]| {
            let tensor = Tensor { name: "all".into(), rows: 8, cols: 8, merge: MergeClass::Mean };
            let layout = Layout::new(vec![tensor]).unwrap();
            let trainer = Counter { params: vec![0.0; 64], layout, supports_masks };
            let mut engine = HostEngine::new(&Rehearsal::new(Preset::Tiny).spec, trainer).unwrap();
            block_on(engine.rehearse(tokens))
                .and(block_on(engine.step(tokens, 0.1)).map(|stats| stats.tokens))
        };
        assert!(matches!(step(false, &[1, 2, 3]), Ok(3)));
        assert!(matches!(step(true, &[1, 2 | token::MASKED, 3]), Ok(3)));
        assert!(matches!(step(false, &[1, 2 | token::MASKED, 3]), Err(EngineError::Masked)));
    }
}
