//! Gathers the frozen weights of a run, from the shelf or part by part from the syncer. Without them the learner has no
//! engine, but it still obeys its owner, reports and reconnects.

use std::sync::Arc;

use archipelago_core::driver::Input;
use archipelago_core::model::{FrozenWeights, ModelError, ModelSpec};
use archipelago_core::wire::{RunSpec, Welcome};
use archipelago_runtime::engine::{Engine, EngineError};

use super::event::Event;
use super::frozen::{Gathering, Weights};
use super::session::Session;
use super::{Basis, RunError};

impl<E, B, O> Session<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Basis) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Returns the frozen weights of the run of `spec`, if they are present.
    pub(super) fn frozen_weights(&self, spec: &RunSpec) -> Option<Arc<FrozenWeights>> {
        let frozen = spec.frozen.as_ref()?;
        let held = self.weights.as_ref().filter(|held| held.frozen == *frozen);
        held.map(|held| Arc::clone(&held.weights))
    }

    /// Returns true if everything is present that an engine for the run of `welcome` builds on. If not, gathering
    /// begins.
    ///
    /// # Errors
    /// - [`RunError::Frozen`]: the weights cannot be gathered here.
    /// - [`RunError::Build`]: this learner cannot use them.
    pub(super) fn has_basis(&mut self, welcome: &Welcome) -> Result<bool, RunError> {
        let Some(frozen) = welcome.spec.frozen.as_ref() else { return Ok(true) };
        if !self.config.takes_adapters {
            let why = "the run trains adapters on frozen weights (LoRA), which this learner does not support: take \
                 part with `native-learner join`, or train all weights in a run without --lora-rank";
            return Err(RunError::Build(EngineError::Unfit(why.to_owned())));
        }
        if self.frozen_weights(&welcome.spec).is_some() {
            return Ok(true);
        }
        match self.gathering.as_mut().filter(|gathering| gathering.frozen == *frozen) {
            Some(gathering) => {
                // The source of the parts is back.
                *gathering.welcome = welcome.clone();
                gathering.after_us = 0;
            }
            None => {
                self.weights = None;
                self.downloads.clear_frozen();
                let gathering =
                    Gathering::new(welcome, frozen).map_err(|reason| RunError::Frozen { reason })?;
                self.gathering = Some(gathering);
                if self.config.shelf.take_if(|shelf| !shelf.has_room(frozen.bytes)).is_some() {
                    let reason = format!(
                        "the run's {:.0} MB of frozen weights exceed the size of the cache, so they are fetched at \
                         each start",
                        frozen.bytes as f64 / 1e6
                    );
                    (self.observe)(&Event::Trouble { reason });
                }
            }
        }
        Ok(false)
    }

    /// Takes the next part from the shelf, or requests it; the last part leads to an engine. Returns true if there was
    /// anything to do.
    ///
    /// # Errors
    /// - [`RunError::Frozen`]: the gathered bytes do not fit a model.
    /// - [`RunError::Build`]: no engine can be built on them here.
    pub(super) async fn gather(&mut self) -> Result<bool, RunError> {
        let may = self.is_here() && !self.control.is_paused();
        let now_us = self.clock.now_us();
        let is_due = |gathering: &&mut Gathering| !gathering.is_fetching && gathering.after_us <= now_us;
        let Some(gathering) = self.gathering.as_mut().filter(is_due).filter(|_| may) else {
            return Ok(false);
        };
        let Some((name, bytes)) = gathering.wanted() else { return self.gathered().await.map(|()| true) };
        if let Some(shelf) = &self.config.shelf {
            let reason = match shelf.take(&name).await {
                Ok(Some(part)) if gathering.add(&part) => return Ok(true),
                Ok(Some(_)) => Some("the cached frozen weights are damaged: they are fetched again".into()),
                Ok(None) => None,
                Err(error) => Some(format!("the cached frozen weights are fetched again: {error}")),
            };
            reason.into_iter().for_each(|reason| (self.observe)(&Event::Trouble { reason }));
        }
        gathering.is_fetching = true;
        self.downloads.frozen(gathering.welcome.run, gathering.next, bytes);
        Ok(false)
    }

    /// Handles the result of the requested part.
    pub(super) async fn came_frozen(&mut self, came: Result<Vec<u8>, String>) {
        let now_us = self.clock.now_us();
        let Some(gathering) = &mut self.gathering else { return };
        gathering.is_fetching = false;
        let wanted = gathering.wanted();
        let reason = match came {
            Ok(part) if gathering.add(&part) => {
                let (Some(shelf), Some((name, _))) = (&self.config.shelf, wanted) else { return };
                let Err(error) = shelf.keep(&name, &part).await else { return };
                // The next part would fail too.
                self.config.shelf = None;
                format!("the frozen weights are not cached, and are fetched at the next start: {error}")
            }
            Ok(_) => {
                gathering.postpone(now_us);
                let part = gathering.next;
                format!("part {part} of the frozen weights has a wrong checksum: it is fetched again")
            }
            Err(reason) => {
                gathering.postpone(now_us);
                self.member.handle(now_us, Input::Unfed { reason: reason.clone() });
                format!("the frozen weights could not be fetched: {reason}")
            }
        };
        (self.observe)(&Event::Trouble { reason });
    }

    /// Builds the engine once all parts are present.
    async fn gathered(&mut self) -> Result<(), RunError> {
        let Some(Gathering { welcome, frozen, bytes, .. }) = self.gathering.take() else { return Ok(()) };
        let no_model = |error: ModelError| RunError::Frozen { reason: error.to_string() };
        let model = ModelSpec::of(&welcome.spec.model).map_err(no_model)?;
        let weights = FrozenWeights::from_bytes(&model, frozen.form, bytes);
        let weights = Arc::new(weights.map_err(|error| RunError::Frozen { reason: error.to_string() })?);
        self.weights = Some(Weights { frozen, weights });
        self.raise(&welcome).await
    }
}
