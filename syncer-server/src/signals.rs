//! Signals to stop: the first one is for a polite end, a second one for an end at once.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use archipelago_runtime::platform::hears_hangup;
use signal_hook::{consts::TERM_SIGNALS, flag, low_level};
use syncer_server::{Exit, ServerError};
use tokio::sync::oneshot;

/// Time between two looks at whether a signal came.
const POLL: Duration = Duration::from_millis(20);

/// The signal of a terminal that closes: SIGHUP, which is 1 wherever it is heard.
const HANGUP: i32 = 1;

/// Signals so soon after the first one are the same wish said twice: a terminal tells the whole group of processes, and
/// whoever started the program tells it, too.
const SAME_WITHIN: Duration = Duration::from_millis(500);

/// Resolves at the first signal to stop, or when the terminal closes. A second one stops the process at once,
/// regardless of its other work.
///
/// # Errors
/// `System`: signals cannot be heard.
pub fn signalled() -> Result<impl Future<Output = ()> + Send, ServerError> {
    let came = Arc::new(AtomicBool::new(false));
    let system = |source| ServerError::System { what: "cannot listen for signals".into(), source };
    let hangup = hears_hangup().then_some(&HANGUP);
    for signal in TERM_SIGNALS.iter().chain(hangup) {
        flag::register(*signal, Arc::clone(&came)).map_err(system)?;
    }
    let (tell, told) = oneshot::channel();
    // A thread of its own, which no work of the program keeps from looking.
    let heard = thread::Builder::new().name("signals".to_owned()).spawn(move || listen(&came, tell));
    heard.map_err(system)?;
    Ok(async move {
        // Whoever listens never ends before it has told.
        drop(told.await);
        tracing::info!("stopping: learners are told and the run is saved; once more to stop at once");
    })
}

/// Tells of the first signal, and ends the process at the second.
fn listen(came: &AtomicBool, tell: oneshot::Sender<()>) {
    let mut wishes = Wishes::default();
    let mut tell = Some(tell);
    loop {
        if came.swap(false, Ordering::Relaxed) {
            match wishes.hear(Instant::now()) {
                Wish::Stop => drop(tell.take().map(|tell| tell.send(()))),
                Wish::Same => {}
                Wish::StopNow => low_level::exit(u8::from(Exit::Stopped).into()),
            }
        }
        thread::sleep(POLL);
    }
}

/// The signals that came.
#[derive(Default)]
struct Wishes {
    first: Option<Instant>,
}

/// What a signal means.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Stop,
    Same,
    StopNow,
}

impl Wishes {
    fn hear(&mut self, now: Instant) -> Wish {
        match self.first {
            None => {
                self.first = Some(now);
                Wish::Stop
            }
            Some(first) if now.duration_since(first) < SAME_WITHIN => Wish::Same,
            Some(_) => Wish::StopNow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_at_once_are_one_wish() {
        let start = Instant::now();
        let mut wishes = Wishes::default();
        let mut hear = |after_ms| wishes.hear(start + Duration::from_millis(after_ms));
        assert_eq!(
            [hear(0), hear(0), hear(499), hear(500)],
            [Wish::Stop, Wish::Same, Wish::Same, Wish::StopNow]
        );
    }
}
