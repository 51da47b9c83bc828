//! Door of a gateway in tests: learners connect over TCP with a test protocol.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_cluster::Learners;
use archipelago_core::cluster::{GatewayInput, GatewayOutput, UnresolvedUpdate};
use archipelago_core::wire::{ConnId, FragmentId, LearnerId, Round, Serial, Version};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::interval;

use super::run::{Run, STANDING};

/// Maximum interval between two messages to a learner.
pub const ALIVE_EVERY: Duration = Duration::from_millis(300);

/// Message from a learner.
#[derive(Debug, Serialize, Deserialize)]
pub enum Says {
    /// First message: the learner, the number of its connection, and its updates without a known fate.
    Hello(LearnerId, ConnId, Vec<(FragmentId, Round, Serial)>),
    /// Progress for this round.
    Update(FragmentId, Round, Serial, Vec<u8>),
}

/// Message to a learner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Hears {
    /// Sign of life of the gateway.
    Alive,
    /// Request for progress.
    Ask(FragmentId, Round),
    /// Fate of an update.
    Receipt(FragmentId, Serial, Option<Version>),
}

/// Encodes a frame: its length, and a value as MessagePack.
pub fn frame<T: Serialize>(value: &T) -> Vec<u8> {
    // Named fields are required because some values skip default fields.
    let body = rmp_serde::to_vec_named(value).expect("memory takes every byte");
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    bytes
}

/// Reads the next frame.
pub async fn read<T: DeserializeOwned>(from: &mut OwnedReadHalf) -> io::Result<T> {
    let mut body = vec![0; from.read_u32_le().await? as usize];
    from.read_exact(&mut body).await?;
    rmp_serde::from_slice(&body).map_err(io::Error::other)
}

type Lines = Arc<Mutex<BTreeMap<(LearnerId, ConnId), mpsc::UnboundedSender<Hears>>>>;

/// Serves learners until the gateway behind `learners` is gone.
pub async fn keep(run: Arc<Run>, listener: TcpListener, learners: Learners) {
    let Learners { inputs, mut orders } = learners;
    let lines = Lines::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                tokio::spawn(visit(Arc::clone(&run), socket, inputs.clone(), Arc::clone(&lines)));
            }
            order = orders.recv() => match order {
                None => return,
                Some((p, GatewayOutput::Ask(learner, conn, round))) => {
                    tell(&lines, (learner, conn), Hears::Ask(p, round));
                }
                Some((p, GatewayOutput::Receipt(learner, conn, serial, merged))) => {
                    tell(&lines, (learner, conn), Hears::Receipt(p, serial, merged));
                }
                Some((p, GatewayOutput::Refused(learner, conn, serial, _))) => {
                    tell(&lines, (learner, conn), Hears::Receipt(p, serial, None));
                }
                Some(_) => {}
            }
        }
    }
}

fn tell(lines: &Lines, to: (LearnerId, ConnId), what: Hears) {
    if let Some(line) = lines.lock().unwrap().get(&to) {
        let _ = line.send(what);
    }
}

async fn visit(
    run: Arc<Run>,
    socket: TcpStream,
    inputs: mpsc::Sender<(FragmentId, GatewayInput)>,
    lines: Lines,
) {
    let _ = socket.set_nodelay(true);
    let (mut from, mut to) = socket.into_split();
    let Ok(Says::Hello(learner, conn, open)) = read(&mut from).await else { return };
    let (line, mut told) = mpsc::unbounded_channel();
    lines.lock().unwrap().insert((learner, conn), line);
    for fragment in run.ids() {
        let mut mine = open.iter().filter(|(p, ..)| *p == fragment);
        let unsettled = mine.next().map(|&(_, round, serial)| UnresolvedUpdate { round, serial });
        let _ = inputs.send((fragment, GatewayInput::Came(learner, conn, unsettled))).await;
    }
    let speak = async {
        let mut alive = interval(ALIVE_EVERY);
        loop {
            let what = tokio::select! {
                what = told.recv() => what.unwrap_or(Hears::Alive),
                _ = alive.tick() => Hears::Alive,
            };
            if to.write_all(&frame(&what)).await.is_err() {
                return;
            }
        }
    };
    let hear = async {
        while let Ok(Says::Update(fragment, round, serial, body)) = read(&mut from).await {
            let update = run.update(fragment, serial, body);
            let input = GatewayInput::Update(learner, conn, round, update, STANDING);
            let _ = inputs.send((fragment, input)).await;
        }
    };
    tokio::select! {
        () = speak => {}
        () = hear => {}
    }
    lines.lock().unwrap().remove(&(learner, conn));
    for fragment in run.ids() {
        let _ = inputs.send((fragment, GatewayInput::Left(learner, conn))).await;
    }
}
