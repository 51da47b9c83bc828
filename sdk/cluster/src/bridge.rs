//! Bridge between a gateway and a syncer with real learners. It forwards the syncer's messages to owners and their
//! outcomes to the syncer.

mod follower;
mod pending_joins;

use archipelago_core::cluster::{GatewayInput, GatewayOutput, GatewayTerms};
use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::{Answer, Input, LeaderRequest};
use archipelago_core::wire::{ConnId, FragmentId, Round};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::admin_commands::AdminCommandLog;
use crate::gateway::{GatewaySettings, Running, gateway};
use crate::service::Services;
use follower::{Follower, Said};
use pending_joins::{Called, PendingJoins};

/// Maximum number of inputs that wait for the syncer. When the queue is full, the gateway waits.
const WAITING_MAX: usize = 256;

/// Bridge that is ready to run; see [`front`].
pub struct Bridge {
    gateway: Running,
    said: mpsc::UnboundedReceiver<LeaderRequest>,
    inputs: mpsc::Sender<Input>,
    orders: mpsc::Receiver<(FragmentId, GatewayOutput)>,
    to_gateway: mpsc::Sender<(FragmentId, GatewayInput)>,
    reception: PendingJoins,
    following: Follower,
    fragments: Vec<FragmentId>,
    decrees: AdminCommandLog,
}

/// Syncer's end of the bridge.
#[derive(Debug)]
pub struct BridgeHandle {
    /// Sender for the syncer's messages, in order. Each learner has at most one update of a fragment in flight, so the
    /// number of connected learners bounds the queue.
    pub said: mpsc::UnboundedSender<LeaderRequest>,
    /// Receiver of inputs for the syncer, in order.
    pub inputs: mpsc::Receiver<Input>,
}

/// Creates a bridge and the syncer's end of it. Each fragment of the run starts with the Θ̂ of its state and has these
/// terms. The gateway polls the tape every `tick_ms`, at least 1.
#[must_use]
pub fn front(
    services: Services,
    fragments: Vec<(FragmentId, GatewayTerms)>,
    initial: Vec<FragmentState>,
    tick_ms: u64,
) -> (Bridge, BridgeHandle) {
    let (said, to_front) = mpsc::unbounded_channel();
    let (inputs, to_syncer) = mpsc::channel(WAITING_MAX);
    let ids: Vec<FragmentId> = fragments.iter().map(|(fragment, _)| *fragment).collect();
    let following = Follower::new(services.clone(), &fragments, initial);
    let settings = GatewaySettings { fragments, tick_ms };
    let (gateway, learners) = gateway(services.clone(), settings);
    let front = Bridge {
        gateway,
        decrees: AdminCommandLog::of(&services),
        reception: PendingJoins::new(services, ids.clone()),
        said: to_front,
        inputs,
        orders: learners.orders,
        to_gateway: learners.inputs,
        following,
        fragments: ids,
    };
    (front, BridgeHandle { said, inputs: to_syncer })
}

/// Error: the syncer is gone.
struct Alone;

impl Bridge {
    /// Runs until `stop` resolves or the syncer is gone.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let Self { gateway, mut said, inputs, mut orders, to_gateway, fragments, decrees, .. } = self;
        let (mut reception, mut following) = (self.reception, self.following);
        let (ups, mut queued) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(gateway.run(std::future::pending()));
        // A separate task drains the gateway's output while the gateway accepts no input.
        tasks.spawn(async move {
            while let Some(up) = queued.recv().await {
                if to_gateway.send(up).await.is_err() {
                    return;
                }
            }
        });
        let desk = BridgeLoop { ups, inputs, fragments, decrees };
        tokio::pin!(stop);
        loop {
            let done = tokio::select! {
                () = &mut stop => return,
                up = said.recv() => match up {
                    Some(up) => {
                        desk.pass_on(&mut reception, up);
                        Ok(())
                    }
                    None => return,
                },
                order = orders.recv() => match order {
                    Some((fragment, order)) => desk.order(&mut following, fragment, order).await,
                    None => return,
                },
                called = reception.next() => desk.called(called).await,
                (fragment, seq, said) = following.next() => {
                    desk.followed(&mut reception, fragment, seq, said).await
                }
            };
            if done.is_err() {
                return;
            }
        }
    }
}

struct BridgeLoop {
    ups: mpsc::UnboundedSender<(FragmentId, GatewayInput)>,
    inputs: mpsc::Sender<Input>,
    fragments: Vec<FragmentId>,
    decrees: AdminCommandLog,
}

impl BridgeLoop {
    async fn tell(&self, input: Input) -> Result<(), Alone> {
        self.inputs.send(input).await.map_err(|_| Alone)
    }

    /// Sends an input to the gateway of each fragment.
    fn up(&self, input: &GatewayInput) {
        for &fragment in &self.fragments {
            // The send fails only if the gateway has ended, and then the bridge ends too.
            let _ = self.ups.send((fragment, input.clone()));
        }
    }

    fn pass_on(&self, reception: &mut PendingJoins, said: LeaderRequest) {
        match said {
            LeaderRequest::Introduce(conn, hello) => reception.introduce(conn, hello),
            LeaderRequest::Came(learner, conn) => self.up(&GatewayInput::Came(learner, conn, None)),
            LeaderRequest::Left(learner, conn) => self.up(&GatewayInput::Left(learner, conn)),
            LeaderRequest::Gone(conn) => self.forget(reception, conn),
            LeaderRequest::Pace(step_ms) => self.up(&GatewayInput::Pace(step_ms)),
            LeaderRequest::Enough => {
                let decrees = self.decrees.clone();
                // The task ends by itself or with the runtime.
                tokio::spawn(async move { decrees.finish().await });
            }
            LeaderRequest::Answer(fragment, learner, conn, round, answer) => {
                let input = match answer {
                    Answer::Update(update, standing) => {
                        GatewayInput::Update(learner, conn, round, *update, standing)
                    }
                    Answer::Nothing => GatewayInput::Pass(learner, conn, round),
                };
                let _ = self.ups.send((fragment, input));
            }
        }
    }

    fn forget(&self, reception: &mut PendingJoins, conn: ConnId) {
        if let Some(learner) = reception.forget(conn) {
            self.up(&GatewayInput::WaitsNoMore(learner));
        }
    }

    async fn called(&self, called: Called) -> Result<(), Alone> {
        match called {
            Called::In(learner, input) => {
                // The learner may have waited on another connection.
                self.up(&GatewayInput::WaitsNoMore(learner));
                self.tell(*input).await
            }
            Called::Waits(learner) => {
                self.up(&GatewayInput::Waits(learner));
                Ok(())
            }
        }
    }

    async fn order(
        &self,
        following: &mut Follower,
        fragment: FragmentId,
        order: GatewayOutput,
    ) -> Result<(), Alone> {
        match order {
            GatewayOutput::Ask(learner, conn, round) => {
                self.tell(Input::Asked { fragment, learner, conn, round }).await
            }
            GatewayOutput::Receipt(learner, conn, serial, None) => {
                self.tell(Input::Unmerged { fragment, learner, conn, serial, refusal: None }).await
            }
            GatewayOutput::Refused(learner, conn, serial, why) => {
                self.tell(Input::Unmerged { fragment, learner, conn, serial, refusal: Some(why) }).await
            }
            // Merges reach all learners at once through the tape's records.
            GatewayOutput::Receipt(_, _, _, Some(_)) => Ok(()),
            GatewayOutput::Seen(seq, record) => {
                following.add(fragment, seq, *record);
                Ok(())
            }
            GatewayOutput::Reply(_) | GatewayOutput::Read(_) => Ok(()),
        }
    }

    async fn followed(
        &self,
        reception: &mut PendingJoins,
        fragment: FragmentId,
        seq: u64,
        said: Said,
    ) -> Result<(), Alone> {
        let is_last = matches!(said, Said::Finished);
        match said {
            Said::Merged(followed) => self.tell(Input::Followed(Box::new(followed))).await?,
            Said::Finished => self.tell(Input::Closed(fragment)).await?,
            Said::Nothing => self.tell(Input::Over(fragment, Round(seq))).await?,
        }
        // After the last record, waiting learners must not wait for another one.
        let reached = if is_last { u64::MAX } else { seq };
        for (learner, input) in reception.reached(fragment, reached) {
            self.up(&GatewayInput::WaitsNoMore(learner));
            self.tell(input).await?;
        }
        Ok(())
    }
}
