//! What comes in from the network, and what the protocol core wants done.

use crate::data::Feed;
use crate::diloco::learner::{Input, Output};
use crate::engine::{Encoded, Engine, EngineError, Moments};
use crate::wire::{Bye, CloseCode, Fate, Message, RunSpec, Welcome};

use super::RunError;
use super::downloads::Download;
use super::event::Event;
use super::link::{End, LinkEvent, bye};
use super::meter::Spent;
use super::session::{Part, Session, newcomer};

impl<E, B, O> Session<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Option<Moments>) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Tells the core what happened and does what it wants.
    pub(super) async fn handle(&mut self, input: Input) -> Result<(), RunError> {
        self.learner.handle(self.clock.now(), input);
        self.drain().await
    }

    /// Does what the core wants, in its order, and gives it the bodies that are ready.
    pub(super) async fn drain(&mut self) -> Result<(), RunError> {
        loop {
            if let Some(output) = self.learner.poll() {
                self.act(output).await?;
            } else if let Some(Encoded { round, fragment, body }) = self.encoded()? {
                self.learner.handle(self.clock.now(), Input::Encoded { round, fragment, body });
            } else {
                return Ok(());
            }
        }
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, RunError> {
        let Some(part) = &mut self.part else { return Ok(None) };
        part.engine.encoded().or_else(|error| self.fail(error).map(|()| None))
    }

    pub(super) async fn on_link(&mut self, event: LinkEvent) -> Result<(), RunError> {
        match event {
            LinkEvent::Opened => self.handle(Input::Connected).await,
            LinkEvent::Message(message) => {
                self.note(&message);
                self.handle(Input::Message(message)).await
            }
            LinkEvent::Closed { code, reason } => {
                let code = code.and_then(|code| CloseCode::try_from(code).ok()).filter(|_| !self.ending);
                match code {
                    // Its goodbye was lost, but not the reason.
                    Some(code) => self.handle(Input::Message(Message::Bye(Bye::new(code, reason)))).await,
                    None => {
                        self.disconnect(&End { reason: &reason, ..End::default() });
                        self.drain().await
                    }
                }
            }
            LinkEvent::Garbled(error) => {
                let (code, reason) = (error.close_code(), error.to_string());
                // If even this cannot be sent, the close code says it.
                let _sent = self.link.send(&bye(code, &reason));
                self.link.close(code, &reason);
                if code == CloseCode::Version {
                    return Err(RunError::Refused { code, reason });
                }
                self.disconnect(&End { reason: &reason, ..End::default() });
                self.drain().await
            }
        }
    }

    /// Gives up a connection on which nothing comes, and hurries if its owner wants that.
    pub(super) async fn watch_link(&mut self, now_us: u64) -> Result<(), RunError> {
        let ready = self.learner.is_ready();
        let hurries = self.control.take_reconnect();
        // One whose owner paused it has time to find out.
        let mut given_up = self.link.given_up(now_us, ready && !self.paused);
        if hurries && ready && self.learner.can_train() && self.link.is_doubtful(now_us) {
            given_up.get_or_insert_with(|| "nothing was heard for a while".to_owned());
        }
        if let Some(reason) = given_up {
            self.disconnect(&End { reason: &reason, ..End::default() });
            self.drain().await?;
        }
        if hurries {
            self.link.hurry(now_us);
        }
        Ok(())
    }

    pub(super) async fn on_download(&mut self, download: Download) -> Result<(), RunError> {
        match download {
            Download::Fragment { fragment, result: Ok((version, values)) } => {
                self.handle(Input::Fetched { fragment, version, values }).await
            }
            Download::Fragment { fragment, result: Err(reason) } => {
                self.trouble(format!("fragment {fragment} did not come: {reason}"));
                self.handle(Input::FetchFailed { fragment }).await
            }
            Download::Shard { shard, result } => {
                let Some(part) = &mut self.part else { return Ok(()) };
                let body_bytes = part.shard_bytes(shard);
                let checked = result.map(|bytes| part.feed.add_shard(shard, bytes));
                match checked {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        self.downloads.reject_shard(self.clock.now_us(), shard, body_bytes);
                        self.trouble(format!("what came is no use: {error}"));
                    }
                    Err(reason) => self.trouble(format!("data did not come: {reason}")),
                }
                Ok(())
            }
        }
    }

    async fn act(&mut self, output: Output) -> Result<(), RunError> {
        match output {
            Output::Send(message) => self.send(&message),
            Output::Build(welcome) => self.build(&welcome).await?,
            Output::Fetch { fragment, version } => {
                if let (Some(part), Some((run, _))) = (&self.part, self.learner.run()) {
                    let len = part.engine.fragments().len(fragment);
                    self.downloads.fragment(run, fragment, version, len);
                }
            }
            Output::Encode { round, fragment } => {
                let Some(part) = &mut self.part else { return Ok(()) };
                return part.engine.encode(round, fragment).or_else(|error| self.fail(error));
            }
            Output::Apply { fragment, body, included } => {
                let Some(part) = &mut self.part else { return Ok(()) };
                return part.engine.apply(fragment, &body, included).or_else(|error| self.fail(error));
            }
            Output::Load { fragment, values, keep, included } => {
                let Some(part) = &mut self.part else { return Ok(()) };
                let loaded = part.engine.load(fragment, &values, keep, included);
                return loaded.or_else(|error| self.fail(error));
            }
            Output::Grant(grant) => {
                let granted = self.part.as_mut().map(|part| part.feed.grant(grant));
                if let Some(Err(error)) = granted {
                    self.trouble(error.to_string());
                }
            }
            Output::RetainLeases(leases) => {
                if let Some(part) = &mut self.part {
                    part.feed.retain(&leases);
                }
            }
            Output::Reconnect(Bye { code, reason, wait_ms }) => {
                self.link.close(code, &reason);
                self.disconnect(&End { reason: &reason, code: Some(code), wait_ms });
                if wait_ms > 0 {
                    // Whoever says when to come back is there: only after that is it missed.
                    self.offline_us = Some(self.clock.now_us() + u64::from(wait_ms) * 1_000);
                }
            }
            Output::Stop(bye) => return self.stop(bye),
        }
        Ok(())
    }

    fn stop(&mut self, Bye { code, reason, .. }: Bye) -> Result<(), RunError> {
        self.link.close(code, &reason);
        match code {
            CloseCode::Done => {
                self.disconnect(&End { reason: &reason, code: Some(code), wait_ms: 0 });
                self.ending = true;
                Ok(())
            }
            CloseCode::WrongRun => {
                self.afresh(&reason);
                Ok(())
            }
            _ => Err(RunError::Refused { code, reason }),
        }
    }

    /// Builds the engine of a run, or keeps that of before.
    async fn build(&mut self, welcome: &Welcome) -> Result<(), RunError> {
        let same = |part: &Part<E>| part.run == welcome.run && part.spec == welcome.spec;
        if !self.part.as_ref().is_some_and(same) {
            // The old engine goes first: the two may not fit into memory together.
            self.part = None;
            let spec = welcome.spec.clone();
            let moments = self.losses.take_moments(welcome.run, &spec);
            (self.observe)(&Event::Preparing { run: welcome.run.to_string() });
            self.book(Spent::Exchange);
            let built = (self.build)(&spec, moments).await;
            self.book(Spent::Other);
            let engine = match built {
                Ok(engine) => engine,
                Err(error @ EngineError::Lost { .. }) => return self.fail(error),
                Err(error) => return Err(RunError::Build(error)),
            };
            let feed = Feed::new(&spec);
            self.part = Some(Part { run: welcome.run, spec, engine, feed });
        }
        let Some(part) = &self.part else { return Ok(()) };
        (self.observe)(&Event::Welcomed {
            run: welcome.run.to_string(),
            learner: welcome.learner,
            params: part.engine.layout().len() as u64,
            device: part.engine.describe(),
            tokens_trained: welcome.tokens_trained.saturating_sub(self.meter.tokens),
            tokens_merged: welcome.tokens_merged.saturating_sub(self.tally.tokens_merged.round() as u64),
        });
        let fragments = part.engine.fragments().clone();
        self.learner.handle(self.clock.now(), Input::Built(fragments));
        Ok(())
    }

    fn send(&mut self, message: &Message) {
        if !self.link.is_open() {
            return;
        }
        if let Err(error) = self.link.send(message) {
            return self.disconnect(&End { reason: &error.to_string(), ..End::default() });
        }
        if let (Message::Progress(progress), Some(part)) = (message, &mut self.part) {
            part.feed.reported(&progress.leases);
        }
    }

    /// Looks at a message on its way to the core.
    fn note(&mut self, message: &Message) {
        match message {
            Message::Welcome(_) => {
                self.welcomed = true;
                self.offline_us = None;
            }
            Message::Receipt { round, fragment, fate, .. } => {
                match fate {
                    Fate::Merged { tokens, .. } => {
                        self.losses.merged();
                        self.tally.updates_merged += 1;
                        let share = self.part.as_ref().map_or(0.0, |part| part.share(*fragment));
                        self.tally.tokens_merged += *tokens as f64 * share;
                    }
                    Fate::Late(_) => self.tally.updates_late += 1,
                    Fate::Refused(_) => self.tally.updates_refused += 1,
                }
                (self.observe)(&Event::Receipt { round: *round, fragment: *fragment, fate: *fate });
            }
            Message::Merged(merged) => {
                (self.observe)(&Event::Merged { fragment: merged.fragment, version: merged.version });
            }
            _ => {}
        }
    }

    /// Gives up the connection; the core hears of it with the next [`Self::drain`].
    fn disconnect(&mut self, end: &End<'_>) {
        if self.link.retry_us().is_some() {
            return;
        }
        let now_us = self.clock.now_us();
        let retry_ms = self.link.drop_connection(now_us, end);
        self.offline_us.get_or_insert(now_us);
        self.downloads.clear_fragments();
        if !self.ending {
            (self.observe)(&Event::Disconnected { reason: end.reason.to_owned(), retry_ms });
        }
        self.learner.handle(self.clock.now(), Input::Disconnected);
    }

    /// Begins anew after an error of the engine, if that can help.
    pub(super) fn fail(&mut self, error: EngineError) -> Result<(), RunError> {
        match error {
            EngineError::NotFinite { .. } | EngineError::Exchange(_) => {}
            EngineError::Lost { .. } => {
                let salvaged = self.part.take().and_then(Part::salvage);
                let Some(wait_ms) = self.losses.lose(salvaged) else { return Err(error.into()) };
                self.link.postpone(self.clock.now_us() + wait_ms * 1_000);
            }
            error => return Err(error.into()),
        }
        self.link.close(CloseCode::Done, "the learner starts afresh");
        self.afresh(&error.to_string());
        Ok(())
    }

    /// Gives up everything but the identity, and joins as a newcomer does.
    fn afresh(&mut self, reason: &str) {
        (self.observe)(&Event::Afresh { reason: reason.to_owned() });
        self.disconnect(&End { reason, ..End::default() });
        self.learner = newcomer(&self.config);
        if self.paused {
            self.learner.handle(self.clock.now(), Input::Paused(true));
        }
        if self.hidden {
            self.learner.handle(self.clock.now(), Input::Hidden(true));
        }
        self.part = None;
        self.unsettled = false;
        self.downloads.clear_shard();
    }

    fn trouble(&mut self, reason: String) {
        (self.observe)(&Event::Trouble { reason });
    }
}
