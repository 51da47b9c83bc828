//! Ctrl+C: the first asks for an end, the second is one.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use signal_hook::{consts::TERM_SIGNALS, flag};

/// The exit code after a second signal, as shells count it: 128 + SIGINT.
const STOPPED: i32 = 130;

/// Whether somebody asked for an end.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches Ctrl+C and its like from here on.
    ///
    /// # Errors
    /// The system refused.
    pub fn catch() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in TERM_SIGNALS {
            // In this order: the first signal must not find what it sets itself.
            flag::register_conditional_shutdown(*signal, STOPPED, Arc::clone(&asked))?;
            flag::register(*signal, Arc::clone(&asked))?;
        }
        Ok(Self(asked))
    }

    /// Whether somebody did.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
