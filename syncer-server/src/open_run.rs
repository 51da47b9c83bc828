//! One served run: its routes, and the work behind them.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use archipelago_core::diloco::syncer::{LeaderRequest, Syncer};
use archipelago_core::wire::{Bye, CloseCode};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::actor::{Actor, ActorHandle, Command, Final, Mailbox, Trusted};
use crate::clock::Clock;
use crate::cluster_node::{AdminBroadcast, Hearing, Membership};
use crate::config::{ServeConfig, syncer_config};
use crate::connection::Context;
use crate::errors::ServerError;
use crate::evaluate::{self, Judge, Prover};
use crate::invites::InviteStore;
use crate::listener::ConnectionShare;
use crate::meters::Meters;
use crate::prepare::{Plan, Prepared, alert_terms, owner_token, to_lead};
use crate::progress::{Cancellation, Progress, Unit};
use crate::status::{AlertTerms, LogEvent, ServerStatus, StatusTracker};
use crate::store::{Snapshot, Store, temporary};
use crate::webhook::Webhook;
use crate::{http, links};

/// Time for connections to close at the end.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);

/// Time for the preparation of a run to notice a cancellation.
const CANCELLED_WITHIN: Duration = Duration::from_secs(1);

/// Size in bytes from which on a snapshot without merges is not written again.
const IDLE_BYTES_SAVED: u64 = 100_000_000;

/// An open run. It does nothing until [`Self::work`] is awaited.
pub(crate) struct OpenRun {
    /// State for its routes.
    pub(crate) app: Arc<http::App>,
    /// Turns true once the run has ended.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Leads the run until it is stopped, saves it, and returns its last status. Fails with `Disk`, `DirInUse`,
    /// `Internal` or `System`.
    pub(crate) work: Pin<Box<dyn Future<Output = Result<ServerStatus, ServerError>> + Send>>,
}

/// Resources that a server of several runs gives to each run.
pub(crate) struct HostResources {
    /// Token of the server's owner, accepted like the run's own token.
    pub(crate) token: String,
    /// The run's share of long-lived connections.
    pub(crate) share: ConnectionShare,
}

/// Returns the goodbye for learners when the program ends.
pub(crate) fn restart() -> Bye {
    Bye::new(CloseCode::Restart, "the syncer stops for now: come back later")
}

impl OpenRun {
    /// Starts or resumes the run of `config`, until `shutdown` resolves with the goodbye for its learners. `links` are
    /// the pages of the run; `host` is set on a server of several runs.
    ///
    /// # Errors
    /// Those of [`crate::validate`]; `Disk`, `Internal` or `System`.
    pub(crate) async fn open(
        config: &ServeConfig,
        links: Vec<String>,
        host: Option<HostResources>,
        shutdown: impl Future<Output = Bye> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let clock = Clock::start();
        let mut shutdown = Box::pin(shutdown);
        let Setup { config, scratch, mut prepared, node } = Setup::new(config, shutdown.as_mut()).await?;
        prepared.facts.links = links;
        let webhook = config.alerts.webhook.as_deref().map(Webhook::start).transpose()?;
        let terms = alert_terms(&config)?;
        let run = prepared.syncer.run();
        let complete = prepared.syncer.is_over();
        tracing::info!(%run, resumed = prepared.resumed, complete, dir = %config.server.dir.display(), "run is ready");

        let (handle, mailbox) = ActorHandle::new();
        let (stop, stopping) = watch::channel(false);
        let (open, all_closed) = mpsc::channel(1);
        let meters = Arc::new(Meters::from(prepared.carried.traffic));
        let context = context(&prepared, handle.clone(), &meters);
        let broadcast = node.as_ref().map(|(_, hearing)| hearing.herald());
        let (mut node, mut leader_requests) = (node.map(ClusterTasks::new), None);
        if let Some(node) = &mut node {
            let invite_store = Arc::clone(prepared.admission.invite_store());
            let connected = node.connect(prepared.syncer, &handle, invite_store)?;
            prepared.syncer = connected.0;
            leader_requests = Some(connected.1);
        }
        let app = Arc::new(app(&config, &prepared, context, host, broadcast, stopping.clone(), open)?);

        let checks = prepared.evaluator.is_some() && config.checks > 0.0;
        let parts =
            RunParts { config, prepared, clock, meters, mailbox, webhook, terms, leader_requests, checks };
        let work = Work { app: Arc::clone(&app), parts, handle, node, scratch, stop, all_closed };
        Ok(Self { app, stopping, work: Box::pin(work.run(shutdown)) })
    }
}

/// Work of an open run.
struct Work {
    app: Arc<http::App>,
    parts: RunParts,
    handle: ActorHandle,
    node: Option<ClusterTasks>,
    scratch: Option<TempDir>,
    /// Ends the connections.
    stop: watch::Sender<bool>,
    /// Resolves when all connections are closed, since each holds a sender.
    all_closed: mpsc::Receiver<()>,
}

impl Work {
    async fn run(self, shutdown: impl Future<Output = Bye>) -> Result<ServerStatus, ServerError> {
        let Self { app, mut parts, handle, mut node, scratch, stop, mut all_closed } = self;
        let Prepared { syncer, store, admission, .. } = &parts.prepared;
        let (run, store, admission) = (syncer.run(), Arc::clone(store), admission.clone());
        let exit_when_finished = parts.config.server.exit_when_finished;
        // The routes hold the sender that `all_closed` waits for.
        match &mut node {
            Some(node) => node.obey(app),
            None => drop(app),
        }
        parts.spawn_loss_checks(&handle)?;
        let mut measuring = parts.spawn_evaluation(&handle);
        let over = handle.over_watch();
        tokio::spawn(admission.watch(handle.clone()));
        drop(handle);
        let mut is_lost = false;
        let shutdown = async {
            tokio::select! {
                bye = shutdown => bye,
                () = lost(&mut node) => {
                    is_lost = true;
                    restart()
                }
            }
        };
        let until = until(shutdown, over, &mut measuring, exit_when_finished);
        let ended = parts.into_actor().run(until).await;
        stop.send_replace(true);
        if let Some(node) = &mut node {
            node.stop_obeying();
        }
        drop(tokio::time::timeout(GOODBYE_WITHIN, all_closed.recv()).await);
        // A measurement that still runs is no longer needed. Wait for it briefly, since it reads the folder.
        if let Some(measuring) = measuring.filter(|measuring| !measuring.is_finished()) {
            drop(tokio::time::timeout(GOODBYE_WITHIN, measuring).await);
        }
        let is_node = node.is_some();
        if let Some(node) = node {
            node.stop_leading().await;
        }
        let Final { snapshot, status } = ended?;
        // Runs led by other processes are stored in their shared storage.
        if !is_node {
            save(store, snapshot, status.core.tokens_merged).await?;
        }
        let (finished, tokens_merged) = (status.core.finished, status.core.tokens_merged);
        tracing::info!(%run, finished, tokens_merged, "saved and stopped");
        drop(scratch);
        if is_lost {
            let why = "lost contact with the other processes of the cluster: restart this process".to_owned();
            return Err(ServerError::Cluster { why });
        }
        Ok(status)
    }
}

/// Prepared run of this process, and its place in a cluster.
struct Setup {
    /// Settings that the processes of a cluster agreed on.
    config: ServeConfig,
    /// Working folder of a cluster process, deleted at the end.
    scratch: Option<TempDir>,
    prepared: Prepared,
    node: Option<(Membership, Hearing)>,
}

impl Setup {
    /// Prepares the run of `config` and joins its cluster, unless `shutdown` resolves first.
    async fn new(
        config: &ServeConfig,
        shutdown: Pin<&mut (impl Future<Output = Bye> + ?Sized)>,
    ) -> Result<Self, ServerError> {
        let part = config.server.cluster.part()?;
        let (mut config, scratch) = if part.is_some() { of_a_part(config)? } else { (config.clone(), None) };
        let mut prepared = prepare(&config, shutdown).await?;
        let node = match part.zip(prepared.shared.take()) {
            Some((part, shared)) => Some(Membership::join(part, &config, shared).await?),
            None => None,
        };
        if let Some((_, hearing)) = &node {
            config = hearing.config().clone();
            let core = syncer_config(&config)?;
            prepared.syncer.retune(core.quorum, core.merge);
            prepared.syncer.limit(core.learners_max, core.cohort_max, core.stop_tokens);
        }
        Ok(Self { config, scratch, prepared, node })
    }
}

/// Tasks that connect a process to the rest of its cluster.
struct ClusterTasks {
    membership: Membership,
    /// Owner's commands, until [`Self::obey`].
    hearing: Option<Hearing>,
    obeying: Option<JoinHandle<()>>,
    leading: JoinHandle<()>,
    stop_leading: oneshot::Sender<()>,
    /// Resolves when contact with the leaders is lost.
    lost: Option<oneshot::Receiver<()>>,
}

impl ClusterTasks {
    /// Begins to lead rounds, if that is the role of this process.
    fn new((membership, hearing): (Membership, Hearing)) -> Self {
        let (stop_leading, stopped) = oneshot::channel::<()>();
        let leading = tokio::spawn(membership.lead(&hearing, async { drop(stopped.await) }));
        Self { membership, hearing: Some(hearing), obeying: None, leading, stop_leading, lost: None }
    }

    /// Connects `syncer` to the leaders of its fragments. Returns it with the channel to them.
    ///
    /// # Errors
    /// `Internal`: the codec of the run cannot be used.
    fn connect(
        &mut self,
        syncer: Syncer,
        handle: &ActorHandle,
        invite_store: Arc<InviteStore>,
    ) -> Result<(Syncer, mpsc::UnboundedSender<LeaderRequest>), ServerError> {
        let (syncer, requests, lost) = self.membership.face(syncer, handle.clone(), invite_store)?;
        self.lost = Some(lost);
        Ok((syncer, requests))
    }

    /// Begins to apply the owner's commands to the run of `app`.
    fn obey(&mut self, app: Arc<http::App>) {
        let hearing = self.hearing.take();
        self.obeying = hearing
            .map(|hearing| tokio::spawn(hearing.run(move |command| http::obey(Arc::clone(&app), command))));
    }

    fn stop_obeying(&mut self) {
        if let Some(obeying) = self.obeying.take() {
            obeying.abort();
        }
    }

    /// Hands this process's rounds over to others.
    async fn stop_leading(self) {
        drop(self.stop_leading);
        // Fails only if that task panicked, which has been logged.
        drop(self.leading.await);
    }
}

/// Resolves when contact with the leaders of the rounds is lost; never outside a cluster.
async fn lost(node: &mut Option<ClusterTasks>) {
    let lost = node.as_mut().and_then(|node| node.lost.take());
    let is_lost = match lost {
        Some(lost) => lost.await.is_ok(),
        None => false,
    };
    if !is_lost {
        std::future::pending().await
    }
}

/// Parts of a run that its actor and the tasks next to it are made of.
struct RunParts {
    config: ServeConfig,
    prepared: Prepared,
    clock: Clock,
    meters: Arc<Meters>,
    mailbox: Mailbox,
    webhook: Option<Webhook>,
    terms: AlertTerms,
    leader_requests: Option<mpsc::UnboundedSender<LeaderRequest>>,
    /// True if single updates get loss checks.
    checks: bool,
}

impl RunParts {
    /// Starts the loss checks of single updates, if they are on. The task ends with the actor.
    ///
    /// # Errors
    /// `Internal`: the engine cannot be built.
    fn spawn_loss_checks(&self, handle: &ActorHandle) -> Result<(), ServerError> {
        let Prepared { syncer, decoder, frozen, corpus, .. } = &self.prepared;
        let Some(decoder) = decoder.as_ref().filter(|_| self.checks) else { return Ok(()) };
        let prover = Prover::new(syncer, decoder, frozen.clone(), Arc::clone(corpus), self.config.checks)?;
        drop(tokio::spawn(evaluate::prove(prover, handle.clone(), self.clock)));
        Ok(())
    }

    /// Starts the measurement of the held-out loss, if this process measures it.
    fn spawn_evaluation(&mut self, handle: &ActorHandle) -> Option<JoinHandle<()>> {
        let mut evaluator = self.prepared.evaluator.take()?;
        let Prepared { syncer, corpus, store, carried, tape, .. } = &self.prepared;
        // Rollback needs a tape.
        if tape.keeps() && !self.config.no_undo {
            let losses = carried.history.evaluations.iter().map(|evaluation| evaluation.loss);
            evaluator = evaluator.judged_by(Judge::new(Arc::clone(store), syncer.run(), losses));
        }
        let (every, written) = (self.config.eval_every.0, carried.history.written());
        let measured =
            evaluate::run(evaluator, handle.clone(), Arc::clone(corpus), every, self.clock, written);
        Some(tokio::spawn(measured))
    }

    fn into_actor(self) -> Actor {
        let Self { config, prepared, clock, meters, mailbox, webhook, terms, leader_requests, checks } = self;
        let Prepared { syncer, store, carried, facts, mut tape, resumed, forked, snapshot_seq, .. } =
            prepared;
        let measured_by = carried.history.measured_by();
        let trusted =
            config.evaluator.map(|learner| Trusted::new(learner, config.eval_every.0, measured_by, &syncer));
        Actor {
            board: StatusTracker::new(facts, carried, tape.take_log(), terms),
            syncer,
            clock,
            meters,
            store,
            snapshot_every: config.snapshot_every.0,
            mailbox,
            tape,
            snapshot_seq,
            started: LogEvent::Started { resumed, forked: forked.map(|(run, at)| (run.to_string(), at)) },
            webhook,
            leader_requests,
            checks,
            trusted,
        }
    }
}

/// Returns the state of the routes of a run.
///
/// # Errors
/// `Config`: an allowed origin is invalid.
fn app(
    config: &ServeConfig,
    prepared: &Prepared,
    context: Context,
    host: Option<HostResources>,
    herald: Option<AdminBroadcast>,
    stopping: watch::Receiver<bool>,
    open: mpsc::Sender<()>,
) -> Result<http::App, ServerError> {
    let Prepared { syncer, corpus, store, decoder, frozen, held_out, owner, .. } = prepared;
    let (host_token, share) = host.map(|HostResources { token, share }| (token, share)).unzip();
    Ok(http::App {
        context,
        corpus: Arc::clone(corpus),
        held_out: held_out.clone(),
        run: syncer.run().to_string(),
        pages: config.server.pages.clone(),
        allow_origin: links::allowed_origins(config)?,
        owner: owner.clone(),
        host_token,
        share,
        settings: http::Settings::new(config),
        herald,
        watchers: 0.into(),
        foreign: 0.into(),
        reports: http::Reports::default(),
        unread: http::Unread::default(),
        work: http::WorkLimit::of_a_run(),
        orders: http::WorkLimit::of_a_run(),
        frozen: frozen.clone().map(http::frozen_bytes),
        hats: http::Hats::new(syncer.fragments().count().into()),
        slots: http::TransferSlots::new(http::Terms::default()),
        exports: http::Exports::new(
            syncer.spec().clone(),
            *decoder,
            Arc::clone(store),
            config.licence.clone(),
        ),
        next_conn: AtomicU64::new(1),
        stopping,
        open,
    })
}

/// Saves the last `snapshot` of a run that has merged `tokens_merged`, if that is worth its time. Before the first
/// merge, a snapshot only adds the curves of an idle run, which does not justify writing a large model again.
///
/// # Errors
/// `Disk`, `Internal`.
async fn save(store: Arc<Store>, snapshot: Snapshot, tokens_merged: u64) -> Result<(), ServerError> {
    let total = snapshot.tensor_bytes();
    if tokens_merged == 0 && total >= IDLE_BYTES_SAVED {
        return Ok(());
    }
    blocking(move || {
        let progress = Progress::of(&Cancellation::default(), "saving the run", total, Unit::Bytes);
        store.save_with(&snapshot, &progress)
    })
    .await?
    .map(drop)
}

/// Leads rounds of the run of `config` until `shutdown`, without serving learners.
///
/// # Errors
/// As [`OpenRun::open`].
pub(crate) async fn lead(
    config: ServeConfig,
    tell: impl FnOnce(),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    let Some(part) = config.server.cluster.part()? else {
        return Err(ServerError::Config {
            why: "give --role owner to lead rounds without serving learners".to_owned(),
        });
    };
    let (config, scratch) = of_a_part(&config)?;
    let ours = config.clone();
    let shared = blocking(move || to_lead(&ours)).await??;
    let (membership, hearing) = Membership::join(part, &config, shared).await?;
    tell();
    let over = membership.finished();
    let stop = async move {
        tokio::select! {
            () = shutdown => {}
            () = over, if config.server.exit_when_finished => {}
        }
    };
    let leading = membership.lead(&hearing, stop);
    tokio::select! {
        () = leading => {}
        () = hearing.run(|_| std::future::ready(())) => {}
    }
    drop(scratch);
    Ok(())
}

/// Returns the settings of one process of several, and its working folder, which is deleted at the end.
fn of_a_part(config: &ServeConfig) -> Result<(ServeConfig, Option<TempDir>), ServerError> {
    let folder = config.server.dir.join("processes");
    clear(&folder);
    let made = std::fs::create_dir_all(&folder).and_then(|()| temporary().tempdir_in(&folder));
    let failed = |source| ServerError::Disk { what: "write", path: folder.clone(), source };
    let scratch = made.map_err(failed)?;
    let dir = scratch.path().to_owned();
    // The owner's token is that of the run's folder, for all processes.
    let admin_token = Some(owner_token(config)?);
    // Leader processes know only the norms of single updates, and a rollback needs the tape of one process.
    let mut config = config.clone().with(|it| {
        it.server.dir = dir;
        it.start.admin_token = admin_token;
        it.checks = 0.0;
        it.no_undo = true;
    });
    config.alerts.expect_no_snapshots();
    tracing::warn!(
        "loss checks and rollback are off in a run on several machines: serve a run that strangers may join from one \
         process"
    );
    Ok((config, Some(scratch)))
}

/// Removes the folders that killed processes left in `folder`. Running processes hold a lock on theirs.
fn clear(folder: &Path) {
    for left in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_left = left.path().join("lock").exists() && Store::open(&left.path()).is_ok();
        if is_left && let Err(error) = std::fs::remove_dir_all(left.path()) {
            tracing::warn!(%error, path = %left.path().display(), "cannot remove what a killed process left");
        }
    }
}

/// Prepares the run of `config`, unless `shutdown` resolves first.
///
/// # Errors
/// Those of [`Plan::of`] and [`Plan::open`]; `Cancelled` if `shutdown` resolves meanwhile. Files written until then are
/// removed. Work that only reads is abandoned if it does not end soon.
async fn prepare(
    config: &ServeConfig,
    shutdown: Pin<&mut (impl Future<Output = Bye> + ?Sized)>,
) -> Result<Prepared, ServerError> {
    let cancellation = Cancellation::default();
    let (config, heard) = (config.clone(), cancellation.clone());
    let work = blocking(move || Plan::of(&config, Store::open, &heard)?.open(&heard));
    let mut work = std::pin::pin!(work);
    tokio::select! {
        prepared = &mut work => return prepared?,
        _ = shutdown => cancellation.cancel(),
    }
    loop {
        match tokio::time::timeout(CANCELLED_WITHIN, &mut work).await {
            Ok(Ok(Err(error))) => return Err(error),
            Err(_) if cancellation.is_writing() => {}
            _ => return Err(ServerError::Cancelled),
        }
    }
}

/// Logs a new certificate in all runs, and whether it is now in use (`shown`).
pub(crate) async fn certificate(apps: Vec<Arc<http::App>>, shown: bool) {
    for app in apps {
        // A run that has ended has no log.
        app.context.actor.tell(Command::Happened(LogEvent::Certificate { shown })).await;
    }
}

/// Resolves with the goodbye for the learners when the run should stop: at `shutdown`, or once the run is `over` if
/// that is a reason to stop. Either way it waits for the last measurement of a complete run, which is part of the
/// stored run.
async fn until(
    shutdown: impl Future<Output = Bye>,
    over: watch::Receiver<bool>,
    measuring: &mut Option<JoinHandle<()>>,
    is_over_enough: bool,
) -> Bye {
    let measured = async {
        // This never fails: the actor, which sends the value, waits for this task.
        drop(over.clone().wait_for(|over| *over).await);
        if let Some(measuring) = measuring {
            drop(measuring.await);
        }
    };
    let mut measured = std::pin::pin!(measured);
    let bye = tokio::select! {
        bye = shutdown => bye,
        () = &mut measured, if is_over_enough => return restart(),
    };
    if *over.borrow() {
        measured.await;
    }
    bye
}

fn context(prepared: &Prepared, actor: ActorHandle, meters: &Arc<Meters>) -> Context {
    let fragments = prepared.syncer.fragments();
    Context {
        actor,
        meters: Arc::clone(meters),
        verifier: prepared.syncer.verifier().clone(),
        fragment_lens: fragments.ids().map(|p| fragments.len(p) as u64).collect(),
        admission: prepared.admission.clone(),
        body_bytes_max: prepared.body_bytes_max,
    }
}

/// Runs blocking `work` on a thread for such work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ServerError> {
    let what = "a background task panicked";
    tokio::task::spawn_blocking(work).await.map_err(|_| ServerError::Internal { what: what.into() })
}
