//! An engine whose moments are saved regularly, so that training resumes from them after a page reload.

use archipelago_runtime::engine::{AnyEngine, Engine, EngineError, Exchange, OptimiserState, StepStats};

/// Function that passes moments to their storage and returns at once.
pub type Save = Box<dyn Fn(&OptimiserState)>;

/// [`AnyEngine`] with a save function for its moments.
pub struct Saving {
    engine: AnyEngine,
    save: Save,
    /// Steps between two saves; 0 for never.
    every: u32,
    since: u32,
}

impl Saving {
    /// Creates an engine that saves after every `every` steps, or never if that is 0.
    pub fn new(engine: AnyEngine, every: u32, save: Save) -> Self {
        Self { engine, save, every, since: 0 }
    }
}

impl Engine for Saving {
    fn exchange(&self) -> &dyn Exchange {
        self.engine.exchange()
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self.engine.exchange_mut()
    }

    fn describe(&self) -> String {
        self.engine.describe()
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let stats = self.engine.step(tokens, lr).await?;
        self.since += 1;
        if self.since == self.every {
            self.since = 0;
            if let Some(moments) = self.engine.salvage() {
                (self.save)(&moments);
            }
        }
        Ok(stats)
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        self.engine.rehearse(tokens).await
    }

    async fn settle(&mut self) -> Result<(), EngineError> {
        self.engine.settle().await
    }

    fn is_busy(&self) -> bool {
        self.engine.is_busy()
    }

    fn salvage(&mut self) -> Option<OptimiserState> {
        self.engine.salvage()
    }

    fn take_seen(&mut self) -> Vec<u64> {
        self.engine.take_seen()
    }
}
