//! Ctrl+C: the first signal requests an end, the second ends the process.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use signal_hook::{consts::TERM_SIGNALS, flag};

/// Exit code after a second signal: 128 + SIGINT, as in shells.
const STOPPED: i32 = 130;

/// Flag that is set once an end was requested.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches Ctrl+C and similar signals from here on.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn catch() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in TERM_SIGNALS {
            // The order matters: the first signal must not see the flag that it sets itself.
            flag::register_conditional_shutdown(*signal, STOPPED, Arc::clone(&asked))?;
            flag::register(*signal, Arc::clone(&asked))?;
        }
        Ok(Self(asked))
    }

    /// Returns true if an end was requested.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
