//! The server of several runs: the listener, and the registry of runs behind it.

use std::future::Future;
use std::sync::Arc;

use futures::future::join_all;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::routes;
use super::run_registry::RunRegistry;
use crate::config::ServeConfig;
use crate::errors::ServerError;
use crate::links::Links;
use crate::open_run::{self, blocking};
use crate::{http, listener};

/// Serves every run in the folder of `config` on `listener` until `shutdown` resolves. Calls `on_ready` once the runs
/// are listed, and then opens each of them; `/readyz` reports when all are open. A run that fails is reported and does
/// not stop the others.
///
/// # Errors
/// - `Config`: the folder is not given.
/// - `Certificate`: the certificate cannot be used.
/// - `Disk`: the folder cannot be read or written.
pub async fn host(
    listener: TcpListener,
    config: ServeConfig,
    on_ready: impl FnOnce(),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    let Some(folder) = config.server.runs.clone() else {
        return Err(ServerError::Config { why: "give --runs the folder of the runs".into() });
    };
    let entrance = listener::open(&config)?;
    let address = listener.local_addr().ok();
    let links = address.map(|address| Links::of(address, &config).pages).unwrap_or_default();
    let here = address.map(|address| Links::here(address, &config));
    let shares = entrance.shares();
    let opened = blocking(move || RunRegistry::open(folder, config, (links, here), shares));
    let (registry, names) = opened.await??;
    if let Some(missing_pages_warning) = http::missing_pages_warning(registry.server().pages.as_deref()) {
        tracing::warn!("{missing_pages_warning}");
    }
    let registry = Arc::new(registry);
    let (stop, stopping) = watch::channel(false);
    let runs = Arc::clone(&registry);
    let on_renewal = move |shown| open_run::certificate(runs.served(), shown);
    tokio::spawn(entrance.clone().renew(stopping.clone(), on_renewal));
    let web =
        tokio::spawn(listener::answer(listener, entrance, routes::router(Arc::clone(&registry)), stopping));
    on_ready();
    let starting = names.into_iter().map(|name| {
        let registry = Arc::clone(&registry);
        async move {
            // Errors are in the log and in the list of runs.
            drop(registry.start(&name).await);
        }
    });
    let started = tokio::spawn(join_all(starting));
    shutdown.await;
    registry.close().await;
    drop(started.await);
    stop.send_replace(true);
    web.abort();
    Ok(())
}
