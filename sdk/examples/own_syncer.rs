//! A syncer inside a program of your own: `cargo run -p archipelago --example own_syncer`.
//!
//! Three learners on threads train a vector of 80 numbers, each towards its own target, and the syncer on the main
//! thread merges their updates. Channels take the place of sockets and carry encoded messages. `syncer-server` is the
//! same loop with real sockets, snapshots and pages.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]
#![expect(
    clippy::disallowed_methods,
    reason = "the machines are told the time, and somebody has to read the clock"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use archipelago::learner::{self, Codec, LearnerConfig, Replica, Step};
use archipelago::model::{
    ApplyPolicy, Architecture, Code, DataSpec, ExchangeSpec, Fragments, Layout, MergeClass, Model, Preset,
    RunSpec, ShardSpec, Tensor,
};
use archipelago::syncer::{Event, Host, Input, MergeJob, SyncerConfig};
use archipelago::wire::{Bye, ConnId, FragmentId, Identity, Message, Millis, RunId, Version, decode, encode};
use archipelago::{Learner, Syncer};

/// Number of merges after which the run is finished.
const MERGES: u32 = 200;

/// Message from a learner's thread to the syncer's thread.
enum Up {
    /// Bytes of a message.
    Message(ConnId, Vec<u8>),
    /// Request for a fragment. Real learners fetch it over HTTP.
    Fetch(ConnId, FragmentId),
}

/// Message from the syncer's thread to a learner's thread.
enum Down {
    /// Bytes of a message.
    Message(Vec<u8>),
    /// A whole fragment.
    Fragment(FragmentId, Version, Arc<Vec<f32>>),
}

/// Host of the syncer, with a channel for each learner.
struct Channels {
    learners: BTreeMap<ConnId, Sender<Down>>,
    /// Merges to run. A server runs them on another thread.
    jobs: Vec<MergeJob>,
    merges: u32,
    finished: bool,
}

impl Host for Channels {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        let bytes = encode(&message);
        for learner in conns.iter().filter_map(|conn| self.learners.get(conn)) {
            // A send fails only if the learner has ended.
            let _gone = learner.send(Down::Message(bytes.clone()));
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.send(&[conn], Message::Bye(bye));
        self.learners.remove(&conn);
    }

    fn merge(&mut self, job: MergeJob) {
        self.jobs.push(job);
    }

    fn note(&mut self, _syncer: &Syncer, event: Event) {
        if let Event::Merged { round, fragment, updates, .. } = event {
            self.merges += 1;
            if self.merges.is_multiple_of(50) {
                println!("round {round} merged {updates} updates of fragment {fragment}");
            }
        }
    }

    fn finished(&mut self) {
        self.finished = true;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let theta = train()?;
    let mean = theta.iter().sum::<f32>() / theta.len() as f32;
    println!("the learners went for 1, 2 and 3; the merged parameters have the mean {mean:.2}");
    Ok(())
}

/// Serves three learners until the run is finished. Returns the merged parameters, `[80]`.
fn train() -> Result<Vec<f32>, Box<dyn Error>> {
    let (spec, layout) = run()?;
    let start = vec![0.0; layout.len()];
    let mut syncer = Syncer::new(RunId(1), spec, SyncerConfig::default(), &layout, &start)?;
    let (up, inbox) = channel();
    let mut host = Channels { learners: BTreeMap::new(), jobs: Vec::new(), merges: 0, finished: false };
    let mut threads = Vec::new();
    for number in 1..=3_u8 {
        let conn = ConnId(number.into());
        let (down, messages) = channel();
        host.learners.insert(conn, down);
        let (up, layout) = (up.clone(), layout.clone());
        threads.push(thread::spawn(move || learn(conn, number, &layout, &up, &messages)));
    }
    let started = Instant::now();
    while !host.finished {
        serve_one(&mut syncer, &mut host, &inbox, started)?;
    }
    for thread in threads {
        thread.join().map_err(|_| "a learner panicked")??;
    }
    Ok(syncer.theta().ok_or("nothing is being merged any more")?)
}

/// Waits for a message or for the syncer's deadline, and handles it with all that follows.
fn serve_one(
    syncer: &mut Syncer,
    host: &mut Channels,
    inbox: &Receiver<Up>,
    started: Instant,
) -> Result<(), Box<dyn Error>> {
    let now = || since(started);
    let wait = syncer.deadline(now()).map_or(1_000, |at| at.0.saturating_sub(now().0));
    match inbox.recv_timeout(Duration::from_millis(wait)) {
        Ok(Up::Message(conn, bytes)) => syncer.drive(now(), Input::Message(conn, decode(&bytes)?), host),
        Ok(Up::Fetch(conn, fragment)) => {
            let (version, hat) = syncer.hat(fragment).ok_or("no such fragment")?;
            if let Some(learner) = host.learners.get(&conn) {
                learner.send(Down::Fragment(fragment, version, hat))?;
            }
        }
        Err(RecvTimeoutError::Timeout) => syncer.drive(now(), Input::Timeout, host),
        Err(RecvTimeoutError::Disconnected) => return Err("all learners are gone".into()),
    }
    while let Some(job) = host.jobs.pop() {
        syncer.drive(now(), Input::Merged(Box::new(job.run())), host);
    }
    if host.merges >= MERGES {
        host.merges = 0;
        syncer.drive(now(), Input::Finish, host);
    }
    Ok(())
}

/// Returns the milliseconds since `started`. Each state machine has its own clock, which never decreases.
fn since(started: Instant) -> Millis {
    Millis(started.elapsed().as_millis() as u64)
}

/// Learner with its state machine, its parameters, and its copy of the published parameters.
struct LocalLearner {
    conn: ConnId,
    core: Learner,
    layout: Layout,
    theta: Vec<f32>,
    replica: Option<Replica>,
    up: Sender<Up>,
    started: Instant,
}

/// Trains towards `number` until the syncer sends a goodbye.
fn learn(
    conn: ConnId,
    number: u8,
    layout: &Layout,
    up: &Sender<Up>,
    messages: &Receiver<Down>,
) -> Result<(), String> {
    let (identity, name) = (Identity([number; 32]), format!("learner {number}"));
    let mut local = LocalLearner {
        conn,
        core: Learner::new(LearnerConfig {
            identity,
            name,
            device: "one thread".into(),
            invite: None,
            serial_first: 1,
        }),
        layout: layout.clone(),
        theta: vec![0.0; layout.len()],
        replica: None,
        up: up.clone(),
        started: Instant::now(),
    };
    local.core.handle(local.now(), learner::Input::Connected);
    while local.carry_out().map_err(|error| error.to_string())? {
        let now = local.now();
        if local.core.deadline(now).is_some_and(|at| at <= now) {
            local.core.handle(now, learner::Input::Timeout);
        }
        local.train(f32::from(number));
        // A real learner does not wait here: it handles pending input and continues with the next step.
        match messages.recv_timeout(Duration::from_millis(1)) {
            Ok(Down::Message(bytes)) => {
                let message = decode(&bytes).map_err(|error| error.to_string())?;
                local.core.handle(local.now(), learner::Input::Message(message));
            }
            Ok(Down::Fragment(fragment, version, hat)) => {
                let values = hat.to_vec();
                local.core.handle(local.now(), learner::Input::Fetched { fragment, version, values });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(())
}

impl LocalLearner {
    fn now(&self) -> Millis {
        since(self.started)
    }

    /// Runs one step, if the learner may train.
    fn train(&mut self, target: f32) {
        if self.core.can_train() {
            self.theta.iter_mut().for_each(|value| *value += 0.02 * (target - *value));
            let loss = (target - self.theta[0]).abs();
            let step = Step { tokens: 64, loss, step_ms: 1.0 };
            self.core.handle(self.now(), learner::Input::Stepped(step));
        }
    }

    /// Carries out the outputs of the learner. Returns false if the learner has ended.
    fn carry_out(&mut self) -> Result<bool, Box<dyn Error>> {
        use learner::{Input, Output};
        while let Some(output) = self.core.poll() {
            let (now, replica) = (self.now(), self.replica.as_mut().ok_or("a welcome comes first"));
            match output {
                // The send may fail if the syncer has ended; the goodbye is then among the received messages.
                Output::Send(message) => drop(self.up.send(Up::Message(self.conn, encode(&message)))),
                Output::Fetch { fragment, .. } => drop(self.up.send(Up::Fetch(self.conn, fragment))),
                Output::Build(welcome) => {
                    let exchange = &welcome.spec.exchange;
                    let count = NonZeroU16::new(exchange.fragments).ok_or("a run has fragments")?;
                    let fragments = Arc::new(Fragments::plan(&self.layout, count));
                    let codec = Codec::new(exchange)?;
                    self.replica = Some(Replica::new(Arc::clone(&fragments), codec, exchange.apply));
                    let batch =
                        NonZeroU32::new(welcome.spec.inner.batch).ok_or("a run trains on something")?;
                    self.core.handle(now, Input::Built { fragments, batch });
                }
                Output::Encode { serial, fragment } => {
                    let replica = replica?;
                    let body = replica.encode(fragment, &self.theta)?;
                    let digest = replica.digest(fragment);
                    self.core.handle(now, Input::Encoded { serial, fragment, body, digest });
                }
                Output::Include { fragment } => replica?.include(fragment, &mut self.theta)?,
                Output::Apply { fragment, body } => replica?.apply(fragment, &body, &mut self.theta)?,
                Output::Load { fragment, values, keep } => {
                    replica?.load(fragment, &values, keep, &mut self.theta)?;
                }
                // This task has no data, so leases are ignored.
                Output::Grant(_) | Output::RetainLeases(_) => {}
                Output::Reconnect(_) | Output::Stop(_) => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Returns the run's description, and the layout of its parameters.
fn run() -> Result<(RunSpec, Layout), Box<dyn Error>> {
    let tensor = |name: &str, rows| Tensor { name: name.into(), rows, cols: 8, merge: MergeClass::Mean };
    let layout = Layout::new(vec![tensor("first", 6), tensor("second", 4)])?;
    let apply = ApplyPolicy::Keep { residue: true };
    let exchange = ExchangeSpec { fragments: 2, sync_every: 10, block: 8, code: Code::Int4, apply };
    // Shards are needed for leases, so that tokens of updates are credited. They are never read here.
    let data = DataSpec {
        token_bytes: 2,
        masks: false,
        shards: vec![ShardSpec { tokens: 10_000_000, sha256: [0; 32] }],
    };
    // Only the learners know the meaning of the tensors.
    let (tensors, architecture) = (layout.tensors().to_vec(), Architecture::default());
    let model = Model { context: 64, vocab: 256, tensors, architecture, experts: None };
    let inner = Preset::Tiny.inner();
    Ok((RunSpec { model, inner, exchange, data, seed: 1, frozen: None }, layout))
}

/// A busy machine gives some threads more time than others, so the mean is not exactly the middle.
#[test]
fn merged_mean_lies_between_the_targets() {
    let theta = train().expect("a run of three threads");
    let mean = theta.iter().sum::<f32>() / theta.len() as f32;
    assert!((0.9..3.1).contains(&mean), "{mean}");
}
