//! Synthetic learner: the delivered state machine on a separate socket, with waits in place of steps.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use archipelago_core::diloco::Version;
use archipelago_core::diloco::learner::LearnerConfig;
use archipelago_core::driver::{Batch, DriverConfig, Input, LearnerDriver, Output, Step, Waits};
use archipelago_core::wire::{
    Challenge, Fate, FragmentId, Hello, Identity, LearnerState, Message, RunId, Serial, Signature,
};
use ed25519_dalek::{Signer, SigningKey};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::pool::LearnerPool;
use crate::socket::LearnerSocket;

/// One in this many learners handles messages during a step, as a learner with an asynchronous device does. These few
/// measure the latency of answers. The others handle messages between steps.
const PROMPT_EVERY: u32 = 8;
/// Maximum sleep of a learner that does not train.
const SLEEP: Duration = Duration::from_secs(1);
/// Reported loss, in nats per token.
const LOSS: f32 = 4.0;

/// Synthetic learner.
pub struct SyntheticLearner {
    pool: Rc<LearnerPool>,
    number: u32,
    key: SigningKey,
    driver: LearnerDriver,
    socket: Option<LearnerSocket>,
    context: usize,
    is_ready: bool,
    has_ended: bool,
    /// Time of the hello, until the welcome.
    hello_sent: Option<Instant>,
    /// Send times of unconfirmed updates.
    sent: BTreeMap<Serial, Instant>,
}

impl SyntheticLearner {
    /// Creates the learner of this number, not yet joined.
    pub fn new(pool: Rc<LearnerPool>, number: u32) -> Self {
        let mut secret = [7; 32];
        secret[..4].copy_from_slice(&number.to_le_bytes());
        let key = SigningKey::from_bytes(&secret);
        let learner = LearnerConfig {
            identity: Identity(key.verifying_key().to_bytes()),
            name: format!("synthetic {number}"),
            device: "cpu, synthetic".into(),
            invite: None,
            serial_first: u64::from(number) << 32,
        };
        let driver = LearnerDriver::new(DriverConfig {
            learner,
            contact_ms_max: None,
            reconnect_ms_max: None,
            waits: Waits::default(),
            seed: number.into(),
        });
        Self {
            pool,
            number,
            key,
            driver,
            socket: None,
            context: 1,
            is_ready: false,
            has_ended: false,
            hello_sent: None,
            sent: BTreeMap::new(),
        }
    }

    /// Takes part until the syncer ends the session for good.
    pub async fn live(mut self) {
        while !self.has_ended {
            self.receive().await;
            self.handle(Input::Timeout).await;
            let batch = self.driver.next_batch(self.pool.now_us());
            self.drain().await;
            match batch {
                Some(batch) => self.step(&batch).await,
                None => self.wait().await,
            }
        }
        self.pool.stats.borrow_mut().end(self.is_ready);
    }

    /// Handles all waiting messages.
    async fn receive(&mut self) {
        while let Some(input) = self.socket.as_mut().and_then(LearnerSocket::try_next) {
            self.handle(input).await;
        }
    }

    /// Performs one step by waiting for its duration.
    async fn step(&mut self, batch: &Batch) {
        let (began, from_us) = (Instant::now(), self.pool.now_us());
        let until = began + self.pool.step;
        if self.number.is_multiple_of(PROMPT_EVERY) {
            while let Some(input) = self.next_input(until).await {
                self.handle(input).await;
            }
        }
        sleep_until(until).await;
        self.pool.stats.borrow_mut().steps += 1;
        let windows = batch.tokens.len() / (self.context + 1);
        let busy_us = self.pool.now_us() - from_us;
        let tokens = (windows * self.context) as u64;
        self.handle(Input::Stepped(Step { tokens, loss: LOSS, busy_us, earlier_us: 0 })).await;
    }

    /// Waits for the next event.
    async fn wait(&mut self) {
        let now_us = self.pool.now_us();
        let wait_us = self.driver.deadline(now_us).map_or(u64::MAX, |at| at.saturating_sub(now_us));
        let until = Instant::now() + Duration::from_micros(wait_us).clamp(Duration::from_millis(1), SLEEP);
        let next = self.next_input(until).await;
        let us = self.pool.now_us() - now_us;
        self.handle(Input::Waited { us }).await;
        if let Some(input) = next {
            self.handle(input).await;
        }
    }

    /// Returns the next message before `until`.
    async fn next_input(&mut self, until: Instant) -> Option<Input> {
        match &mut self.socket {
            Some(socket) => timeout_at(until, socket.next()).await.ok(),
            None => {
                sleep_until(until).await;
                None
            }
        }
    }

    /// Passes an input to the driver, and executes its outputs.
    async fn handle(&mut self, input: Input) {
        match &input {
            Input::Message(message) => self.note(message),
            Input::Closed { reason, .. } => {
                self.socket = None;
                self.pool.stats.borrow_mut().note(format!("closed: {reason}"));
            }
            _ => {}
        }
        self.driver.handle(self.pool.now_us(), input);
        self.drain().await;
    }

    fn note(&mut self, message: &Message) {
        let mut stats = self.pool.stats.borrow_mut();
        let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
        match message {
            Message::Welcome(_) => stats.welcomed_ms.extend(self.hello_sent.take().map(ms)),
            Message::UpdateReceived { serial, .. } => {
                stats.arrived_ms.extend(self.sent.remove(serial).map(ms))
            }
            Message::Receipt { fate: Fate::Merged { .. }, .. } => stats.merged += 1,
            Message::Receipt { fate: Fate::Late(_), .. } => stats.late += 1,
            Message::Receipt { fate: Fate::Refused(reason), .. } => {
                stats.refused += 1;
                stats.note(format!("refused: {reason:?}"));
            }
            Message::Merged(merged) => {
                stats.changes += 1;
                self.pool.note_digest(merged.fragment, merged.version, merged.digest);
            }
            Message::Bye(bye) => stats.note(format!("dismissed: {}", bye.reason)),
            _ => {}
        }
    }

    /// Executes the driver's outputs until the queue is empty.
    async fn drain(&mut self) {
        while let Some(output) = self.driver.poll() {
            if let Some(input) = self.act(output).await {
                self.driver.handle(self.pool.now_us(), input);
            }
        }
        if let Some(socket) = &mut self.socket
            && socket.flush().await.is_err()
        {
            self.socket = None;
            let reason = "cannot send".to_owned();
            self.driver.handle(self.pool.now_us(), Input::Closed { code: None, reason });
        }
        if !self.is_ready && self.driver.state() == LearnerState::Training {
            self.is_ready = true;
            self.pool.stats.borrow_mut().is_ready();
        }
    }

    /// Executes one output. Returns its result if it is immediate.
    async fn act(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Connect => {
                let opened = LearnerSocket::open(self.pool.address).await;
                return Some(match opened {
                    Ok(socket) => {
                        self.socket = Some(socket);
                        Input::Opened
                    }
                    Err(reason) => {
                        self.pool.stats.borrow_mut().note(reason.clone());
                        Input::Closed { code: None, reason }
                    }
                });
            }
            Output::Greet { hello, challenge, .. } => return self.send_hello(*hello, &challenge).await,
            Output::Send(message) => return self.send(message).await,
            Output::Close(bye) => {
                if let Some(socket) = &mut self.socket {
                    socket.close(&bye).await;
                }
            }
            Output::Disconnect { .. } => self.socket = None,
            Output::Build { welcome, .. } => {
                self.context = welcome.spec.model.context as usize;
                let built = self.pool.fragments(&welcome.spec);
                return Some(match built {
                    Ok(fragments) => Input::Built { fragments, batch: NonZeroU32::MIN },
                    Err(reason) => Input::Failed { device_lost: false, reason },
                });
            }
            Output::Fetch { fragment, version } => return self.fetch(fragment, version).await,
            Output::FetchShard { shard, .. } => {
                let bytes = self.pool.shard(self.run()?, shard).await;
                return Some(Input::Shard { shard, bytes });
            }
            Output::Encode { serial, fragment } => {
                let held = self.driver.versions().nth(fragment.0.into()).flatten();
                let (body, digest) = (self.pool.body(fragment, serial.0), self.pool.digest(fragment, held));
                return Some(Input::Encoded { serial, fragment, body, digest });
            }
            Output::Load { .. } => self.pool.stats.borrow_mut().loads += 1,
            Output::Trouble { reason } | Output::Afresh { reason } => {
                self.pool.stats.borrow_mut().note(reason);
            }
            Output::End(end) => {
                self.pool.stats.borrow_mut().note(format!("{end:?}"));
                self.has_ended = true;
            }
            // There are no parameters to change, and the syncer never asks for a measurement.
            Output::Apply { .. }
            | Output::Include { .. }
            | Output::FetchHeldOut { .. }
            | Output::Measure { .. } => {}
        }
        None
    }

    /// Answers the syncer's challenge with a hello.
    async fn send_hello(&mut self, hello: Hello, challenge: &Challenge) -> Option<Input> {
        let signature = Signature(self.key.sign(&challenge.text()).to_bytes());
        self.hello_sent = Some(Instant::now());
        let sent = self.send(Message::Hello(Hello { signature, ..hello })).await;
        if let Some(socket) = &mut self.socket {
            // A lost connection is detected by the next read.
            drop(socket.flush().await);
        }
        sent
    }

    async fn send(&mut self, message: Message) -> Option<Input> {
        if let Message::Update(update) = &message {
            self.pool.stats.borrow_mut().updates += 1;
            if self.number.is_multiple_of(PROMPT_EVERY) {
                self.sent.insert(update.serial, Instant::now());
            }
        }
        let sent = self.socket.as_mut()?.send(&message).await;
        sent.err().map(|error| Input::Closed { code: None, reason: error.to_string() })
    }

    async fn fetch(&mut self, fragment: FragmentId, version: Version) -> Option<Input> {
        let run = self.run()?;
        Some(match self.pool.fragment(run, fragment, version).await {
            Ok((version, values)) => Input::Fetched { fragment, version, values },
            Err(reason) => Input::FetchFailed { fragment, reason },
        })
    }

    fn run(&self) -> Option<RunId> {
        self.driver.run().map(|(run, _)| run)
    }
}
