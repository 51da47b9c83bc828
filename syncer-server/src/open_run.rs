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
use crate::cluster_node::{AdminBroadcast, CommandReader, Membership};
use crate::config::{ServeConfig, syncer_config};
use crate::connection::Context;
use crate::errors::ServerError;
use crate::evaluate::{self, HarmDetector, Prover};
use crate::invites::InviteStore;
use crate::listener::ConnectionShare;
use crate::meters::Meters;
use crate::prepare::{Plan, Prepared, alert_terms, owner_token, to_lead};
use crate::progress::{Cancellation, Progress, Unit};
use crate::status::{AlertTerms, LogEvent, ServerStatus, StatusTracker};
use crate::store::{Snapshot, Store, temporary};
use crate::webhook::Webhook;
use crate::{http, links};

/// Longest wait for connections to close, and then for a running measurement, when a run ends.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);

/// Longest wait for the preparation of a run to end after its cancellation, unless it is writing files.
const CANCELLED_WITHIN: Duration = Duration::from_secs(1);

/// Size in bytes from which on the last snapshot of a run without merges is not saved.
const IDLE_BYTES_SAVED: u64 = 100_000_000;

/// An open run. It does nothing until [`Self::work`] is awaited.
pub(crate) struct OpenRun {
    /// State of the run's HTTP routes.
    pub(crate) app: Arc<http::App>,
    /// Turns true once the run has ended.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Serves the run until it is stopped, saves it, and returns its last status. Fails with `Cluster`, `Disk`,
    /// `DirInUse`, `Internal` or `System`.
    pub(crate) work: Pin<Box<dyn Future<Output = Result<ServerStatus, ServerError>> + Send>>,
}

/// Resources that a server of several runs gives to each run.
pub(crate) struct HostResources {
    /// Token of the server's owner, accepted like the run's own token.
    pub(crate) token: String,
    /// The run's limit on long-lived connections.
    pub(crate) share: ConnectionShare,
}

/// Returns the goodbye for learners when the program ends.
pub(crate) fn restart() -> Bye {
    Bye::new(CloseCode::Restart, "the syncer stops for now: come back later")
}

impl OpenRun {
    /// Starts or resumes the run of `config`. `links` are the URLs of the run's pages, and `host` is set on a server
    /// of several runs. The run stops when `shutdown` resolves; its value is the goodbye for learners.
    ///
    /// # Errors
    /// Those of [`crate::validate`]; `Cancelled` if `shutdown` resolves first; `Cluster`, `Disk`, `Internal` or
    /// `System`.
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
        let meters = Arc::new(Meters::from(prepared.statistics.traffic));
        let context = context(&prepared, handle.clone(), &meters);
        let broadcast = node.as_ref().map(|(_, commands)| commands.broadcast());
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

/// Parts of [`OpenRun::work`].
struct Work {
    app: Arc<http::App>,
    parts: RunParts,
    handle: ActorHandle,
    node: Option<ClusterTasks>,
    scratch: Option<TempDir>,
    /// Becomes true to close the connections.
    stop: watch::Sender<bool>,
    /// Resolves when all connections are closed, since each connection holds a sender.
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
            Some(node) => node.apply_commands(app),
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
            node.stop_applying();
        }
        drop(tokio::time::timeout(GOODBYE_WITHIN, all_closed.recv()).await);
        // A running measurement is no longer needed, but it reads the folder, so wait for it briefly.
        if let Some(measuring) = measuring.filter(|measuring| !measuring.is_finished()) {
            drop(tokio::time::timeout(GOODBYE_WITHIN, measuring).await);
        }
        let is_node = node.is_some();
        if let Some(node) = node {
            node.stop_leading().await;
        }
        let Final { snapshot, status } = ended?;
        // A cluster stores its run in the shared storage instead.
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

/// Prepared run of this process, and its membership of a cluster.
struct Setup {
    /// Settings that the processes of a cluster agreed on.
    config: ServeConfig,
    /// Working folder of a cluster process, deleted at the end.
    scratch: Option<TempDir>,
    prepared: Prepared,
    node: Option<(Membership, CommandReader)>,
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
        if let Some((_, commands)) = &node {
            config = commands.config().clone();
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
    /// Owner's commands, until [`Self::apply_commands`].
    commands: Option<CommandReader>,
    applying: Option<JoinHandle<()>>,
    leading: JoinHandle<()>,
    stop_leading: oneshot::Sender<()>,
    /// Resolves when contact with the leaders is lost.
    lost: Option<oneshot::Receiver<()>>,
}

impl ClusterTasks {
    /// Begins to lead rounds, if that is the role of this process.
    fn new((membership, commands): (Membership, CommandReader)) -> Self {
        let (stop_leading, stopped) = oneshot::channel::<()>();
        let leading = tokio::spawn(membership.lead(&commands, async { drop(stopped.await) }));
        Self { membership, commands: Some(commands), applying: None, leading, stop_leading, lost: None }
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
        let (syncer, requests, lost) =
            self.membership.connect_gateway(syncer, handle.clone(), invite_store)?;
        self.lost = Some(lost);
        Ok((syncer, requests))
    }

    /// Begins to apply the owner's commands to the run of `app`.
    fn apply_commands(&mut self, app: Arc<http::App>) {
        let commands = self.commands.take();
        self.applying = commands.map(|commands| {
            tokio::spawn(commands.run(move |command| http::apply_admin_command(Arc::clone(&app), command)))
        });
    }

    fn stop_applying(&mut self) {
        if let Some(applying) = self.applying.take() {
            applying.abort();
        }
    }

    /// Hands this process's rounds over to other processes.
    async fn stop_leading(self) {
        drop(self.stop_leading);
        // Fails only if that task panicked, which has been logged.
        drop(self.leading.await);
    }
}

/// Resolves when contact with the leaders of the rounds is lost. Outside a cluster it never resolves.
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

/// Parts from which the run's actor and the tasks next to it are built.
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
        let Prepared { syncer, corpus, store, statistics, tape, .. } = &self.prepared;
        // Rollback needs a tape.
        if tape.keeps() && !self.config.no_undo {
            let losses = statistics.history.evaluations.iter().map(|evaluation| evaluation.loss);
            evaluator = evaluator.with_judge(HarmDetector::new(Arc::clone(store), syncer.run(), losses));
        }
        let (every, written) = (self.config.eval_every.0, statistics.history.written());
        let measured =
            evaluate::run(evaluator, handle.clone(), Arc::clone(corpus), every, self.clock, written);
        Some(tokio::spawn(measured))
    }

    fn into_actor(self) -> Actor {
        let Self { config, prepared, clock, meters, mailbox, webhook, terms, leader_requests, checks } = self;
        let Prepared { syncer, store, statistics, facts, mut tape, resumed, forked, snapshot_seq, .. } =
            prepared;
        let measured_by = statistics.history.measured_by();
        let trusted =
            config.evaluator.map(|learner| Trusted::new(learner, config.eval_every.0, measured_by, &syncer));
        Actor {
            board: StatusTracker::new(facts, statistics, tape.take_log(), terms),
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

/// Returns the state of a run's HTTP routes.
///
/// # Errors
/// `Config`: an allowed origin is invalid.
fn app(
    config: &ServeConfig,
    prepared: &Prepared,
    context: Context,
    host: Option<HostResources>,
    admin_broadcast: Option<AdminBroadcast>,
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
        admin_broadcast,
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

/// Saves the last `snapshot` of a run with `tokens_merged` merged tokens. If no tokens are merged, a snapshot of
/// [`IDLE_BYTES_SAVED`] or more is skipped, because it would add only the curves of an idle run.
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
    on_ready: impl FnOnce(),
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
    let (membership, commands) = Membership::join(part, &config, shared).await?;
    on_ready();
    let over = membership.finished();
    let stop = async move {
        tokio::select! {
            () = shutdown => {}
            () = over, if config.server.exit_when_finished => {}
        }
    };
    let leading = membership.lead(&commands, stop);
    tokio::select! {
        () = leading => {}
        () = commands.run(|_| std::future::ready(())) => {}
    }
    drop(scratch);
    Ok(())
}

/// Returns the settings of one process of a cluster and its working folder, which is deleted on drop.
fn of_a_part(config: &ServeConfig) -> Result<(ServeConfig, Option<TempDir>), ServerError> {
    let folder = config.server.dir.join("processes");
    clear(&folder);
    let made = std::fs::create_dir_all(&folder).and_then(|()| temporary().tempdir_in(&folder));
    let failed = |source| ServerError::Disk { what: "write", path: folder.clone(), source };
    let scratch = made.map_err(failed)?;
    let dir = scratch.path().to_owned();
    // All processes use the owner's token from the run's folder.
    let admin_token = Some(owner_token(config)?);
    // Loss checks need whole updates, and leader processes know only their norms. A rollback needs the tape of one
    // process.
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

/// Removes the folders that killed processes left in `folder`. A running process holds the lock of its folder.
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
/// Those of [`Plan::of`] and [`Plan::open`]; `Cancelled` if `shutdown` resolves first. Files written until then are
/// removed. Work that only reads is abandoned after [`CANCELLED_WITHIN`].
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

/// Logs in all runs that a new certificate is in use (`shown`), or that it cannot be used.
pub(crate) async fn certificate(apps: Vec<Arc<http::App>>, shown: bool) {
    for app in apps {
        // A run that has ended has no log.
        app.context.actor.send(Command::Happened(LogEvent::Certificate { shown })).await;
    }
}

/// Resolves with the goodbye for learners when the run should stop: at `shutdown` or, if `is_over_enough`, once `over`
/// turns true. If the run is over, it first waits for the last measurement, which is part of the stored run.
async fn until(
    shutdown: impl Future<Output = Bye>,
    over: watch::Receiver<bool>,
    measuring: &mut Option<JoinHandle<()>>,
    is_over_enough: bool,
) -> Bye {
    let measured = async {
        // This cannot fail: the actor holds the sender and waits for this task.
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

/// Runs `work` on a thread for blocking tasks.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ServerError> {
    let what = "a background task panicked";
    tokio::task::spawn_blocking(work).await.map_err(|_| ServerError::Internal { what: what.into() })
}
