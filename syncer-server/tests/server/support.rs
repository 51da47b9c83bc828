//! Test support: a server, a scripted learner, and raw HTTP.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use archipelago_core::diloco::{Codec, Fragments, Layout, checksum};
use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Bye, Challenge, Fate, FragmentId, Hello, Identity, LearnerState, LeaseGrant,
    LeaseId, Message, Progress, RunId, SUBPROTOCOL, Serial, Signature, Update, Version, Welcome, decode,
    encode, frames,
};
use ed25519_dalek::{Signer, SigningKey};
use futures::{SinkExt, StreamExt};
use syncer_server::{ServeConfig, ServerError, ServerStatus, serve, serve_with_callback};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::protocol::Message as Frame;
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};

/// Maximum wait for an answer: longer than any takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the settings of a small run in `dir` without loss measurements.
pub fn config(dir: &Path) -> ServeConfig {
    ServeConfig::default().with(|it| {
        it.server.dir = dir.to_owned();
        it.identity.preset = "tiny".into();
        it.identity.corpus_bytes = "60kB".parse().unwrap();
        it.identity.exchange.sync_every = 1;
        it.live.rounds.rounds_in_flight = 1;
        it.no_eval = true;
        it.start.admin_token = Some("secret-of-the-owner".into());
    })
}

/// Server in this process.
pub struct Server {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    opened: oneshot::Receiver<()>,
    task: JoinHandle<Result<ServerStatus, ServerError>>,
}

impl Server {
    pub async fn start(config: ServeConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (tell, opened) = oneshot::channel();
        let stopped = async { _ = stopped.await };
        let task = tokio::spawn(serve_with_callback(listener, config, move || _ = tell.send(()), stopped));
        Self { address, stop, opened, task }
    }

    /// Returns the error of a server that refuses to start.
    pub async fn refused(config: ServeConfig) -> ServerError {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let never = std::future::pending();
        tokio::time::timeout(PATIENCE, serve(listener, config, never)).await.unwrap().unwrap_err()
    }

    pub async fn stop(self) -> ServerStatus {
        let Self { stop, opened, task, .. } = self;
        // A server that is stopped before the run is open has no status.
        opened.await.unwrap();
        stop.send(()).unwrap();
        ended(task).await
    }

    /// Waits until the server ends by itself.
    pub async fn ended(self) -> ServerStatus {
        ended(self.task).await
    }

    /// Performs one HTTP exchange. Returns status, head and body.
    pub async fn http(&self, request: &str) -> (u16, String, Vec<u8>) {
        self.exchange(request, "").await
    }

    /// Performs one HTTP exchange with the body `sent`, whose length is among the headers of `request`. Returns status,
    /// head and body.
    pub async fn exchange(&self, request: &str, sent: &str) -> (u16, String, Vec<u8>) {
        http_at(self.address, request, sent).await
    }

    pub async fn status(&self) -> serde_json::Value {
        let (code, _, body) = self.http("GET /v1/status").await;
        assert_eq!(code, 200);
        serde_json::from_slice(&body).unwrap()
    }
}

/// Performs one HTTP exchange with the server at `address`. Returns status, head and body.
pub async fn http_at(address: SocketAddr, request: &str, sent: &str) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (first, rest) = request.split_once('\n').unwrap_or((request, ""));
    let text = format!("{first} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let text = text + &rest.lines().map(|line| format!("{line}\r\n")).collect::<String>() + "\r\n" + sent;
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let at = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..at].to_vec()).unwrap().to_lowercase();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head, answer[at + 4..].to_vec())
}

async fn ended(task: JoinHandle<Result<ServerStatus, ServerError>>) -> ServerStatus {
    tokio::time::timeout(PATIENCE, task).await.expect("the server ends").unwrap().unwrap()
}

/// Returns the value of the header `name` in the head of a response.
pub fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {head}"))
}

/// Learner's end of a socket.
pub struct Client {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    assembler: Assembler,
    /// The server's challenge.
    pub challenge: Challenge,
}

/// Goodbye message and close code at the end of a connection.
#[derive(Debug, PartialEq, Eq)]
pub struct End {
    /// Code in the last message.
    pub bye: u16,
    /// Close code of the WebSocket.
    pub close: u16,
    /// Reason in the last message.
    pub reason: String,
    /// Waiting time in the last message, in milliseconds.
    pub wait_ms: u32,
}

impl Client {
    pub async fn connect(server: &Server) -> Self {
        let request = format!("ws://{}/v1/ws", server.address).into_client_request().unwrap();
        Self::connect_by(request, None).await
    }

    /// Connects with the caller's request and an optional TLS connector.
    pub async fn connect_by(mut request: Request, connector: Option<Connector>) -> Self {
        request.headers_mut().insert("sec-websocket-protocol", SUBPROTOCOL.parse().unwrap());
        // Nagle's algorithm is off, as for learners.
        let (socket, answer) = connect_async_tls_with_config(request, None, true, connector).await.unwrap();
        assert_eq!(answer.headers()["sec-websocket-protocol"], SUBPROTOCOL);
        let challenge = Challenge { run: RunId(0), nonce: [0; 32] };
        let mut client = Self { socket, assembler: Assembler::new(BODY_BYTES_MAX), challenge };
        match client.next().await {
            Message::Challenge(challenge) => client.challenge = challenge,
            other => panic!("not a challenge: {other:?}"),
        }
        client
    }

    /// Connects and introduces itself as learner `number`.
    pub async fn greet(server: &Server, number: u8) -> (Self, Welcome) {
        Self::connect(server).await.introduced(number).await
    }

    /// Introduces itself as learner `number`.
    pub async fn introduced(self, number: u8) -> (Self, Welcome) {
        self.introduced_as(hello(number)).await
    }

    /// Introduces itself with `hello`, which it signs.
    pub async fn introduced_as(mut self, hello: Hello) -> (Self, Welcome) {
        self.send(&Message::Hello(hello)).await;
        match self.next().await {
            Message::Welcome(welcome) => (self, *welcome),
            other => panic!("not a welcome: {other:?}"),
        }
    }

    pub async fn send(&mut self, message: &Message) {
        for frame in frames(encode(message), 7) {
            self.raw(frame).await;
        }
    }

    /// Returns `hello`, signed with the key of its learner number if it has no signature.
    pub fn signed(&self, hello: Hello) -> Hello {
        if hello.signature != Signature::NONE {
            return hello;
        }
        let key = (0..=u8::MAX).map(key).find(|key| identity(key) == hello.identity).expect("a key of ours");
        Hello { signature: sign(&key, &self.challenge), ..hello }
    }

    /// Sends the bytes unchanged, except that an unsigned `Hello` is signed. Ignores a closed connection, which the
    /// caller notices.
    pub async fn raw(&mut self, bytes: Vec<u8>) {
        let bytes = match decode(&bytes) {
            Ok(Message::Hello(hello)) => encode(&Message::Hello(self.signed(hello))),
            _ => bytes,
        };
        drop(self.socket.send(Frame::Binary(bytes.into())).await);
    }

    pub async fn next(&mut self) -> Message {
        self.try_next().await.expect("the connection stands")
    }

    /// Returns the next message, or `None` once the server has closed. Skips pings.
    async fn try_next(&mut self) -> Option<Message> {
        let looking = async {
            loop {
                match self.socket.next().await?.ok()? {
                    Frame::Binary(bytes) => {
                        if let Some(message) = self.assembler.push(&bytes).unwrap() {
                            return Some(message);
                        }
                    }
                    Frame::Close(_) => return None,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.expect("an answer")
    }

    /// Reads to the end, which must be a goodbye and a close with the same code.
    pub async fn end(self) -> End {
        tokio::time::timeout(3 * PATIENCE, self.ended()).await.expect("an end")
    }

    async fn ended(mut self) -> End {
        let mut bye = None;
        loop {
            match self.socket.next().await.expect("a close frame").expect("a close frame") {
                Frame::Binary(bytes) => match self.assembler.push(&bytes).unwrap() {
                    Some(Message::Bye(said)) => bye = Some(said),
                    _ => assert_eq!(bye, None, "the goodbye is the last message"),
                },
                Frame::Close(frame) => {
                    let Bye { code, reason, wait_ms } = bye.expect("a goodbye before the close");
                    let close = frame.expect("a reason").code.into();
                    return End { bye: code.into(), close, reason, wait_ms };
                }
                _ => {}
            }
        }
    }
}

/// Returns the key of learner `number`.
pub fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

pub fn identity(key: &SigningKey) -> Identity {
    Identity(key.verifying_key().to_bytes())
}

pub fn sign(key: &SigningKey, challenge: &Challenge) -> Signature {
    Signature(key.sign(&challenge.text()).to_bytes())
}

pub fn hello(number: u8) -> Hello {
    let identity = identity(&key(number));
    Hello {
        signature: Signature::NONE,
        run: None,
        layout: None,
        identity,
        name: format!("learner {number}"),
        device: "test".into(),
        invite: None,
    }
}

/// Learner that trains nothing and sends what the test requests.
pub struct ScriptedLearner {
    pub client: Client,
    pub welcome: Welcome,
    pub fragments: Fragments,
    pub steps: u64,
    serial: u64,
    /// Fragment and base version of each request for an update that is not answered yet.
    asked: VecDeque<(FragmentId, Version)>,
    /// Number and versions of each unread request to measure the held-out loss.
    pub questions: VecDeque<(u32, Vec<Version>)>,
    /// Granted leases.
    pub leases: Vec<LeaseGrant>,
    /// Number of windows that the learner reports as trained, in lease order.
    pub windows: u32,
}

impl ScriptedLearner {
    pub async fn join(server: &Server, number: u8) -> Self {
        let (client, welcome) = Client::greet(server, number).await;
        Self::of(client, welcome).await
    }

    /// Creates the learner on an open socket.
    pub async fn of(mut client: Client, welcome: Welcome) -> Self {
        let layout = Layout::of(&welcome.spec.model).unwrap();
        let fragments = Fragments::plan(&layout, welcome.spec.exchange.fragments.try_into().unwrap());
        client
            .send(&Message::Ready {
                run: welcome.run,
                layout: welcome.layout,
                batch: welcome.spec.inner.batch,
            })
            .await;
        let mut learner = Self {
            client,
            welcome,
            fragments,
            steps: 1,
            serial: 0,
            asked: VecDeque::new(),
            questions: VecDeque::new(),
            leases: vec![],
            windows: 0,
        };
        learner.report().await;
        learner
    }

    /// Reports its progress, with steps of 1 ms.
    pub async fn report(&mut self) {
        let progress = Progress {
            run: self.welcome.run,
            leases: self.progress(),
            steps: self.steps,
            tokens: self.steps * self.step_tokens(),
            step_ms: 1.0,
            loss: 5.0,
            state: LearnerState::Training,
        };
        self.client.send(&Message::Progress(progress)).await;
    }

    /// Returns the newest four leases with reported windows, and the number of these windows.
    fn progress(&self) -> Vec<(LeaseId, u32)> {
        let mut left = self.windows;
        let mut progress = Vec::new();
        for &LeaseGrant { lease, windows, .. } in &self.leases {
            let done = windows.min(left);
            left -= done;
            progress.extend((done > 0).then_some((lease, done)));
        }
        progress.split_off(progress.len().saturating_sub(4))
    }

    pub fn step_tokens(&self) -> u64 {
        u64::from(self.welcome.spec.inner.batch * self.welcome.spec.model.context)
    }

    /// Returns the next message that `pick` accepts. The time limit allows for many other messages.
    pub async fn until<T>(&mut self, pick: impl Fn(Message) -> Option<T>) -> T {
        tokio::time::timeout(3 * PATIENCE, self.pick(pick)).await.expect("the message that is waited for")
    }

    async fn pick<T>(&mut self, pick: impl Fn(Message) -> Option<T>) -> T {
        loop {
            let message = self.client.next().await;
            if let Message::Collect { fragment, base, .. } = message {
                self.asked.push_back((fragment, base));
            }
            if let Message::Lease { grant, .. } = message {
                self.leases.push(grant);
            }
            if let Message::Measure { number, versions, .. } = &message {
                self.questions.push_back((*number, versions.clone()));
            }
            if let Some(picked) = pick(message) {
                return picked;
            }
        }
    }

    /// Gets one update of a new step merged.
    pub async fn merge(&mut self) {
        self.steps += 1;
        self.report().await;
        let fate = self.answer(|_| {}).await;
        assert!(matches!(fate, Fate::Merged { .. }), "{fate:?}");
    }

    /// Waits for a round and answers it with an update after `edit`. Returns its fate. If the answer is late, as on a
    /// busy machine, answers the next round.
    pub async fn answer(&mut self, edit: impl Fn(&mut Update)) -> Fate {
        for _ in 0..8 {
            let invitation = self.collect().await;
            let mut update = self.update(invitation, 0.01);
            edit(&mut update);
            self.client.send(&Message::Update(update)).await;
            let fate = self.until(|message| match message {
                Message::Receipt { fate, .. } => Some(fate),
                _ => None,
            });
            match fate.await {
                Fate::Late(_) => {}
                fate => return fate,
            }
        }
        panic!("it is always too late");
    }

    /// Waits for a round. A request may arrive before the fate of the previous update.
    pub async fn collect(&mut self) -> (FragmentId, Version) {
        loop {
            if let Some(asked) = self.asked.pop_front() {
                return asked;
            }
            self.until(|message| matches!(message, Message::Collect { .. }).then_some(())).await;
        }
    }

    /// Returns an update of one step in which every value of the fragment fell by `delta`.
    pub fn update(&mut self, asked: (FragmentId, Version), delta: f32) -> Update {
        self.update_of(asked, |_| delta)
    }

    /// Returns an update of one step in which the value at index `i` of the fragment fell by `fell(i)`.
    pub fn update_of(
        &mut self,
        (fragment, base): (FragmentId, Version),
        fell: impl Fn(usize) -> f32,
    ) -> Update {
        self.serial += 1;
        let serial = Serial(self.serial);
        let codec = Codec::new(&self.welcome.spec.exchange).unwrap();
        let values: Vec<f32> = (0..self.fragments.len(fragment)).map(fell).collect();
        let body = codec.encode(self.fragments.segments(fragment).unwrap(), &values);
        let checksum = checksum(&body);
        let (run, tokens) = (self.welcome.run, self.step_tokens());
        Update { run, fragment, serial, base, steps: 1, tokens, body, checksum, seen: Vec::new() }
    }
}
