//! Registry of the server's runs, which are started and stopped one by one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use archipelago_core::wire::{Bye, CloseCode};
use axum::Router;
use futures::future::join_all;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::settings;
use super::view::{RunState, RunView};
use crate::config::{self, RunName, ServeConfig, ServerSettings};
use crate::errors::ServerError;
use crate::http::{self, App};
use crate::links::fragment;
use crate::listener::Shares;
use crate::open_run::{self, OpenRun, blocking, restart};
use crate::prepare::invite;
use crate::status::ServerStatus;
use crate::store::Store;

/// Maximum number of runs in a folder; each holds its model in memory.
const RUNS_MAX: usize = 64;

/// File that marks a run as archived: stored and not served.
const ARCHIVED: &str = "archived";

/// Prefix of folders that are being removed.
const REMOVED: &str = ".removed-";

/// Longest wait for the status of one run.
const FIGURES_WITHIN: Duration = Duration::from_secs(2);

/// State of a registered run.
enum Hosted {
    /// The run is being opened, or waits to be opened. Sending a goodbye for its learners stops it.
    Starting(Option<oneshot::Sender<Bye>>),
    /// The run is served.
    Served(Served),
    /// The run is archived.
    Archived,
    /// The run ended, for this reason.
    Failed(String),
}

/// A served run.
struct Served {
    app: Arc<App>,
    router: Router,
    /// Sender of the goodbye for its learners, which stops the run.
    stop: oneshot::Sender<Bye>,
    /// Task that ends once the run is saved.
    task: JoinHandle<()>,
}

/// All runs of a folder.
pub(super) struct RunRegistry {
    folder: PathBuf,
    /// Settings of the server.
    server: ServerSettings,
    /// URLs of the server's pages, best first; each ends with `/`.
    links: Vec<String>,
    /// URL at which this machine reaches the server; ends with `/`.
    here: Option<String>,
    /// Token of the server's owner.
    pub(super) token: String,
    /// Limits on the long-lived connections of runs.
    shares: Shares,
    runs: RwLock<BTreeMap<RunName, Hosted>>,
    /// Locks of runs: orders about the same run are carried out one at a time.
    locks: std::sync::Mutex<BTreeMap<RunName, Arc<Mutex<()>>>>,
    /// True once the server stops. No run is started from then on.
    is_closing: AtomicBool,
}

/// Reasons why an order was not carried out.
#[derive(Debug)]
pub(super) enum Refused {
    /// There is no such run.
    NoSuchRun,
    /// The state of the run does not permit the order.
    State(String),
    /// The order is invalid.
    Order(String),
    /// The order failed.
    Failed(ServerError),
}

impl From<ServerError> for Refused {
    fn from(error: ServerError) -> Self {
        Self::Failed(error)
    }
}

impl RunRegistry {
    /// Reads the folder, and returns the registry and the names of the runs to start.
    pub(super) fn open(
        folder: PathBuf,
        ServeConfig { server, start, .. }: ServeConfig,
        (links, here): (Vec<String>, Option<String>),
        shares: Shares,
    ) -> Result<(Self, Vec<RunName>), ServerError> {
        let failed = |source| ServerError::Disk { what: "read", path: folder.clone(), source };
        config::admin_token(start.admin_token.as_deref())?;
        fs::create_dir_all(&folder).map_err(failed)?;
        let token = Store::open_read_only(&folder).admin_token(start.admin_token.as_deref())?;
        let mut runs = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if name.starts_with(REMOVED) {
                // A crash interrupted the removal.
                fs::remove_dir_all(&path).map_err(failed)?;
                continue;
            }
            if !path.join(settings::FILE).is_file() {
                continue;
            }
            match name.parse::<RunName>() {
                Ok(name) => {
                    let is_archived = path.join(ARCHIVED).exists();
                    runs.insert(name, if is_archived { Hosted::Archived } else { Hosted::Starting(None) });
                }
                Err(error) => tracing::warn!("ignored a folder: {error}"),
            }
        }
        let is_to_start = |hosted: &Hosted| matches!(hosted, Hosted::Starting(_));
        let names = runs.iter().filter(|(_, hosted)| is_to_start(hosted)).map(|(name, _)| name.clone());
        let names = names.collect();
        let (runs, locks) = (RwLock::new(runs), std::sync::Mutex::default());
        let is_closing = AtomicBool::new(false);
        Ok((Self { folder, server, links, here, token, shares, runs, locks, is_closing }, names))
    }

    /// Returns the settings of the server.
    pub(super) fn server(&self) -> &ServerSettings {
        &self.server
    }

    fn dir(&self, name: &RunName) -> PathBuf {
        self.folder.join(name.as_str())
    }

    fn set(&self, name: &RunName, hosted: Hosted) {
        self.write().insert(name.clone(), hosted);
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<RunName, Hosted>> {
        self.runs.write().expect("no thread panics with the lock")
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<RunName, Hosted>> {
        self.runs.read().expect("no thread panics with the lock")
    }

    /// Waits until no other order about the run `name` is being carried out, and locks the run.
    async fn lock_run(&self, name: &RunName) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().expect("no thread panics with the lock");
            // Unused locks are dropped, and created again when they are needed.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(name.clone()).or_default())
        };
        lock.lock_owned().await
    }

    /// Stops the run `name` if it is being opened. The task that opens it reports the outcome.
    fn cancel(&self, name: &RunName, bye: Bye) {
        if let Some(Hosted::Starting(stop)) = self.write().get_mut(name)
            && let Some(stop) = stop.take()
        {
            drop(stop.send(bye));
        }
    }

    /// Returns the names of the runs.
    pub(super) fn names(&self) -> Vec<String> {
        self.read().keys().map(ToString::to_string).collect()
    }

    /// Returns the served runs.
    pub(super) fn served(&self) -> Vec<Arc<App>> {
        let runs = self.read();
        let app = |hosted: &Hosted| match hosted {
            Hosted::Served(served) => Some(Arc::clone(&served.app)),
            _ => None,
        };
        runs.values().filter_map(app).collect()
    }

    /// Returns the routes of the run `name`. If it is not served, the error is its state, or `None` if there is no
    /// such run.
    pub(super) fn router(&self, name: &str) -> Result<Router, Option<RunState>> {
        let runs = self.read();
        let found = name.parse::<RunName>().ok().and_then(|name| runs.get(&name));
        match found {
            Some(Hosted::Served(served)) => Ok(served.router.clone()),
            Some(Hosted::Starting(_)) => Err(Some(RunState::Starting)),
            Some(Hosted::Archived) => Err(Some(RunState::Archived)),
            Some(Hosted::Failed(_)) => Err(Some(RunState::Failed)),
            None => Err(None),
        }
    }

    /// Returns all runs by name. With `with_links`, each has its link for lending a machine, which includes the
    /// invite.
    pub(super) async fn views(&self, with_links: bool) -> Vec<RunView> {
        let asked: Vec<_> = {
            let runs = self.read();
            let asked = runs.iter().map(|(name, hosted)| {
                let plain = |state, why: Option<&String>| (state, why.cloned(), None);
                let (state, why, app) = match hosted {
                    Hosted::Starting(_) => plain(RunState::Starting, None),
                    Hosted::Archived => plain(RunState::Archived, None),
                    Hosted::Failed(why) => plain(RunState::Failed, Some(why)),
                    Hosted::Served(served) => (RunState::Open, None, Some(Arc::clone(&served.app))),
                };
                (name.to_string(), state, why, app)
            });
            asked.collect()
        };
        let best = self.links.first();
        join_all(asked.into_iter().map(|(name, state, why, app)| async move {
            let path = format!("runs/{name}/");
            let invite = app.as_ref().map(|app| fragment(app.context.admission.invite()));
            let link =
                invite.zip(best).filter(|_| with_links).map(|(invite, best)| format!("{best}{path}{invite}"));
            let status = match app {
                // A run that answers slowly is listed without its figures.
                Some(app) => {
                    let asked = tokio::time::timeout(FIGURES_WITHIN, app.context.actor.status());
                    asked.await.ok().flatten()
                }
                None => None,
            };
            match status {
                Some(status) => RunView { link, ..RunView::served(name, path, *status) },
                None => RunView { name, path, link, state, why, figures: None },
            }
        }))
        .await
    }

    /// Returns the statuses of the served runs by name, without those that answer slowly.
    pub(super) async fn statuses(&self) -> Vec<(Option<String>, ServerStatus)> {
        let apps: Vec<_> = {
            let runs = self.read();
            let served = runs.iter().filter_map(|(name, hosted)| match hosted {
                Hosted::Served(served) => Some((name.to_string(), Arc::clone(&served.app))),
                _ => None,
            });
            served.collect()
        };
        let asked = join_all(apps.into_iter().map(|(name, app)| async move {
            let status =
                tokio::time::timeout(FIGURES_WITHIN, app.context.actor.status()).await.ok().flatten();
            status.map(|status| (Some(name), *status))
        }));
        asked.await.into_iter().flatten().collect()
    }

    /// Creates a run with the settings in the TOML `text`, and starts it.
    pub(super) async fn create(self: &Arc<Self>, name: &RunName, text: &str) -> Result<(), Refused> {
        {
            let _lock = self.lock_run(name).await;
            self.reserve(name, || settings::check_sent(text, &self.server).map_err(Refused::Order))?;
            let (dir, text) = (self.dir(name), text.to_owned());
            if let Err(error) = blocking(move || settings::write(&dir, &text)).await.flatten() {
                self.write().remove(name);
                return Err(error.into());
            }
        }
        if let Err(refused) = self.start(name).await {
            // The run has trained nothing, so its folder is removed.
            self.delete(name).await?;
            return Err(refused);
        }
        Ok(())
    }

    /// Registers the new run `name` as starting, if `check` succeeds.
    fn reserve(&self, name: &RunName, check: impl FnOnce() -> Result<(), Refused>) -> Result<(), Refused> {
        let mut runs = self.write();
        if runs.len() >= RUNS_MAX {
            let count = runs.len();
            return Err(Refused::State(format!("there are {count} runs, which is the limit of one server")));
        }
        if runs.contains_key(name) {
            return Err(Refused::State(format!("there is a run {name} already")));
        }
        check()?;
        runs.insert(name.clone(), Hosted::Starting(None));
        Ok(())
    }

    /// Starts a run that is not served: a new, archived or failed one.
    pub(super) async fn start(self: &Arc<Self>, name: &RunName) -> Result<(), Refused> {
        let _lock = self.lock_run(name).await;
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(Refused::State("the server stops".to_owned()));
        }
        let is_there = match self.read().get(name) {
            Some(Hosted::Served(_)) => {
                return Err(Refused::State(format!("the run {name} is already served")));
            }
            Some(_) => true,
            None => false,
        };
        // The owner may also have created the folder by hand.
        if !is_there && !self.dir(name).join(settings::FILE).is_file() {
            return Err(Refused::NoSuchRun);
        }
        let (stop, stopped) = oneshot::channel();
        self.set(name, Hosted::Starting(Some(stop)));
        match self.begin(name, stopped).await {
            Ok(served) => {
                self.set(name, Hosted::Served(served));
                Ok(())
            }
            Err(error) => {
                match &error {
                    ServerError::Cancelled => tracing::info!(%name, "the start of the run was cancelled"),
                    error => tracing::error!(%name, %error, "the run cannot be started; the others continue"),
                }
                self.set(name, Hosted::Failed(error.to_string()));
                Err(error.into())
            }
        }
    }

    async fn begin(
        self: &Arc<Self>,
        name: &RunName,
        stopped: oneshot::Receiver<Bye>,
    ) -> Result<Served, ServerError> {
        let (dir, server) = (self.dir(name), self.server.clone());
        let config = blocking(move || {
            let mark = dir.join(ARCHIVED);
            match fs::remove_file(&mark) {
                Err(source) if mark.exists() => Err(ServerError::Disk { what: "remove", path: mark, source }),
                _ => settings::read(&dir, &server),
            }
        });
        let mut config = config.await??;
        let kept = config.clone();
        let shown = blocking(move || invite(&kept)).await??;
        config.invite = shown.map(|invite| invite.expose().to_owned());
        let links = self.links.iter().map(|link| format!("{link}runs/{name}/")).collect();
        let until = async { stopped.await.unwrap_or_else(|_| restart()) };
        let OpenRun { app, work, .. } = OpenRun::open(
            &config,
            links,
            Some(open_run::HostResources { token: self.token.clone(), share: self.shares.join() }),
            until,
        )
        .await?;
        if let Some(here) = &self.here {
            Store::open_read_only(&config.server.dir).note_address(&format!("{here}runs/{name}/"));
        }
        let router = http::router(Arc::clone(&app));
        // A panic ends only this task.
        let work = tokio::spawn(work.instrument(tracing::info_span!("run", %name)));
        let stop = match self.write().get_mut(name) {
            Some(Hosted::Starting(stop)) => stop.take(),
            _ => None,
        };
        let Some(stop) = stop else {
            // The run was stopped just after it was opened, and is being saved.
            drop(work.await);
            return Err(ServerError::Cancelled);
        };
        let (registry, name) = (Arc::downgrade(self), name.clone());
        let task = tokio::spawn(async move {
            let ended = match work.await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "a part of the program panicked while it served the run".to_owned(),
            };
            tracing::error!(%name, error = ended, "the run ended; the others continue");
            if let Some(registry) = registry.upgrade() {
                registry.set(&name, Hosted::Failed(ended));
            }
        });
        Ok(Served { app, router, stop, task })
    }

    /// Stops a run if it is served, and sends `bye` to its learners. Its routes are removed at once. If the run cannot
    /// be saved, its state becomes failed.
    async fn stop(&self, name: &RunName, bye: Bye) -> Result<(), Refused> {
        let stopped = match self.write().get_mut(name) {
            None => return Err(Refused::NoSuchRun),
            Some(hosted @ Hosted::Served(_)) => std::mem::replace(hosted, Hosted::Archived),
            Some(_) => return Ok(()),
        };
        if let Hosted::Served(Served { app, router, stop, task }) = stopped {
            // These hold senders that stand for open connections of learners.
            drop((app, router));
            drop(stop.send(bye));
            drop(task.await);
            Store::open_read_only(&self.dir(name)).forget_address();
        }
        Ok(())
    }

    /// Archives a run: stops serving it, and keeps its folder.
    pub(super) async fn archive(&self, name: &RunName) -> Result<(), Refused> {
        let bye = Bye::new(CloseCode::Done, "the owner has archived this run");
        self.cancel(name, bye.clone());
        let _lock = self.lock_run(name).await;
        self.stop(name, bye).await?;
        self.set(name, Hosted::Archived);
        let mark = self.dir(name).join(ARCHIVED);
        let marked = blocking(move || {
            fs::write(&mark, "").map_err(|source| ServerError::Disk { what: "write", path: mark, source })
        });
        Ok(marked.await??)
    }

    /// Stops a run and removes its folder.
    pub(super) async fn delete(&self, name: &RunName) -> Result<(), Refused> {
        let bye = Bye::new(CloseCode::Done, "the owner has deleted this run");
        self.cancel(name, bye.clone());
        let _lock = self.lock_run(name).await;
        self.stop(name, bye).await?;
        let (dir, aside) = (self.dir(name), self.folder.join(format!("{REMOVED}{name}")));
        blocking(move || remove(&dir, &aside)).await??;
        self.write().remove(name);
        Ok(())
    }

    /// Stops all runs.
    pub(super) async fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        let names: Vec<RunName> = self.read().keys().cloned().collect();
        join_all(names.iter().map(|name| async move {
            self.cancel(name, restart());
            let _lock = self.lock_run(name).await;
            self.stop(name, restart()).await
        }))
        .await;
    }
}

/// Removes the folder `dir`. It is renamed to `aside` first, so that a crash leaves no half of a run under its name.
fn remove(dir: &Path, aside: &Path) -> Result<(), ServerError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ServerError::Disk { what: "remove", path, source }
    };
    fs::rename(dir, aside).map_err(failed(dir))?;
    fs::remove_dir_all(aside).map_err(failed(aside))
}
