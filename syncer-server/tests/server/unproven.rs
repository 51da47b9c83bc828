//! Single updates, tried by a server on the text that they are said to be the fruit of.

use std::sync::Arc;
use std::time::Duration;

use archipelago_core::data::Window;
use archipelago_core::model::init;
use archipelago_core::wire::http::shard_path;
use archipelago_core::wire::{Fate, LeaseGrant, Message, RunId, ShardSpec};
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::CpuTrainer;
use serde_json::Value;
use syncer_server::ServeConfig;

use crate::support::{Learner, PATIENCE, Server, config};

/// What an update changes each value by: so little that the model stays about what it was.
const STEP: f32 = 1e-5;

/// A run that is looked into, in rounds of four.
fn checked(dir: &std::path::Path) -> ServeConfig {
    let plain = config(dir);
    let method = archipelago_cli::MethodArgs { fragments: 2, ..plain.method };
    ServeConfig {
        min_quorum: 4.try_into().unwrap(),
        method,
        corpus_bytes: "4MB".parse().unwrap(),
        no_eval: false,
        held_out: 0.001,
        ..plain
    }
}

/// A learner that takes a step from the first parameters on the windows that are its next, or none at all.
struct Islet {
    learner: Learner,
    trainer: CpuTrainer,
    /// Windows of its updates that were merged, by fragment.
    done: Vec<usize>,
    idles: bool,
}

impl Islet {
    async fn join(server: &Server, number: u8, idles: bool) -> Self {
        let learner = Learner::join(server, number).await;
        let spec = &learner.welcome.spec;
        let mut trainer = CpuTrainer::fixed(&spec.model, &spec.inner).unwrap();
        trainer.params_mut().copy_from_slice(&init(&spec.model, spec.seed).unwrap());
        let done = vec![0; spec.exchange.fragments.into()];
        Self { learner, trainer, done, idles }
    }

    /// The tokens of its windows from the one at `from` on, in the order in which they were leased.
    fn tokens(&self, shards: &[Vec<u8>], from: usize) -> Vec<u32> {
        let spec = &self.learner.welcome.spec;
        let windows =
            self.learner.leases.iter().flat_map(|&LeaseGrant { epoch, shard, start, windows, .. }| {
                (start..start + windows).map(move |index| Window { epoch, shard, index })
            });
        let windows = windows.skip(from).take(spec.inner.batch as usize);
        windows.flat_map(|window| window.tokens(spec, &shards[window.shard as usize]).unwrap()).collect()
    }

    /// Answers the next question.
    async fn answer(&mut self, shards: &[Vec<u8>]) {
        self.learner.steps += 1;
        self.learner.windows = self.done.iter().copied().max().unwrap_or(0) as u32;
        self.learner.report().await;
        let asked = self.learner.collect().await;
        let from = self.done[usize::from(asked.0.0)];
        let needed = from + self.learner.welcome.spec.inner.batch as usize;
        while self.learner.leases.iter().map(|grant| grant.windows as usize).sum::<usize>() < needed {
            self.learner.until(|message| matches!(message, Message::Lease { .. }).then_some(())).await;
        }
        let tokens = self.tokens(shards, from);
        let (_, grad) = self.trainer.loss_and_grad(&tokens).unwrap();
        let grad = self.learner.fragments.gather(asked.0, grad);
        let step = if self.idles { 0.0 } else { STEP };
        let update = self.learner.update_of(asked, |at| step * grad[at].signum());
        self.learner.client.send(&Message::Update(update)).await;
    }

    /// Waits for what became of it.
    async fn settle(&mut self) {
        let receipt = self.learner.until(|message| match message {
            Message::Receipt { fragment, fate, .. } => Some((fragment, fate)),
            _ => None,
        });
        let (fragment, fate) = tokio::time::timeout(PATIENCE, receipt).await.expect("a receipt");
        if matches!(fate, Fate::Merged { .. }) {
            self.done[usize::from(fragment.0)] += self.learner.welcome.spec.inner.batch as usize;
        }
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

/// Goal: who sends zeros as the fruit of its text is found by what its updates do not show, and told of: it is
/// suspected, stays, and earns nothing more; the next process remembers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_train_is_suspected_and_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(checked(dir.path())).await;
    let mut islets = Vec::new();
    for number in 1..=4 {
        islets.push(Islet::join(&server, number, number == 4).await);
    }
    let welcome = &islets[0].learner.welcome;
    let shards = Arc::new(shards(&server, welcome.run, &welcome.spec.data.shards).await);
    let train = |mut islet: Islet| {
        let shards = Arc::clone(&shards);
        tokio::spawn(async move {
            loop {
                islet.answer(&shards).await;
                islet.settle().await;
                // Looks take a tenth of the time, and the model is to stay about what it was.
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        })
    };
    let training: Vec<_> = islets.into_iter().map(train).collect();
    let its = |status: &Value, learner: usize, what: &str| status["learners"][learner][what].clone();
    let patience = tokio::time::Instant::now() + PATIENCE;
    let status = loop {
        let status = server.status().await;
        if its(&status, 3, "trust") == "suspect" {
            break status;
        }
        assert!(tokio::time::Instant::now() < patience, "{}", status["learners"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for honest in 0..3 {
        assert_ne!(its(&status, honest, "trust"), "suspect", "{}", status["learners"]);
    }
    let why = its(&status, 3, "doubt");
    assert!(why.as_str().unwrap().starts_with("Its updates do not lower the loss on the text"), "{why}");
    let updates = its(&status, 0, "tokensMerged").as_u64();
    let later = loop {
        let later = server.status().await;
        if its(&later, 0, "tokensMerged").as_u64() > updates {
            break later;
        }
        assert!(tokio::time::Instant::now() < patience, "the others go on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(its(&later, 3, "tokensMerged"), its(&status, 3, "tokensMerged"), "it earns nothing");
    assert_eq!(its(&later, 3, "live"), true, "and it stays");
    let (_, _, body) = server.http("GET /v1/log").await;
    let log = String::from_utf8(body).unwrap();
    assert!(log.contains("is suspected, and its updates and tokens do not count"), "{log}");
    training.iter().for_each(tokio::task::JoinHandle::abort);
    server.stop().await;

    let server = Server::start(checked(dir.path())).await;
    assert_eq!(its(&server.status().await, 3, "trust"), "suspect");
    server.stop().await;
}
