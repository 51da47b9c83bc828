//! The first falling loss: how long a newcomer waits until there is something to see.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use crate::status::Status;

/// When the command was given.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// When this program began.
    pub start: Instant,
    /// What was spent on building before that.
    pub build: Duration,
}

impl Since {
    /// Seconds until now.
    pub fn seconds(self) -> f64 {
        (self.build + self.start.elapsed()).as_secs_f64()
    }
}

/// The first held-out loss that is below the one of the first parameters. Losses are in nats per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Fall {
    /// Seconds since the command was given, builds included.
    pub after_s: f64,
    /// Of these, seconds since the first token was trained on.
    trained_s: f64,
    from: f64,
    to: f64,
}

impl Fall {
    /// Whether the loss in `status` has fallen.
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
