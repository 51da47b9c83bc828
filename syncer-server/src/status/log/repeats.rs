//! Rate limit for repeated log lines.

use std::collections::BTreeMap;

use archipelago_core::diloco::Millis;

use super::LogEvent;

/// Time before the same event is logged again, in milliseconds.
const QUIET_MS: u64 = 600_000;

/// Maximum number of event kinds that are counted at once.
const KINDS_MAX: usize = 1_024;

/// Refusals by learner and reason, with their counts since the last log line. A broken learner, or a stranger that
/// tries every second, must not push everything else out of the log.
#[derive(Debug, Default)]
pub struct Repeats {
    told: BTreeMap<String, (Millis, u32)>,
}

impl Repeats {
    /// Returns `what` with its count if it is due for the log; `None` if it is only counted.
    pub fn pass(&mut self, now: Millis, what: LogEvent) -> Option<LogEvent> {
        let key = match &what {
            LogEvent::Refused { learner, why, .. } => format!("{learner} {why:?}"),
            LogEvent::TurnedAway { reason, .. } => format!("- {reason}"),
            _ => return Some(what),
        };
        if let Some((at, untold)) = self.told.get_mut(&key)
            && now.since(*at) < QUIET_MS
        {
            *untold = untold.saturating_add(1);
            return None;
        }
        let count = self.told.remove(&key).map_or(1, |(_, untold)| untold.saturating_add(1));
        if self.told.len() >= KINDS_MAX {
            self.told.retain(|_, (at, _)| now.since(*at) < QUIET_MS);
        }
        if self.told.len() >= KINDS_MAX {
            let oldest = self.told.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.told.remove(&oldest));
        }
        self.told.insert(key, (now, 0));
        Some(match what {
            LogEvent::Refused { learner, name, why, .. } => {
                LogEvent::Refused { learner, name, why, times: count }
            }
            LogEvent::TurnedAway { reason, .. } => LogEvent::TurnedAway { reason, times: count },
            what => what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned_away(reason: &str) -> LogEvent {
        LogEvent::TurnedAway { reason: reason.to_owned(), times: 1 }
    }

    #[test]
    fn the_same_is_told_now_and_then_with_its_count() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.pass(Millis(0), turned_away("full")), Some(turned_away("full")));
        for second in 1..600 {
            assert_eq!(repeats.pass(Millis(second * 1_000), turned_away("full")), None, "{second}");
        }
        assert_eq!(repeats.pass(Millis(1_000), turned_away("no invite")), Some(turned_away("no invite")));
        let told = LogEvent::TurnedAway { reason: "full".into(), times: 600 };
        assert_eq!(repeats.pass(Millis(600_000), turned_away("full")), Some(told));
        assert_eq!(repeats.pass(Millis(600_001), turned_away("full")), None);
        assert_eq!(repeats.pass(Millis(600_001), LogEvent::Finishing), Some(LogEvent::Finishing));
    }

    #[test]
    fn a_flood_of_reasons_is_bounded() {
        let mut repeats = Repeats::default();
        for number in 0..3 * KINDS_MAX as u64 {
            assert!(repeats.pass(Millis(number), turned_away(&number.to_string())).is_some());
            assert!(repeats.told.len() <= KINDS_MAX);
        }
    }
}
