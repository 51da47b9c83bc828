//! A learner's process: the real learner core with what its shell holds for it.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

use super::Poison;
use archipelago::data::Feed;
use archipelago::diloco::learner::{Input, Learner, LearnerConfig, Output, Step};
use archipelago::diloco::{Codec, Fragments, Replica};
use archipelago::engine::Trainer;
use archipelago::model::learning_rate;
use archipelago::wire::{
    Bye, CloseCode, ConnId, FragmentId, Identity, Message, Millis, RunId, RunSpec, Version, Welcome,
};

/// What a process wants from the world.
#[derive(Debug)]
pub(super) enum Effect {
    Send(Message),
    Fetch {
        fragment: FragmentId,
        version: Version,
    },
    /// Nothing to do: it has taken a merged fragment in.
    Applied(FragmentId),
    /// Close the connection and come back later, or with `stay_away` never.
    Close {
        bye: Bye,
        stay_away: bool,
    },
}

/// What is there once a run is joined.
struct Workshop {
    run: RunId,
    spec: RunSpec,
    trainer: Box<dyn Trainer>,
    fragments: Arc<Fragments>,
    replica: Replica,
    feed: Feed,
}

pub(super) struct Process {
    core: Learner,
    workshop: Option<Workshop>,
    /// The step being computed, with its batch, `[batch, context + 1]`.
    batch: Option<Vec<u32>>,
    /// What came in during the step; taken in at its end.
    inbox: VecDeque<Input>,
    /// Shards on their way.
    shards_asked: BTreeSet<u32>,
    /// When this process began: the origin of its clock.
    born: Millis,
    pub(super) conn: Option<ConnId>,
    /// Failed attempts to connect since the last success.
    pub(super) failures: u32,
    /// How long the syncer has it stay away, in milliseconds; 0 leaves it to the process.
    pub(super) wait_ms: u64,
    /// It rests until then, on the world's clock, as the run's owner has it.
    rest_until: Millis,
    /// The wake-up planned for its core, on the world's clock.
    pub(super) wake: Option<Millis>,
    /// Why it stays away for good.
    pub(super) stopped: Option<Bye>,
    pub(super) poison: Option<Poison>,
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) loss: f32,
}

/// Makes the trainer of a machine, given its index; the layout must be the run's.
pub type MakeTrainer = dyn FnMut(u32) -> Box<dyn Trainer>;

impl Process {
    pub(super) fn new(born: Millis, identity: Identity, name: String, poison: Option<Poison>) -> Self {
        Self {
            core: Learner::new(LearnerConfig { identity, name, device: "simulated".into(), invite: None }),
            workshop: None,
            batch: None,
            inbox: VecDeque::new(),
            shards_asked: BTreeSet::new(),
            born,
            conn: None,
            failures: 0,
            wait_ms: 0,
            rest_until: born,
            wake: None,
            stopped: None,
            poison,
            steps: 0,
            tokens: 0,
            loss: f32::NAN,
        }
    }

    /// Takes in `input`, at once or, during a step, at its end.
    pub(super) fn take(&mut self, now: Millis, input: Input) {
        if self.batch.is_some() {
            self.inbox.push_back(input);
        } else {
            self.core.handle(self.clock(now), input);
        }
    }

    /// The next thing that the world has to do; what concerns only the process is done on the way.
    pub(super) fn poll(&mut self, now: Millis, make: &mut dyn FnMut() -> Box<dyn Trainer>) -> Option<Effect> {
        while let Some(output) = self.core.poll() {
            match output {
                Output::Send(message) => return Some(Effect::Send(message)),
                Output::Fetch { fragment, version } => return Some(Effect::Fetch { fragment, version }),
                Output::Reconnect(bye) => return Some(Effect::Close { bye, stay_away: false }),
                Output::Stop(bye) => return Some(Effect::Close { bye, stay_away: true }),
                Output::Build(welcome) => self.build(now, &welcome, make),
                Output::Apply { fragment, .. } => {
                    self.work(now, output);
                    return Some(Effect::Applied(fragment));
                }
                local => self.work(now, local),
            }
        }
        None
    }

    /// Begins a step if there is something to train on; whether it did.
    pub(super) fn begin_step(&mut self, now: Millis) -> bool {
        if self.batch.is_some() || self.stopped.is_some() || self.rest_until > now || !self.core.can_train() {
            return false;
        }
        let clock = self.clock(now);
        let Some(workshop) = &mut self.workshop else { return false };
        self.batch = workshop.feed.next_batch(workshop.spec.inner.batch);
        self.core.set_starved(clock, self.batch.is_none());
        self.batch.is_some()
    }

    /// Ends the step begun: trains, reports, and takes in what came meanwhile one by one, as the
    /// caller drains [`Self::poll`] between [`Self::next_input`]s.
    pub(super) fn end_step(&mut self, now: Millis, step_ms: u64) {
        let Some((batch, workshop)) = self.batch.take().zip(self.workshop.as_mut()) else { return };
        let lr = learning_rate(&workshop.spec.inner, self.core.clock_tokens());
        let stats = match workshop.trainer.step(&batch, lr) {
            Ok(stats) => stats,
            Err(error) => return self.stop(&error),
        };
        self.steps += 1;
        self.tokens += stats.tokens;
        self.loss = stats.loss;
        let leases = workshop.feed.progress();
        let permille = u64::from(self.core.share().permille());
        let rest_ms = step_ms.saturating_mul(1_000 - permille) / permille;
        self.rest_until = now.after(rest_ms);
        let step_ms = (step_ms + rest_ms) as f32;
        let step = Step { tokens: stats.tokens, loss: stats.loss, step_ms, leases };
        self.core.handle(self.clock(now), Input::Stepped(step));
    }

    /// Takes in the next input that came during a step; whether there was one.
    pub(super) fn next_input(&mut self, now: Millis) -> bool {
        let Some(input) = self.inbox.pop_front().filter(|_| self.batch.is_none()) else { return false };
        self.core.handle(self.clock(now), input);
        true
    }

    pub(super) fn is_stepping(&self) -> bool {
        self.batch.is_some()
    }

    /// When the core wants [`Input::Timeout`], or the rest is over, on the world's clock.
    pub(super) fn deadline(&self, now: Millis) -> Option<Millis> {
        let core = self.core.deadline(self.clock(now)).map(|at| at.after(self.born.0));
        core.into_iter().chain((self.rest_until > now).then_some(self.rest_until)).min()
    }

    /// A shard to fetch, once for each.
    pub(super) fn shard_to_fetch(&mut self) -> Option<u32> {
        let shard = self.workshop.as_ref()?.feed.needs()?;
        self.shards_asked.insert(shard).then_some(shard)
    }

    /// A shard came, or with `None` did not.
    pub(super) fn take_shard(&mut self, shard: u32, bytes: Option<&[u8]>) {
        self.shards_asked.remove(&shard);
        if let Some((workshop, bytes)) = self.workshop.as_mut().zip(bytes) {
            workshop.feed.add_shard(shard, bytes.to_vec()).expect("the world serves the run's own shards");
        }
    }

    /// A message was handed to the network.
    pub(super) fn sent(&mut self, message: &Message) {
        if let (Some(workshop), Message::Progress(progress)) = (&mut self.workshop, message) {
            workshop.feed.reported(&progress.leases);
        }
    }

    pub(super) fn leave(&mut self, now: Millis) {
        self.core.leave(self.clock(now));
    }

    /// Θ̂ of each fragment that it knows the version of.
    pub(super) fn hats(&self) -> Vec<(FragmentId, Version, Vec<f32>)> {
        let Some(workshop) = &self.workshop else { return Vec::new() };
        let held = workshop.fragments.ids().zip(self.core.versions());
        let known = held.filter_map(|(p, version)| {
            version.map(|version| (p, version, workshop.fragments.gather(p, workshop.replica.hat())))
        });
        known.collect()
    }

    /// θ, `[layout.len()]`, once it is there.
    pub(super) fn params(&self) -> Option<&[f32]> {
        self.workshop.as_ref().map(|workshop| workshop.trainer.params())
    }

    /// Trains no more.
    fn stop(&mut self, why: &dyn std::fmt::Display) {
        self.stopped = Some(Bye::new(CloseCode::Done, why.to_string()));
    }

    fn clock(&self, now: Millis) -> Millis {
        Millis(now.since(self.born))
    }

    fn build(&mut self, now: Millis, welcome: &Welcome, make: &mut dyn FnMut() -> Box<dyn Trainer>) {
        if self.workshop.as_ref().is_none_or(|workshop| workshop.run != welcome.run) {
            let spec = welcome.spec.clone();
            let trainer = make();
            let count = NonZeroU16::new(spec.exchange.fragments).expect("the syncer refuses 0 fragments");
            let fragments = Arc::new(Fragments::plan(trainer.layout(), count));
            let codec = Codec::new(&spec.exchange).expect("the syncer uses the same codec");
            let replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
            let feed = Feed::new(&spec);
            self.workshop = Some(Workshop { run: welcome.run, spec, trainer, fragments, replica, feed });
        }
        let workshop = self.workshop.as_ref().expect("built above");
        let fragments = Arc::clone(&workshop.fragments);
        self.core.handle(self.clock(now), Input::Built(fragments));
    }

    /// What concerns parameters and data only.
    fn work(&mut self, now: Millis, output: Output) {
        // Before a run is built there is nothing to forget; the core asks for nothing else then.
        let Some(workshop) = &mut self.workshop else { return };
        let Workshop { trainer, replica, feed, .. } = workshop;
        match output {
            Output::Encode { round, fragment } => {
                match replica.encode(fragment, trainer.params()) {
                    Ok(body) => self.core.handle(self.clock(now), Input::Encoded { round, fragment, body }),
                    // A step may end in parameters that are too large for a number.
                    Err(error) => self.stop(&error),
                }
            }
            Output::Apply { fragment, body, included } => replica
                .apply(fragment, &body, included, trainer.params_mut())
                .expect("the core checked base and checksum"),
            Output::Load { fragment, values, keep, included } => replica
                .load(fragment, &values, keep, included, trainer.params_mut())
                .expect("the world serves whole fragments"),
            Output::Grant(grant) => feed.grant(grant).expect("the syncer grants what exists"),
            Output::RetainLeases(leases) => feed.retain(&leases),
            Output::Send(_) | Output::Build(_) | Output::Fetch { .. } => {}
            Output::Reconnect(_) | Output::Stop(_) => {}
        }
    }
}
