//! One served run: its routes, and the work behind them.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use archipelago_core::wire::{Bye, CloseCode};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::actor::{Actor, ActorHandle, Command, Final, Trusted};
use crate::clock::Clock;
use crate::cluster_node::{Hearing, Membership};
use crate::config::{ServeConfig, syncer_config};
use crate::connection::Context;
use crate::errors::ServerError;
use crate::evaluate::{self, Evaluator, Judge, Prover};
use crate::listener::Share;
use crate::meters::Meters;
use crate::prepare::{Plan, Prepared, alert_terms, owner_token, to_lead};
use crate::progress::{Cancellation, Progress, Unit};
use crate::status::{LogEvent, ServerStatus, StatusTracker};
use crate::store::{Store, temporary};
use crate::webhook::Webhook;
use crate::{http, links};

/// Time for connections to close at the end.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);

/// Time for the preparation of a run to notice a cancellation.
const CANCELLED_WITHIN: Duration = Duration::from_secs(1);

/// Size in bytes from which on a snapshot without merges is not written again.
const IDLE_BYTES_SAVED: u64 = 100_000_000;

/// An open run. It does nothing until [`Self::work`] is awaited.
pub(crate) struct Running {
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
    pub(crate) share: Share,
}

/// Returns the goodbye for learners when the program ends.
pub(crate) fn restart() -> Bye {
    Bye::new(CloseCode::Restart, "the syncer stops for now: come back later")
}

impl Running {
    /// Starts or resumes the run of `config`, until `shutdown` resolves with the goodbye for its learners. `links` are
    /// the pages of the run; `house` is set on a server of several runs.
    ///
    /// # Errors
    /// Those of [`crate::validate`]; `Disk`, `Internal` or `System`.
    #[expect(clippy::too_many_lines, reason = "one list of what a run is made of")]
    pub(crate) async fn open(
        config: &ServeConfig,
        links: Vec<String>,
        house: Option<HostResources>,
        shutdown: impl Future<Output = Bye> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let (host_token, share) = house.map(|HostResources { token, share }| (token, share)).unzip();
        let clock = Clock::start();
        let part = config.cluster.part()?;
        let (mut config, scratch) = if part.is_some() { of_a_part(config)? } else { (config.clone(), None) };
        let mut shutdown = Box::pin(shutdown);
        let mut prepared = prepare(&config, shutdown.as_mut()).await?;
        let (membership, hearing) = match part.zip(prepared.shared.take()) {
            Some((part, shared)) => Some(Membership::join(part, &config, shared).await?),
            None => None,
        }
        .unzip();
        if let Some(hearing) = &hearing {
            config = hearing.config().clone();
            let core = syncer_config(&config)?;
            prepared.syncer.retune(core.quorum, core.merge);
            prepared.syncer.limit(core.learners_max, core.cohort_max, core.stop_tokens);
        }
        prepared.facts.links = links;
        let webhook = config.alerts.webhook.as_deref().map(Webhook::start).transpose()?;
        let terms = alert_terms(&config)?;
        let run = prepared.syncer.run();
        let complete = prepared.syncer.is_over();
        tracing::info!(%run, resumed = prepared.resumed, complete, dir = %config.dir.display(), "run is ready");

        let (handle, mailbox) = ActorHandle::new();
        let (stop, stopping) = watch::channel(false);
        let (open, mut all_closed) = mpsc::channel(1);
        let meters = Arc::new(Meters::from(prepared.carried.traffic));
        let context = context(&prepared, handle.clone(), &meters);
        let Prepared {
            mut syncer,
            corpus,
            store,
            carried,
            evaluator,
            facts,
            owner,
            tape,
            resumed,
            forked,
            decoder,
            frozen,
            held_out,
            snapshot_seq,
            ..
        } = prepared;
        let (stop_leading, leads) = oneshot::channel::<()>();
        let is_part = membership.is_some();
        let (mut leader_requests, mut leading, mut lost) = (None, None, None);
        if let Some((membership, hearing)) = membership.as_ref().zip(hearing.as_ref()) {
            let lead = membership.lead(hearing, async { drop(leads.await) });
            leading = Some(tokio::spawn(lead));
            let (said, is_lost);
            let guests = Arc::clone(context.admission.guests());
            (syncer, said, is_lost) = membership.face(syncer, handle.clone(), guests)?;
            (leader_requests, lost) = (Some(said), Some(is_lost));
        }
        let measured_by = carried.history.measured_by();
        let trusted =
            config.evaluator.clone().map(|who| Trusted::new(who, config.eval_every.0, measured_by, &syncer));
        let admission = context.admission.clone();
        let app = Arc::new(http::App {
            context,
            corpus: Arc::clone(&corpus),
            held_out: held_out.map(Into::into),
            run: run.to_string(),
            pages: config.pages.clone(),
            allow_origin: links::allowed_origins(&config)?,
            owner,
            host_token,
            share,
            settings: http::Settings::new(&config),
            herald: hearing.as_ref().map(Hearing::herald),
            watchers: 0.into(),
            foreign: 0.into(),
            reports: http::Reports::default(),
            unread: http::Unread::default(),
            work: http::WorkLimit::of_a_run(),
            orders: http::WorkLimit::of_a_run(),
            frozen: frozen.clone().map(http::frozen_bytes),
            hats: http::Hats::new(syncer.fragments().count().into()),
            turns: http::Turns::new(http::Terms::default()),
            exports: http::Exports::new(
                syncer.spec().clone(),
                decoder,
                Arc::clone(&store),
                config.licence.clone(),
            ),
            next_conn: AtomicU64::new(1),
            stopping: stopping.clone(),
            open,
        });
        let heard = Arc::clone(&app);
        let work = async move {
            let hearing = hearing.map(|hearing| {
                tokio::spawn(hearing.run(move |decree| http::obey(Arc::clone(&heard), decree)))
            });
            let checks = evaluator.is_some() && config.checks > 0.0;
            let prover = match decoder.filter(|_| checks) {
                Some(decoder) => {
                    Some(Prover::new(&syncer, &decoder, frozen, Arc::clone(&corpus), config.checks)?)
                }
                None => None,
            };
            // The task ends with the actor.
            drop(prover.map(|prover| tokio::spawn(evaluate::prove(prover, handle.clone(), clock))));
            let measure = |evaluator: Evaluator| {
                let (actor, written) = (handle.clone(), carried.history.written());
                let losses = carried.history.evaluations.iter().map(|evaluation| evaluation.loss);
                // Rollback needs a tape.
                let evaluator = match tape.keeps() && !config.no_undo {
                    true => evaluator.judged_by(Judge::new(Arc::clone(&store), run, losses)),
                    false => evaluator,
                };
                evaluate::run(evaluator, actor, corpus, config.eval_every.0, clock, written)
            };
            let mut measuring = evaluator.map(measure).map(tokio::spawn);
            let over = handle.over_watch();
            tokio::spawn(admission.watch(handle.clone()));
            drop(handle);
            let mut tape = tape;
            let actor = Actor {
                syncer,
                clock,
                meters,
                board: StatusTracker::new(facts, carried, tape.take_log(), terms),
                store: Arc::clone(&store),
                snapshot_every: config.snapshot_every.0,
                mailbox,
                tape,
                snapshot_seq,
                started: LogEvent::Started { resumed, forked: forked.map(|(run, at)| (run.to_string(), at)) },
                webhook,
                leader_requests,
                checks,
                trusted,
            };
            let mut is_lost = false;
            let shutdown = async {
                let lost = async { lost?.await.ok() };
                tokio::select! {
                    bye = shutdown => bye,
                    Some(()) = lost => {
                        is_lost = true;
                        restart()
                    }
                }
            };
            let ended = actor.run(until(shutdown, over, &mut measuring, config.exit_when_finished)).await;
            stop.send_replace(true);
            if let Some(hearing) = hearing {
                hearing.abort();
            }
            // Every connection holds a sender; when all are dropped, all connections are closed.
            drop(tokio::time::timeout(GOODBYE_WITHIN, all_closed.recv()).await);
            // A measurement that still runs is no longer needed. Wait for it briefly, since it reads the folder.
            if let Some(measuring) = measuring.filter(|measuring| !measuring.is_finished()) {
                drop(tokio::time::timeout(GOODBYE_WITHIN, measuring).await);
            }
            drop(stop_leading);
            if let Some(leading) = leading {
                drop(leading.await);
            }
            let Final { snapshot, status } = ended?;
            // Runs led by other processes are stored in their shared storage. Before the first merge, a snapshot only
            // adds the curves of an idle run, which does not justify writing a large model again.
            let is_worth = status.core.tokens_merged > 0 || snapshot.tensor_bytes() < IDLE_BYTES_SAVED;
            if !is_part && is_worth {
                blocking(move || {
                    let total = snapshot.tensor_bytes();
                    let progress =
                        Progress::of(&Cancellation::default(), "saving the run", total, Unit::Bytes);
                    store.save_with(&snapshot, &progress)
                })
                .await??;
            }
            let (finished, tokens_merged) = (status.core.finished, status.core.tokens_merged);
            tracing::info!(%run, finished, tokens_merged, "saved and stopped");
            drop(scratch);
            if is_lost {
                let why =
                    "lost contact with the other processes of the cluster: restart this process".to_owned();
                return Err(ServerError::Cluster { why });
            }
            Ok(status)
        };
        Ok(Self { app, stopping, work: Box::pin(work) })
    }
}

/// Leads rounds of the run of `config` until `shutdown`, without serving learners.
///
/// # Errors
/// As [`Running::open`].
pub(crate) async fn lead(
    config: ServeConfig,
    tell: impl FnOnce(),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    let Some(part) = config.cluster.part()? else {
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
            () = over, if config.exit_when_finished => {}
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
    let folder = config.dir.join("processes");
    clear(&folder);
    let made = std::fs::create_dir_all(&folder).and_then(|()| temporary().tempdir_in(&folder));
    let failed = |source| ServerError::Disk { what: "write", path: folder.clone(), source };
    let scratch = made.map_err(failed)?;
    let dir = scratch.path().to_owned();
    // The owner's token is that of the run's folder, for all processes.
    let admin_token = Some(owner_token(config)?);
    // Leader processes know only the norms of single updates, and a rollback needs the tape of one process.
    let mut config = ServeConfig { dir, admin_token, checks: 0.0, no_undo: true, ..config.clone() };
    config.alerts.expect_no_snapshots();
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
