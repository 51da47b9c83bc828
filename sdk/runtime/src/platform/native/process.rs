//! Secrets on disk and signals.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
#[cfg(unix)]
use std::sync::LazyLock;

#[cfg(unix)]
use crate::platform::hears_hangup;

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

/// Waits for a request to end this process: Ctrl+C, SIGTERM, or a terminal that closes (see [`hears_hangup`]). From the
/// first poll on, none of these signals ends the process by itself.
///
/// # Errors
/// The errors of the operating system, if it does not let us listen for signals.
#[cfg(unix)]
pub async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    // Read before the handler is installed, since the handler changes the mask.
    static HEARS_HANGUP: LazyLock<bool> = LazyLock::new(hears_hangup);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = if *HEARS_HANGUP { Some(signal(SignalKind::hangup())?) } else { None };
    let hung_up = async {
        match &mut hangup {
            Some(hangup) => hangup.recv().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
        _ = hung_up => Ok(()),
    }
}

/// Waits for a request to end this process: Ctrl+C, or SIGTERM where it exists. From the first poll on, neither ends
/// the process by itself.
///
/// # Errors
/// The errors of the operating system, if it does not let us listen for signals.
#[cfg(not(unix))]
pub async fn interrupted() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
