//! Learners with random progress that move between gateways and record their updates and receipts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_core::rng::Rng;
use archipelago_core::wire::{ConnId, FragmentId, LearnerId, Round, Serial, Version};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::door::{Hears, Says, frame, read};
use super::run::Run;

/// Silence after which a learner abandons its gateway.
const SILENCE: Duration = Duration::from_millis(1_500);
/// Time after which a learner moves to another gateway.
const STAYS: Duration = Duration::from_secs(20);

/// Record of a learner's updates and receipts.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Sent updates: fragment, round and body.
    pub sent: BTreeMap<Serial, (FragmentId, Round, Vec<u8>)>,
    /// Receipts: the version that the update was merged into, or `None`.
    pub told: BTreeMap<Serial, Option<Version>>,
    /// True if an update got two different receipts.
    pub is_confused: bool,
}

/// Simulated learner.
pub struct Learner {
    id: LearnerId,
    run: Arc<Run>,
    rng: Rng,
    book: Arc<Mutex<Book>>,
    /// Updates without a known fate.
    open: BTreeMap<FragmentId, (Round, Serial)>,
    serial: u64,
    conn: u64,
}

impl Learner {
    pub fn new(id: LearnerId, run: Arc<Run>, seed: u64) -> Self {
        let rng = Rng::new(seed ^ u64::from(id.0) << 40);
        Self { id, run, rng, book: Arc::default(), open: BTreeMap::new(), serial: 0, conn: 0 }
    }

    /// Returns the record of its updates and receipts.
    pub fn book(&self) -> Arc<Mutex<Book>> {
        Arc::clone(&self.book)
    }

    /// Trains at one gateway after the other, until the sender of the addresses is dropped.
    pub async fn train(mut self, gateways: watch::Receiver<Vec<SocketAddr>>) {
        while gateways.has_changed().is_ok() {
            let there = gateways.borrow().clone();
            if !there.is_empty() {
                let at = there[self.rng.below(there.len() as u32) as usize];
                self.conn += 1;
                self.visit(at, &gateways).await;
            }
            sleep(Duration::from_millis(10 + u64::from(self.rng.below(500)))).await;
        }
    }

    async fn visit(&mut self, at: SocketAddr, gateways: &watch::Receiver<Vec<SocketAddr>>) {
        let Ok(Ok(socket)) = timeout(SILENCE, TcpStream::connect(at)).await else { return };
        let _ = socket.set_nodelay(true);
        let (mut from, mut to) = socket.into_split();
        let open = self.open.iter().map(|(p, (round, serial))| (*p, *round, *serial)).collect();
        let hello = Says::Hello(self.id, ConnId(self.conn), open);
        if to.write_all(&frame(&hello)).await.is_err() {
            return;
        }
        let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let reader = tokio::spawn(async move { listen(&mut from, &sender).await });
        let leave = Instant::now() + STAYS.mul_f64(0.5 + self.rng.unit());
        let mut work: BTreeMap<FragmentId, (Instant, Round)> = BTreeMap::new();
        while Instant::now() < leave && gateways.has_changed().is_ok() {
            let due = work.values().map(|(at, _)| *at).min().unwrap_or(leave);
            tokio::select! {
                what = timeout(SILENCE, heard.recv()) => match what {
                    Ok(Some(Hears::Ask(p, round))) if !self.open.contains_key(&p) => {
                        let ms = 5 + u64::from(self.rng.below(145));
                        work.insert(p, (Instant::now() + Duration::from_millis(ms), round));
                    }
                    Ok(Some(Hears::Receipt(p, serial, merged))) => self.hear(p, serial, merged),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                },
                () = sleep_until(due) => {
                    let ready = work.extract_if(.., |_, (at, _)| *at <= Instant::now());
                    for (p, (_, round)) in ready.collect::<Vec<_>>() {
                        if self.hand_in(p, round, &mut to).await.is_err() {
                            break;
                        }
                    }
                }
            }
        }
        reader.abort();
    }

    async fn hand_in(&mut self, p: FragmentId, round: Round, to: &mut OwnedWriteHalf) -> std::io::Result<()> {
        if self.open.contains_key(&p) {
            return Ok(());
        }
        self.serial += 1;
        let serial = Serial(self.serial);
        let body = self.run.noise(p, &mut self.rng);
        // From here on the update may have arrived, even if the connection fails.
        self.open.insert(p, (round, serial));
        self.book.lock().unwrap().sent.insert(serial, (p, round, body.clone()));
        to.write_all(&frame(&Says::Update(p, round, serial, body))).await
    }

    fn hear(&mut self, p: FragmentId, serial: Serial, merged: Option<Version>) {
        let mut book = self.book.lock().unwrap();
        let before = book.told.insert(serial, merged);
        book.is_confused |= before.is_some_and(|before| before != merged) || !book.sent.contains_key(&serial);
        if self.open.get(&p).is_some_and(|(_, open)| *open == serial) {
            self.open.remove(&p);
        }
    }
}

async fn listen(from: &mut OwnedReadHalf, to: &tokio::sync::mpsc::UnboundedSender<Hears>) {
    while let Ok(what) = read::<Hears>(from).await {
        if to.send(what).is_err() {
            return;
        }
    }
}
