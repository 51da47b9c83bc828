//! Tests of loss checks: a server tries single updates on the text that they claim to be trained on.

use std::sync::Arc;
use std::time::Duration;

use archipelago_core::data::Window;
use archipelago_core::diloco::{Codec, Replica};
use archipelago_core::model::{ModelSpec, init};
use archipelago_core::wire::http::shard_path;
use archipelago_core::wire::{Fate, FragmentId, LeaseGrant, Message, RunId, ShardSpec, Version};
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::CpuTrainer;
use serde_json::Value;
use syncer_server::ServeConfig;

use crate::support::{Learner, PATIENCE, Server, config};

/// Learners, the last of which trains nothing.
const LEARNERS: u8 = 4;
/// Change of each value in a step, small enough that one loss check tells much.
const STEP: f32 = 1e-5;

/// Returns the settings of a run with loss checks for half of a core's time, in rounds of all learners. About 45 checks
/// are needed, so each has to be quick: windows are short.
fn checked(dir: &std::path::Path) -> ServeConfig {
    let plain = config(dir);
    let method = archipelago_cli::MethodArgs { fragments: 2, ..plain.method };
    ServeConfig {
        min_quorum: u32::from(LEARNERS).try_into().unwrap(),
        learners_start: LEARNERS.into(),
        method,
        corpus_bytes: "2MB".parse().unwrap(),
        context: Some(16.try_into().unwrap()),
        no_eval: false,
        held_out: 0.001,
        checks: 0.5,
        ..plain
    }
}

/// Learner that takes one step from Θ̂ when asked, along the signs of the gradient on its next windows. An idle one
/// takes no step, and claims the same.
struct Islet {
    learner: Learner,
    trainer: CpuTrainer,
    /// Keeps the parameters of `trainer` at Θ̂.
    replica: Replica,
    shards: Arc<Vec<Vec<u8>>>,
    /// Unanswered last request, by fragment, as are the next two fields.
    asked: Vec<Option<Version>>,
    /// True if the fate of the last update is known.
    is_settled: Vec<bool>,
    /// Number of windows of its merged updates.
    done: Vec<u32>,
    idles: bool,
}

impl Islet {
    fn new(learner: Learner, shards: Arc<Vec<Vec<u8>>>, idles: bool) -> Self {
        let spec = &learner.welcome.spec;
        let model = ModelSpec::of(&spec.model).unwrap();
        let mut trainer = CpuTrainer::fixed(&model, &spec.inner).unwrap();
        let fragments = Arc::new(learner.fragments.clone());
        let codec = Codec::new(&spec.exchange).unwrap();
        let mut replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
        let params = init(&model, spec.seed).unwrap();
        for fragment in fragments.ids() {
            let values = fragments.gather(fragment, &params);
            replica.load(fragment, &values, false, trainer.params_mut()).unwrap();
        }
        let count = usize::from(fragments.count());
        let (asked, is_settled, done) = (vec![None; count], vec![true; count], vec![0; count]);
        Self { learner, trainer, replica, shards, asked, is_settled, done, idles }
    }

    /// Handles the next message, and answers where possible.
    async fn go_on(&mut self) {
        let batch = self.learner.welcome.spec.inner.batch;
        match self.learner.until(Some).await {
            Message::Collect { fragment, base, .. } => self.asked[usize::from(fragment.0)] = Some(base),
            Message::Receipt { fragment, fate, .. } => {
                self.is_settled[usize::from(fragment.0)] = true;
                if matches!(fate, Fate::Merged { .. }) {
                    self.done[usize::from(fragment.0)] += batch;
                }
            }
            Message::Merged(merged) => {
                self.replica.apply(merged.fragment, &merged.body, self.trainer.params_mut()).unwrap();
            }
            _ => {}
        }
        let leased: u32 = self.learner.leases.iter().map(|grant| grant.windows).sum();
        for p in 0..self.done.len() {
            let can = self.is_settled[p] && self.done[p] + batch <= leased;
            if let Some(base) = self.asked[p].take_if(|_| can) {
                self.is_settled[p] = false;
                self.answer((FragmentId(p as u16), base)).await;
            }
        }
    }

    async fn answer(&mut self, asked: (FragmentId, Version)) {
        let tokens = self.tokens(self.done[usize::from(asked.0.0)]);
        let (_, grad) = self.trainer.loss_and_grad(&tokens).unwrap();
        let grad = self.learner.fragments.gather(asked.0, grad);
        let step = if self.idles { 0.0 } else { STEP };
        let update = self.learner.update_of(asked, |at| step * grad[at].signum());
        self.learner.steps += 1;
        self.learner.windows = self.done.iter().copied().min().unwrap_or(0);
        self.learner.report().await;
        self.learner.client.send(&Message::Update(update)).await;
    }

    /// Returns the tokens of its windows from window `from` on, in lease order.
    fn tokens(&self, from: u32) -> Vec<u32> {
        let spec = &self.learner.welcome.spec;
        let leases = self.learner.leases.iter();
        let windows = leases.flat_map(|&LeaseGrant { epoch, shard, start, windows, .. }| {
            (start..start + windows).map(move |index| Window { epoch, shard, index })
        });
        let of = |window: Window| window.tokens(spec, &self.shards[window.shard as usize]).unwrap();
        windows.skip(from as usize).take(spec.inner.batch as usize).flat_map(of).collect()
    }
}

async fn shards(server: &Server, run: RunId, specs: &[ShardSpec]) -> Vec<Vec<u8>> {
    let mut shards = Vec::new();
    for shard in 0..specs.len() {
        let (code, _, body) = server.http(&format!("GET {}", shard_path(run, shard as u32))).await;
        assert_eq!(code, 200);
        shards.push(body);
    }
    shards
}

/// Goal: a learner that sends zeros as updates is detected by loss checks and reported. It is suspected, stays
/// connected, and its updates no longer count. The next process remembers it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_train_is_suspected_and_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(checked(dir.path())).await;
    let mut learners = Vec::new();
    for number in 1..=LEARNERS {
        learners.push(Learner::join(&server, number).await);
    }
    let welcome = &learners[0].welcome;
    let shards = Arc::new(shards(&server, welcome.run, &welcome.spec.data.shards).await);
    let rider = usize::from(LEARNERS) - 1;
    let train = |(at, learner)| {
        let mut islet = Islet::new(learner, Arc::clone(&shards), at == rider);
        tokio::spawn(async move {
            loop {
                islet.go_on().await;
            }
        })
    };
    let training: Vec<_> = learners.into_iter().enumerate().map(train).collect();
    let its = |status: &Value, learner: usize, what: &str| status["learners"][learner][what].clone();
    let patience = tokio::time::Instant::now() + 2 * PATIENCE;
    let status = loop {
        let status = server.status().await;
        if its(&status, rider, "trust") == "suspect" {
            break status;
        }
        assert!(tokio::time::Instant::now() < patience, "{}", status["learners"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let why = its(&status, rider, "doubt");
    assert!(
        why.as_str().unwrap().starts_with("Its updates do not lower the loss on their own text"),
        "{why}"
    );
    // A dozen further loss checks, so that any other suspect would be found.
    let sent = its(&status, 0, "updates").as_u64().unwrap() + 100;
    let later = loop {
        let later = server.status().await;
        if its(&later, 0, "updates").as_u64().unwrap() >= sent {
            break later;
        }
        assert!(tokio::time::Instant::now() < patience, "the others go on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(its(&later, rider, "tokensMerged"), its(&status, rider, "tokensMerged"), "it earns nothing");
    assert_eq!(its(&later, rider, "live"), true, "and it stays");
    for honest in 0..rider {
        assert_ne!(its(&later, honest, "trust"), "suspect", "{}", later["learners"]);
        let merged = |status| its(status, honest, "tokensMerged").as_u64();
        assert!(merged(&later) > merged(&status), "{}", later["learners"]);
    }
    // A line is shown once it is on the tape.
    loop {
        let (_, _, body) = server.http("GET /v1/log").await;
        let log = String::from_utf8(body).unwrap();
        if log.contains("is suspected, and its updates and tokens do not count") {
            break;
        }
        assert!(tokio::time::Instant::now() < patience, "{log}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    training.iter().for_each(tokio::task::JoinHandle::abort);
    server.stop().await;

    let server = Server::start(checked(dir.path())).await;
    assert_eq!(its(&server.status().await, rider, "trust"), "suspect");
    server.stop().await;
}
