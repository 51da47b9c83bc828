//! Actions of the member on this machine, and the events shown for them.

use archipelago_core::driver::{Input, Output};
use archipelago_core::wire::{Challenge, Fate, FragmentId, Hello, Message, RunSpec, Version, Welcome};
use archipelago_runtime::engine::{Encoded, Engine, EngineError};

use super::event::Event;
use super::meter::Spent;
use super::session::{Part, Session};
use super::{Basis, RunError};

impl<E, B, O> Session<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Basis) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Passes an input to the member and carries out its actions.
    pub(super) async fn handle(&mut self, input: Input) -> Result<(), RunError> {
        if let Input::Message(message) = &input {
            self.show(message);
        }
        self.tell(input);
        self.drain().await
    }

    fn tell(&mut self, input: Input) {
        self.member.handle(self.clock.now_us(), input);
    }

    /// Carries out the member's actions in order, and passes finished bodies to it.
    pub(super) async fn drain(&mut self) -> Result<(), RunError> {
        loop {
            if let Some(output) = self.member.poll() {
                self.act(output).await?;
                continue;
            }
            let Some(part) = &mut self.part else { return Ok(()) };
            match part.engine.encoded() {
                Ok(Some(Encoded { serial, fragment, body, digest })) => {
                    self.tell(Input::Encoded { serial, fragment, body, digest })
                }
                Ok(None) => return Ok(()),
                // The member may react to the failure.
                Err(error) => self.fail(error)?,
            }
        }
    }

    async fn act(&mut self, output: Output) -> Result<(), RunError> {
        match output {
            Output::Connect => {
                (self.observe)(&Event::Connecting { address: self.config.address.to_string() });
                self.link.connect();
            }
            Output::Greet { hello, challenge } => return self.greet(*hello, &challenge).await,
            Output::Send(message) => {
                self.send(&message);
            }
            Output::Close(bye) => self.link.close(bye.code, &bye.reason),
            Output::Disconnect { farewell, reason, retry_ms } => {
                if let Some(bye) = farewell {
                    self.link.close(bye.code, &bye.reason);
                }
                self.link.drop_connection();
                self.downloads.clear_fragments();
                (self.observe)(&Event::Disconnected { reason, retry_ms });
            }
            Output::Build { welcome, anew } => return self.build(&welcome, anew).await,
            Output::Afresh { reason } => {
                (self.observe)(&Event::Afresh { reason });
                self.part = None;
                self.meter.forget_steps();
                self.downloads.clear_shard();
            }
            Output::Fetch { fragment, version } => self.fetch(fragment, version),
            Output::FetchShard { shard, body_bytes } => {
                if let Some((run, _)) = self.member.run() {
                    self.downloads.shard(run, shard, body_bytes);
                }
            }
            Output::FetchHeldOut { body_bytes_max } => {
                if let Some((run, _)) = self.member.run() {
                    self.downloads.held_out(run, body_bytes_max);
                }
            }
            Output::Measure { number, windows } => return self.measure(number, &windows).await,
            Output::Trouble { reason } => (self.observe)(&Event::Trouble { reason }),
            Output::End(end) => self.end = Some(end),
            Output::Encode { .. } | Output::Include { .. } | Output::Apply { .. } | Output::Load { .. } => {
                return self.work(output);
            }
        }
        Ok(())
    }

    /// Introduces this learner in answer to the syncer's challenge.
    async fn greet(&mut self, hello: Hello, challenge: &Challenge) -> Result<(), RunError> {
        match self.config.signer.sign(&challenge.text()).await {
            Ok(signature) => {
                self.downloads.set_pass(&challenge.nonce);
                self.send(&Message::Hello(Hello { signature, ..hello }));
            }
            Err(error) => self.tell(Input::Closed { code: None, reason: error.to_string() }),
        }
        Ok(())
    }

    fn send(&mut self, message: &Message) {
        if let Err(error) = self.link.send(message) {
            self.tell(Input::Closed { code: None, reason: error.to_string() });
        }
    }

    /// Carries out an action on the engine.
    fn work(&mut self, output: Output) -> Result<(), RunError> {
        let Some(Part { engine, .. }) = &mut self.part else { return Ok(()) };
        let worked = match output {
            Output::Encode { serial, fragment } => engine.encode(serial, fragment),
            Output::Include { fragment } => engine.include(fragment),
            Output::Apply { fragment, body } => engine.apply(fragment, &body),
            Output::Load { fragment, values, keep } => engine.load(fragment, &values, keep),
            _ => Ok(()),
        };
        worked.or_else(|error| self.fail(error))
    }

    /// Measures the held-out loss for the syncer, if the engine can.
    async fn measure(&mut self, number: u32, windows: &[u32]) -> Result<(), RunError> {
        self.book(Spent::Exchange);
        let Some(part) = &mut self.part else { return Ok(()) };
        let measured = part.engine.held_out_loss(windows).await;
        let us = self.book(Spent::Other);
        self.tell(Input::Worked { us });
        let loss = match measured {
            Ok(loss) => loss,
            Err(error @ EngineError::Lost { .. }) => return self.fail(error),
            Err(error) => {
                let reason = format!("the held-out loss cannot be measured: {error}");
                (self.observe)(&Event::Trouble { reason });
                None
            }
        };
        self.tell(Input::Measured { number, loss });
        Ok(())
    }

    fn fetch(&mut self, fragment: FragmentId, version: Version) {
        if let (Some(part), Some((run, _))) = (&self.part, self.member.run()) {
            let len = part.engine.fragments().len(fragment);
            self.downloads.fragment(run, fragment, version, len);
        }
    }

    /// Builds the engine of a run once all its frozen weights are present, or keeps the previous engine.
    async fn build(&mut self, welcome: &Welcome, anew: bool) -> Result<(), RunError> {
        if anew {
            // The old engine is dropped first: both together may not fit into memory.
            self.part = None;
            self.downloads.clear_shard();
            (self.observe)(&Event::Preparing { run: welcome.run.to_string() });
        }
        if self.part.is_some() {
            self.built(welcome);
        } else if self.has_basis(welcome)? {
            self.raise(welcome).await?;
        }
        Ok(())
    }

    /// Builds the engine of a run.
    pub(super) async fn raise(&mut self, welcome: &Welcome) -> Result<(), RunError> {
        self.book(Spent::Exchange);
        let opened = self.open(welcome).await;
        self.book(Spent::Other);
        match opened {
            Ok(part) => self.part = Some(part),
            Err(error @ EngineError::Lost { .. }) => return self.fail(error),
            Err(error) => return Err(RunError::Build(error)),
        }
        self.built(welcome);
        Ok(())
    }

    /// Reports that the engine is ready.
    fn built(&mut self, welcome: &Welcome) {
        let Some(part) = &self.part else { return };
        (self.observe)(&Event::Welcomed {
            run: welcome.run.to_string(),
            learner: welcome.learner,
            params: part.engine.layout().len() as u64,
            device: part.engine.describe(),
            batch: part.batch,
            tokens_trained: welcome.tokens_trained.saturating_sub(self.meter.tokens),
            tokens_merged: welcome.tokens_merged.saturating_sub(self.tally.tokens_merged.round() as u64),
        });
        let (fragments, batch) = (part.engine.fragments().clone(), part.batch);
        self.tell(Input::Built { fragments, batch });
    }

    /// Shows a message on its way to the member.
    fn show(&mut self, message: &Message) {
        match message {
            Message::Receipt { fragment, fate, .. } => {
                match fate {
                    Fate::Merged { tokens, .. } => {
                        self.tally.updates_merged += 1;
                        let share = self.part.as_ref().map_or(0.0, |part| part.share(*fragment));
                        self.tally.tokens_merged += *tokens as f64 * share;
                    }
                    Fate::Late(_) => self.tally.updates_late += 1,
                    Fate::Refused(_) => self.tally.updates_refused += 1,
                }
                (self.observe)(&Event::Receipt { fragment: *fragment, fate: *fate });
            }
            Message::Merged(merged) => {
                (self.observe)(&Event::Merged { fragment: merged.fragment, version: merged.version });
            }
            _ => {}
        }
    }

    /// Passes a recoverable error of the engine to the member; [`Self::drain`] follows. Returns other errors.
    pub(super) fn fail(&mut self, error: EngineError) -> Result<(), RunError> {
        let device_lost = matches!(error, EngineError::Lost { .. });
        if !device_lost && !matches!(error, EngineError::NotFinite { .. } | EngineError::Exchange(_)) {
            return Err(error.into());
        }
        if device_lost {
            self.salvaged = self.part.take().and_then(Part::salvage);
        }
        self.tell(Input::Failed { device_lost, reason: error.to_string() });
        self.lost = Some(error).filter(|_| device_lost);
        Ok(())
    }
}
