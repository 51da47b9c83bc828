//! An engine whose moments are saved now and then, so that a page that is loaded anew goes on with them.

use std::sync::Arc;

use archipelago::diloco::{Fragments, Layout};
use archipelago::engine::{AnyEngine, Encoded, Engine, EngineError, Moments, StepStats};
use archipelago::wire::{FragmentId, Round};

/// Takes moments to where they are kept; returns at once.
pub type Save = Box<dyn Fn(&Moments)>;

/// [`AnyEngine`], and where its moments go.
pub struct Saving {
    engine: AnyEngine,
    save: Save,
    /// Steps between two savings; 0 for never.
    every: u32,
    since: u32,
}

impl Saving {
    /// Saves after each `every` steps; never if that is 0.
    pub fn new(engine: AnyEngine, every: u32, save: Save) -> Self {
        Self { engine, save, every, since: 0 }
    }
}

impl Engine for Saving {
    fn layout(&self) -> &Layout {
        self.engine.layout()
    }

    fn fragments(&self) -> &Arc<Fragments> {
        self.engine.fragments()
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

    fn encode(&mut self, round: Round, fragment: FragmentId) -> Result<(), EngineError> {
        self.engine.encode(round, fragment)
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        self.engine.encoded()
    }

    fn apply(&mut self, fragment: FragmentId, body: &[u8], included: bool) -> Result<(), EngineError> {
        self.engine.apply(fragment, body, included)
    }

    fn load(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        keep: bool,
        included: bool,
    ) -> Result<(), EngineError> {
        self.engine.load(fragment, values, keep, included)
    }

    async fn settle(&mut self) -> Result<(), EngineError> {
        self.engine.settle().await
    }

    fn is_busy(&self) -> bool {
        self.engine.is_busy()
    }

    fn salvage(&mut self) -> Option<Moments> {
        self.engine.salvage()
    }
}
