//! Child processes: waits, interrupts, kills.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for anything that must come; shared machines can be slow.
pub const WAIT: Duration = Duration::from_secs(180);
/// Interval between two checks.
pub(crate) const POLL: Duration = Duration::from_millis(50);

pub(crate) fn kill(child: &mut Child) {
    // Fails only if the process has already ended, which is fine.
    let _ = child.kill();
    let _ = child.wait();
}

pub(crate) fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "SIGINT cannot be sent");
}

pub(crate) fn ended(child: &mut Child, who: &str, log: &str) -> ExitStatus {
    let start = clock();
    while start.elapsed() < WAIT {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status;
        }
        sleep(POLL);
    }
    panic!("the {who} does not end in {WAIT:?}\n{log}");
}

pub(crate) fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[expect(clippy::disallowed_methods, reason = "processes run by the real clock")]
pub(crate) fn clock() -> Instant {
    Instant::now()
}
