//! Tests of identities: authentication, admission, bans, and unproven learners.

use std::sync::Arc;
use std::time::Duration;

use archipelago_core::data::Window;
use archipelago_core::diloco::{Codec, Replica};
use archipelago_core::model::{ModelSpec, init};
use archipelago_core::wire::http::shard_path;
use archipelago_core::wire::{
    CloseCode, Fate, FragmentId, Hello, Identity, Invite, LeaseGrant, Message, RunId, SUBPROTOCOL, ShardSpec,
    Signature, Version,
};
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::CpuTrainer;
use futures::StreamExt;
use serde_json::Value;
use syncer_server::ServeConfig;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::Message as Frame;

use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config, hello, key, sign};

/// Connects and sends the result of `hello`. Returns the close code and its reason.
async fn refused(server: &Server, hello: impl FnOnce(&Client) -> Hello) -> (u16, String) {
    let mut client = Client::connect(server).await;
    let hello = hello(&client);
    client.send(&Message::Hello(hello)).await;
    let end = tokio::time::timeout(PATIENCE, client.end()).await.expect("it is sent away");
    assert_eq!(end.bye, end.close);
    (end.close, end.reason)
}

/// Goal: data from one connection is useless on another one, and no peer can take over an account.
#[tokio::test]
async fn an_account_cannot_be_stolen() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut honest = ScriptedLearner::join(&server, 1).await;
    honest.merge().await;
    let recorded = honest.client.signed(hello(1));
    let identity = u16::from(CloseCode::Identity);

    // A replay of everything that a listener recorded, during the learner's session and after it.
    assert_eq!(refused(&server, |_| recorded.clone()).await.0, identity);
    assert_eq!(
        refused(&server, |thief| {
            let signature = sign(&key(2), &thief.challenge);
            Hello { signature, ..hello(1) }
        })
        .await
        .0,
        identity
    );
    // A signature for another run: a syncer of that run could obtain it by relaying a challenge of this one.
    assert_eq!(
        refused(&server, |thief| {
            let mut other = thief.challenge;
            other.run = RunId(other.run.0 ^ 1);
            Hello { signature: sign(&key(1), &other), ..hello(1) }
        })
        .await
        .0,
        identity
    );
    assert_eq!(refused(&server, |_| Hello { signature: Signature([7; 64]), ..hello(1) }).await.0, identity);
    // The key is the neutral element. Without a check, this signature would be valid for every text.
    let mut nobodys = ([0; 32], [0; 64]);
    (nobodys.0[0], nobodys.1[0]) = (1, 1);
    let (code, reason) = refused(&server, |_| Hello {
        identity: Identity(nobodys.0),
        signature: Signature(nobodys.1),
        ..hello(1)
    })
    .await;
    assert_eq!((code, reason.contains("not an Ed25519 key")), (identity, true), "{reason}");
    // A challenge is valid once, even for the peer that received it.
    let (mut client, _) = Client::greet(&server, 2).await;
    let again = client.signed(hello(2));
    client.send(&Message::Hello(again)).await;
    assert_eq!(client.end().await.close, u16::from(CloseCode::Protocol));

    // The honest learner was never disturbed, and its account is unchanged.
    honest.collect().await;
    let status = server.status().await;
    assert_eq!(status["learnersTotal"], 2, "no thief has an account");
    drop(honest);
    let (_, welcome) = Client::greet(&server, 1).await;
    assert!(welcome.tokens_merged > 0, "the account follows the key");
    server.stop().await;
}

/// Goal: a learner of another version gets an error that it understands, and does not retry.
#[tokio::test]
async fn other_versions_get_their_typed_close() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    assert_ne!(SUBPROTOCOL, "archipelago.4");
    for version in ["archipelago.4", "archipelago.99"] {
        let mut request = format!("ws://{}/v1/ws", server.address).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", version.parse().unwrap());
        let (mut socket, answer) = connect_async(request).await.unwrap();
        assert_eq!(answer.headers()["sec-websocket-protocol"], version);
        let Frame::Binary(bytes) = socket.next().await.unwrap().unwrap() else { panic!("no message") };
        let spoken: u8 = SUBPROTOCOL.rsplit('.').next().unwrap().parse().unwrap();
        assert_eq!(
            (&bytes[..4], bytes[4]),
            (&b"ARCH"[..], spoken),
            "it names the version that is spoken here"
        );
        let Frame::Close(Some(close)) = socket.next().await.unwrap().unwrap() else { panic!("no close") };
        assert_eq!(u16::from(close.code), u16::from(CloseCode::Version));
        assert!(close.reason.contains(version), "{}", close.reason);
    }
    server.stop().await;
}

/// Sends an owner's order.
async fn order(server: &Server, line: &str, body: &str) -> (u16, Value) {
    let bytes = body.len();
    let request = format!("{line}\nAuthorization: Bearer secret-of-the-owner\nContent-Length: {bytes}");
    let (code, _, answer) = server.exchange(&request, body).await;
    (code, serde_json::from_slice(&answer).unwrap_or_default())
}

fn by_invite(dir: &std::path::Path) -> ServeConfig {
    ServeConfig { invite: Some("personal".into()), ..config(dir) }
}

#[tokio::test]
async fn a_personal_invite_admits_its_number_of_keys() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(by_invite(dir.path())).await;
    assert_eq!(server.http("GET /v1/invites").await.0, 401);
    assert_eq!(server.http("POST /v1/invites").await.0, 401);
    assert_eq!(order(&server, "POST /v1/invites", "{\"uses\": 0}").await.0, 400);
    let (code, made) =
        order(&server, "POST /v1/invites", "{\"uses\": 2, \"expiresS\": 3600, \"note\": \"lab\"}").await;
    assert_eq!(code, 200, "{made}");
    let text = made["invite"].as_str().unwrap().to_owned();
    let shows = |number: u8, invite: Option<&str>| Hello { invite: invite.map(Invite::new), ..hello(number) };
    let invite = u16::from(CloseCode::Invite);
    assert_eq!(refused(&server, |_| shows(1, None)).await.0, invite);
    // A peer that knows the invite but cannot sign does not use it up.
    let forged = refused(&server, |_| Hello { signature: Signature([7; 64]), ..shows(9, Some(&text)) }).await;
    assert_eq!(forged.0, u16::from(CloseCode::Identity));
    for number in [1, 2] {
        let mut client = Client::connect(&server).await;
        client.send(&Message::Hello(shows(number, Some(&text)))).await;
        let Message::Welcome(welcome) = client.next().await else { panic!("it is invited") };
        // Its connection gives access to parameters and data.
        let get = format!("GET /v1/runs/{}/shards/0", welcome.run);
        let pass: String = client.challenge.nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(server.http(&format!("{get}\nx-archipelago-pass: {pass}")).await.0, 200);
        let wrong = "0".repeat(64);
        assert_eq!(server.http(&format!("{get}\nx-archipelago-pass: {wrong}")).await.0, 403);
        assert_eq!(server.http(&format!("{get}\nx-archipelago-invite: {text}")).await.0, 403);
    }
    let (code, reason) = refused(&server, |_| shows(3, Some(&text))).await;
    assert_eq!((code, reason.contains("used up")), (invite, true), "{reason}");
    let (_, listed) = order(&server, "GET /v1/invites", "").await;
    assert_eq!((&listed[0]["used"], &listed[0]["note"]), (&2.into(), &"lab".into()), "{listed}");
    assert!(!listed.to_string().contains(&text));
    // After a revocation and a restart, admitted learners stay and need no invite.
    let id = made["id"].as_str().unwrap();
    assert_eq!(order(&server, &format!("POST /v1/invites/{id}/revoke"), "").await.0, 200);
    assert_eq!(order(&server, "POST /v1/invites/none/revoke", "").await.0, 404);
    server.stop().await;
    let server = Server::start(by_invite(dir.path())).await;
    drop(Client::greet(&server, 1).await);
    let (code, reason) = refused(&server, |_| shows(3, Some(&text))).await;
    assert_eq!((code, reason.contains("revoked")), (invite, true), "{reason}");
    server.stop().await;
}

/// Goal: the download pass of a connection becomes invalid with the ban, before the connection is closed.
#[tokio::test]
async fn a_banned_key_fetches_nothing_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::start(ServeConfig { invite: Some("open-to-friends".into()), ..config(dir.path()) }).await;
    let invited = Hello { invite: Some(Invite::new("open-to-friends")), ..hello(1) };
    let (mut client, welcome) = Client::connect(&server).await.introduced_as(invited).await;
    let pass: String = client.challenge.nonce.iter().map(|byte| format!("{byte:02x}")).collect();
    let shard = format!("GET /v1/runs/{}/shards/0\nx-archipelago-pass: {pass}", welcome.run);
    assert_eq!(server.http(&shard).await.0, 200);
    let ban = format!("{{\"fingerprint\": \"{}\", \"note\": \"\"}}", hello(1).identity.fingerprint());
    assert_eq!(order(&server, "POST /v1/bans", &ban).await.0, 200);
    while !matches!(client.next().await, Message::Bye(_)) {}
    assert_eq!(server.http(&shard).await.0, 403);
    server.stop().await;
}

#[tokio::test]
async fn a_banned_key_goes_at_once_and_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let (client, _) = Client::greet(&server, 1).await;
    let (_, _, body) = server.http("GET /v1/learners").await;
    let learners: Value = serde_json::from_slice(&body).unwrap();
    let name = learners["learners"][0]["fingerprint"].as_str().unwrap().to_owned();
    assert_eq!(name, hello(1).identity.fingerprint().to_string());
    let ban = format!("{{\"fingerprint\": \"{name}\", \"note\": \"noise\"}}");
    assert_eq!(server.http("POST /v1/bans").await.0, 401);
    assert_eq!(order(&server, "POST /v1/bans", "{\"fingerprint\": \"x\"}").await.0, 400);
    assert_eq!(order(&server, "POST /v1/bans", &ban).await.0, 200);
    let banned = u16::from(CloseCode::Banned);
    let end = tokio::time::timeout(PATIENCE, client.end()).await.expect("it goes");
    assert_eq!((end.close, end.reason.contains("banned")), (banned, true), "{}", end.reason);
    assert_eq!(refused(&server, |_| hello(1)).await.0, banned);
    drop(Client::greet(&server, 2).await);
    server.stop().await;

    let server = Server::start(config(dir.path())).await;
    assert_eq!(refused(&server, |_| hello(1)).await.0, banned, "a restart lifts nothing");
    let (_, listed) = order(&server, "GET /v1/bans", "").await;
    assert_eq!((&listed[0]["fingerprint"], &listed[0]["note"]), (&name.as_str().into(), &"noise".into()));
    assert_eq!(order(&server, &format!("POST /v1/bans/{name}/lift"), "").await.0, 200);
    assert_eq!(order(&server, &format!("POST /v1/bans/{name}/lift"), "").await.0, 404);
    // Changes in the folder take effect within about a second.
    for _ in 0..600 {
        let mut client = Client::connect(&server).await;
        client.send(&Message::Hello(hello(1))).await;
        if matches!(client.next().await, Message::Welcome(_)) {
            server.stop().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it is still away");
}

/// Number of learners. The last one trains nothing.
const LEARNERS: u8 = 4;
/// Change of each value in a step. It is so small that a single loss check gives clear evidence.
const STEP: f32 = 1e-5;

/// Returns the settings of a run whose rounds need all learners, and whose loss checks may use half of a core's time.
/// About 45 checks are needed, so the windows are short to keep each check quick.
fn checked(dir: &std::path::Path) -> ServeConfig {
    config(dir).with(|it| {
        it.live.min_quorum = u32::from(LEARNERS).try_into().unwrap();
        it.agreed.learners_start = LEARNERS.into();
        it.identity.exchange.fragments = 2;
        it.identity.corpus_bytes = "2MB".parse().unwrap();
        it.identity.context = Some(16.try_into().unwrap());
        it.no_eval = false;
        it.identity.held_out = 0.001;
        it.checks = 0.5;
    })
}

/// Learner that answers a request with one step of [`STEP`] from Θ̂, against the signs of the gradient on its next
/// windows. An idle one takes no step, but claims one.
struct GradientSignLearner {
    learner: ScriptedLearner,
    trainer: CpuTrainer,
    /// Keeps the parameters of `trainer` at Θ̂.
    replica: Replica,
    shards: Arc<Vec<Vec<u8>>>,
    /// For each fragment, the base version of the last unanswered request.
    asked: Vec<Option<Version>>,
    /// For each fragment, true if the fate of the last update is known.
    is_settled: Vec<bool>,
    /// For each fragment, the number of windows in merged updates.
    done: Vec<u32>,
    idles: bool,
}

impl GradientSignLearner {
    fn new(learner: ScriptedLearner, shards: Arc<Vec<Vec<u8>>>, idles: bool) -> Self {
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

    /// Handles the next message, and answers the requests for which it has leased windows.
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

    /// Returns the tokens of the next batch of leased windows, in lease order, without the first `from` windows.
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

/// Goal: loss checks detect a learner that sends zeros as updates, and the syncer reports it. The learner is suspected
/// and stays connected, but earns no merged tokens. The next process still suspects it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_does_not_train_is_suspected_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(checked(dir.path())).await;
    let mut learners = Vec::new();
    for number in 1..=LEARNERS {
        learners.push(ScriptedLearner::join(&server, number).await);
    }
    let welcome = &learners[0].welcome;
    let shards = Arc::new(shards(&server, welcome.run, &welcome.spec.data.shards).await);
    let rider = usize::from(LEARNERS) - 1;
    let train = |(at, learner)| {
        let mut islet = GradientSignLearner::new(learner, Arc::clone(&shards), at == rider);
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
    // The log shows an event once it is on the tape.
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
