//! Time to the first fall of the held-out loss.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use crate::status::Status;

/// Start time of the command.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// Start time of this program.
    pub start: Instant,
    /// Time spent on the build before that.
    pub build: Duration,
}

impl Since {
    /// Returns the seconds since the command was given.
    pub fn seconds(self) -> f64 {
        (self.build + self.start.elapsed()).as_secs_f64()
    }
}

/// First held-out loss below that of the initial parameters. Losses are in nats per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Fall {
    /// Seconds since the command was given, including builds.
    pub after_s: f64,
    /// Seconds since the first trained token.
    trained_s: f64,
    from: f64,
    to: f64,
}

impl Fall {
    /// Returns the fall if the loss in `status` has fallen.
    pub fn see(status: &Status, after_s: f64, trained_s: f64) -> Option<Self> {
        let (from, to) = status.val_loss_first.zip(status.val_loss)?;
        (to < from).then_some(Self { after_s, trained_s, from, to })
    }
}

impl Display for Fall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { after_s, trained_s, from, to } = self;
        write!(
            f,
            "first falling loss after {after_s:.0} s, {trained_s:.0} s of them training: held-out {from:.3} → {to:.3}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lower_loss_is_a_fall() {
        let see = |first, last| {
            let status = Status { val_loss_first: first, val_loss: last, ..Status::default() };
            Fall::see(&status, 95.0, 9.0).map(|fall| fall.to_string())
        };
        assert_eq!(see(None, None), None);
        assert_eq!(see(Some(5.5), Some(5.5)), None);
        assert_eq!(see(Some(5.5), Some(f64::NAN)), None);
        let said = "first falling loss after 95 s, 9 s of them training: held-out 5.552 → 4.910";
        assert_eq!(see(Some(5.552), Some(4.91)).unwrap(), said);
    }
}
