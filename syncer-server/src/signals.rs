//! Signals that stop the program: gracefully at the first, at once at the second.

use std::future::Future;
use std::time::{Duration, Instant};
use std::{io, process, thread};

use syncer_server::{Exit, ServerError};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// Period after the first signal in which further signals belong to the same request. A terminal signals the whole
/// process group, and the parent process may pass the signal on.
const SAME_WITHIN: Duration = Duration::from_millis(500);

/// Resolves at the first signal to stop, or when the terminal closes. A second signal stops the process at once,
/// regardless of its other work.
///
/// # Errors
/// `System`: the system does not let us listen for signals.
pub fn signalled() -> Result<impl Future<Output = ()> + Send, ServerError> {
    let system = |source| ServerError::System { what: "cannot listen for signals".into(), source };
    // A runtime and a thread of their own, so that no other work delays a signal.
    let runtime = Builder::new_current_thread().enable_io().build().map_err(system)?;
    let signals = {
        let _context = runtime.enter();
        Signals::listen().map_err(system)?
    };
    let (stop, stopped) = oneshot::channel();
    let listen = move || runtime.block_on(forward(signals, stop));
    thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(system)?;
    Ok(async move {
        // The thread ends only after it has sent.
        drop(stopped.await);
        tracing::info!(
            "stopping: learners are informed and the run is saved; press Ctrl+C or send the signal again to stop at \
             once"
        );
    })
}

/// Sends the first signal to `stop`, and ends the process at the second.
async fn forward(mut signals: Signals, stop: oneshot::Sender<()>) {
    let mut received = StopSignals::default();
    let mut stop = Some(stop);
    loop {
        signals.next().await;
        match received.receive(Instant::now()) {
            StopRequest::Stop => drop(stop.take().map(|stop| stop.send(()))),
            StopRequest::Same => {}
            StopRequest::StopNow => process::exit(u8::from(Exit::Stopped).into()),
        }
    }
}

/// The signals that stop the program: SIGINT, SIGTERM, SIGQUIT and, unless the process ignores it, SIGHUP.
#[cfg(unix)]
struct Signals(Vec<tokio::signal::unix::Signal>);

#[cfg(unix)]
impl Signals {
    /// Starts listening. From now on, none of the signals ends the process by itself.
    fn listen() -> io::Result<Self> {
        use archipelago_runtime::platform::handles_sighup;
        use tokio::signal::unix::{SignalKind, signal};

        let hangup = handles_sighup().then(SignalKind::hangup);
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()];
        kinds.into_iter().chain(hangup).map(signal).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        futures::future::select_all(self.0.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    }
}

/// The signal that stops the program: Ctrl+C.
#[cfg(not(unix))]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(not(unix))]
impl Signals {
    /// Starts listening. From now on, Ctrl+C does not end the process by itself.
    fn listen() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// The received signals.
#[derive(Default)]
struct StopSignals {
    first: Option<Instant>,
}

/// The meaning of a signal.
#[derive(Debug, PartialEq, Eq)]
enum StopRequest {
    Stop,
    Same,
    StopNow,
}

impl StopSignals {
    fn receive(&mut self, now: Instant) -> StopRequest {
        match self.first {
            None => {
                self.first = Some(now);
                StopRequest::Stop
            }
            Some(first) if now.duration_since(first) < SAME_WITHIN => StopRequest::Same,
            Some(_) => StopRequest::StopNow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_signals_are_one_request() {
        let start = Instant::now();
        let mut received = StopSignals::default();
        let mut receive = |after_ms| received.receive(start + Duration::from_millis(after_ms));
        assert_eq!(
            [receive(0), receive(0), receive(499), receive(500)],
            [StopRequest::Stop, StopRequest::Same, StopRequest::Same, StopRequest::StopNow]
        );
    }
}
