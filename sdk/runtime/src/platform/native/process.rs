//! Secrets on disk and signals.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens `path` to read and write, and creates it for its owner alone if it is not there.
///
/// # Errors
/// The errors of the operating system.
pub fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Waits until somebody asks this process to end: Ctrl+C, or SIGTERM where there is such a thing.
/// From the first poll on neither ends the process by itself.
///
/// # Errors
/// The errors of the operating system, if it does not let us listen for signals.
#[cfg(unix)]
pub async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

/// Waits until somebody asks this process to end: Ctrl+C, or SIGTERM where there is such a thing.
/// From the first poll on neither ends the process by itself.
///
/// # Errors
/// The errors of the operating system, if it does not let us listen for signals.
#[cfg(not(unix))]
pub async fn interrupted() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
