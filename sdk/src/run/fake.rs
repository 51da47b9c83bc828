//! A syncer for tests: the real core behind real sockets, on threads of this process.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode as SocketCode};
use tokio_tungstenite::tungstenite::{self, Message as Frame, WebSocket};

use archipelago_core::data::encode_shard;
use archipelago_core::diloco::syncer::{Event, Host, Input, Syncer, SyncerConfig};
use archipelago_core::diloco::{Layout, MergeJob, Version};
use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Bye, Challenge, ConnId, FragmentId, Hello, Message, RunId, SUBPROTOCOL,
    encode, frames,
};
use archipelago_runtime::platform::Clock;

use super::Address;
use super::fake_run::{of_adapters, spec};

/// Injected faults of a fake syncer, and a record of what it received.
#[derive(Default)]
pub(super) struct Script {
    /// Goodbyes in answer to the next greetings, before one is admitted.
    pub(super) goodbyes: Vec<Bye>,
    /// Number of answers with a shard that break off half way.
    pub(super) broken_shards: u32,
    /// Number of answers with a fragment that break off half way.
    pub(super) broken_fragments: u32,
    /// Number of requests for a fragment that are told to retry a second later.
    pub(super) busy: u32,
    /// Receipts after which each connection is cut.
    pub(super) cut_after_receipts: Option<u32>,
    /// Receipts after which the next connection falls silent without closing.
    pub(super) mute_after_receipts: Option<u32>,
    /// Bytes sent instead of the answer to the next greeting.
    pub(super) garbage: Option<Vec<u8>>,
    pub(super) hellos: Vec<Hello>,
    pub(super) byes: Vec<Bye>,
    /// Batches of the learners' `Ready` messages.
    pub(super) batches: Vec<u32>,
    /// Number of received updates.
    pub(super) updates: u32,
    /// Frozen weights of the run, if it trains adapters of [`super::fake_run::adapters`].
    pub(super) frozen: Option<Vec<u8>>,
    /// Number of answers with a part of the frozen weights that break off half way.
    pub(super) broken_parts: u32,
    /// Number of answers with a part of the frozen weights that have a wrong byte.
    pub(super) wrong_parts: u32,
    /// Heads of the HTTP requests.
    pub(super) requests: Vec<String>,
}

pub(super) struct FakeSyncer {
    pub(super) address: Address,
    world: Arc<Mutex<World>>,
}

struct World {
    clock: Clock,
    syncer: Syncer,
    shard: Vec<u8>,
    desk: Desk,
    next_conn: u64,
    script: Script,
}

/// Messages waiting to be sent on each connection, and jobs waiting to be merged.
#[derive(Default)]
struct Desk {
    conns: BTreeMap<ConnId, Vec<Message>>,
    jobs: Vec<MergeJob>,
}

impl Host for Desk {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        for conn in conns {
            if let Some(messages) = self.conns.get_mut(conn) {
                messages.push(message.clone());
            }
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.send(&[conn], Message::Bye(bye));
    }

    fn merge(&mut self, job: MergeJob) {
        self.jobs.push(job);
    }

    fn note(&mut self, _syncer: &Syncer, _event: Event) {}

    fn finished(&mut self) {}
}

impl FakeSyncer {
    /// Listens on a free port of this machine.
    pub(super) fn start(script: Script) -> Self {
        let tokens: Vec<u32> = (0..4_000).map(|i| i % 251).collect();
        let shard = encode_shard(&tokens, 2).unwrap();
        let run_spec = match &script.frozen {
            Some(bytes) => of_adapters(spec(&shard), bytes),
            None => spec(&shard),
        };
        let layout = Layout::of(&run_spec.model).unwrap();
        let theta = vec![0.0; layout.len()];
        let syncer = Syncer::new(RunId(7), run_spec, SyncerConfig::default(), &layout, &theta).unwrap();
        let world =
            World { clock: Clock::start(), syncer, shard, desk: Desk::default(), next_conn: 1, script };
        let world = Arc::new(Mutex::new(world));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let shared = Arc::clone(&world);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let world = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &world));
            }
        });
        Self { address, world }
    }

    /// Passes `input` to the core, as an order of the owner.
    pub(super) fn order(&self, input: Input) {
        lock(&self.world).handle(input);
    }

    pub(super) fn script<R>(&self, look: impl FnOnce(&mut Script) -> R) -> R {
        look(&mut lock(&self.world).script)
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().expect("a test thread panicked")
}

fn serve(mut stream: TcpStream, world: &Mutex<World>) {
    let mut head = [0; 2_048];
    let Ok(count) = stream.peek(&mut head) else { return };
    let text = String::from_utf8_lossy(&head[..count]).into_owned();
    if text.starts_with("GET /v1/ws ") {
        #[expect(clippy::result_large_err, reason = "the library wants it so")]
        let agree = |_: &Request, mut response: Response| {
            response.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(SUBPROTOCOL));
            Ok(response)
        };
        stream.set_read_timeout(Some(Duration::from_millis(1_000))).unwrap();
        let socket = tungstenite::accept_hdr(stream, agree).unwrap();
        socket.get_ref().set_read_timeout(Some(Duration::from_millis(3))).unwrap();
        World::talk(world, socket);
    } else {
        stream.read_exact(&mut head[..count]).unwrap();
        let answer = lock(world).answer(&text);
        // The client may be gone.
        let _sent = stream.write_all(&answer);
    }
}

impl World {
    fn talk(world: &Mutex<Self>, mut socket: WebSocket<TcpStream>) {
        let conn = {
            let mut world = lock(world);
            world.next_conn += 1;
            let conn = ConnId(world.next_conn);
            let challenge = Challenge { run: RunId(7), nonce: [3; 32] };
            world.desk.conns.insert(conn, vec![Message::Challenge(challenge)]);
            conn
        };
        let mut assembler = Assembler::new(BODY_BYTES_MAX);
        let (mut receipts, mut mute) = (0, false);
        loop {
            match socket.read() {
                Ok(Frame::Binary(frame)) => {
                    if let Some(message) = assembler.push(&frame).unwrap() {
                        lock(world).take(conn, message);
                    }
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error))
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
            let (messages, cut, garbage) = {
                let mut world = lock(world);
                let now = world.clock.now();
                if world.syncer.deadline(now).is_some() {
                    world.handle(Input::Timeout);
                }
                let garbage = if world.script.hellos.is_empty() { None } else { world.script.garbage.take() };
                let mut messages = world.desk.conns.get_mut(&conn).map(std::mem::take).unwrap_or_default();
                mute |= world.script.mute_after_receipts.take_if(|after| receipts >= *after).is_some();
                if mute {
                    messages.clear();
                }
                (messages, world.script.cut_after_receipts, garbage)
            };
            if let Some(garbage) = garbage {
                socket.send(Frame::Binary(garbage.into())).unwrap();
                continue;
            }
            for message in messages {
                receipts += u32::from(matches!(message, Message::Receipt { .. }));
                let bye = if let Message::Bye(bye) = &message { Some(bye.clone()) } else { None };
                for frame in frames(encode(&message), receipts) {
                    // A closed connection shows at the next read.
                    let _sent = socket.send(Frame::Binary(frame.into()));
                }
                if let Some(Bye { code, reason, .. }) = bye {
                    let code = SocketCode::from(u16::from(code));
                    let _sent = socket.close(Some(CloseFrame { code, reason: reason.into() }));
                }
            }
            if cut.is_some_and(|cut| receipts >= cut) {
                break;
            }
        }
        let mut world = lock(world);
        world.desk.conns.remove(&conn);
        world.handle(Input::Disconnected(conn));
    }

    fn take(&mut self, conn: ConnId, message: Message) {
        match &message {
            Message::Hello(hello) => {
                self.script.hellos.push(hello.clone());
                if !self.script.goodbyes.is_empty() {
                    let bye = self.script.goodbyes.remove(0);
                    return self.desk.conns.entry(conn).or_default().push(Message::Bye(bye));
                }
                if self.script.garbage.is_some() {
                    return;
                }
            }
            Message::Bye(bye) => self.script.byes.push(bye.clone()),
            Message::Ready { batch, .. } => self.script.batches.push(*batch),
            Message::Update(_) => self.script.updates += 1,
            _ => {}
        }
        self.handle(Input::Message(conn, message));
    }

    fn handle(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.syncer.drive(self.clock.now(), input, &mut self.desk);
            inputs.extend(self.desk.jobs.drain(..).map(|job| Input::Merged(Box::new(job.run()))));
        }
    }

    /// Returns the complete HTTP answer to a request.
    fn answer(&mut self, head: &str) -> Vec<u8> {
        self.script.requests.push(head.to_owned());
        let path: Vec<&str> = head.split(' ').nth(1).unwrap_or_default().split('/').collect();
        let lower = head.to_ascii_lowercase();
        let start = lower.split("range: bytes=").nth(1).and_then(|rest| rest.split('-').next());
        let start: usize = start.map_or(0, |start| start.parse().unwrap());
        let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
        let reply = |head: &str, announced: usize, body: &[u8]| {
            let head = format!("HTTP/1.1 {head}\r\ncontent-length: {announced}\r\nconnection: close\r\n\r\n");
            [head.as_bytes(), body].concat()
        };
        match path.as_slice() {
            ["", "v1", "runs", _, "fragments", fragment, _] => {
                let Ok(fragment) = fragment.parse().map(FragmentId) else {
                    return reply("404 Not Found", 0, &[]);
                };
                if self.script.busy > 0 {
                    self.script.busy -= 1;
                    return reply("503 Service Unavailable\r\nretry-after: 1", 0, &[]);
                }
                match self.syncer.hat(fragment) {
                    Some((Version(current), values)) => {
                        let body = archipelago_core::diloco::halves::to_bytes(&values);
                        let head = format!("{status}\r\nx-archipelago-version: {current}");
                        let rest = &body[start..];
                        if self.script.broken_fragments > 0 {
                            self.script.broken_fragments -= 1;
                            return reply(&head, rest.len(), &rest[..rest.len() / 2]);
                        }
                        reply(&head, rest.len(), rest)
                    }
                    None => reply("503 Service Unavailable", 0, &[]),
                }
            }
            ["", "v1", "runs", _, "frozen", part] => {
                let frozen = self.syncer.spec().frozen.clone();
                let range = part.parse().ok().and_then(|part| frozen?.range(part));
                let (Some(bytes), Some((from, to))) = (&self.script.frozen, range) else {
                    return reply("404 Not Found", 0, &[]);
                };
                let mut rest = bytes[from as usize + start..to as usize].to_vec();
                if self.script.broken_parts > 0 {
                    self.script.broken_parts -= 1;
                    return reply(status, rest.len(), &rest[..rest.len() / 2]);
                }
                if self.script.wrong_parts > 0 {
                    self.script.wrong_parts -= 1;
                    rest[0] ^= 1;
                }
                reply(status, rest.len(), &rest)
            }
            ["", "v1", "runs", _, "shards", "0"] => {
                let rest = &self.shard[start..];
                if self.script.broken_shards > 0 {
                    self.script.broken_shards -= 1;
                    return reply(status, rest.len(), &rest[..rest.len() / 2]);
                }
                reply(status, rest.len(), rest)
            }
            _ => reply("404 Not Found", 0, &[]),
        }
    }
}
