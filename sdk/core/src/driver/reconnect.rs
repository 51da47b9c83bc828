//! Connection to the syncer: when to open it, when to give it up, and when to retry; the limits of the syncer's
//! silence and of the time without admission.

use super::backoff::{Backoff, Doubling};
use super::{DriverConfig, NO_ANSWER};
use crate::rng;
use crate::wire::CloseCode;

/// Time limit for opening a connection, in microseconds.
const OPEN_US_MAX: u64 = 10_000_000;
/// Period after the syncer's last data in which the syncer is expected back soon, in microseconds. It applies only if
/// the learner had been admitted for at least [`FRESH_MIN_MS`].
const FRESH_US: u64 = 10_000_000;
const FRESH_MIN_MS: u64 = 500;
/// Maximum wait before a connection attempt within [`FRESH_US`], in milliseconds. With it, 1,000 learners make at
/// most 1,400 attempts per second, and a restart of the syncer costs each of them at most a second.
const FRESH_WAIT_MS_MAX: u64 = 1_000;

/// Cause of the end of a connection.
#[derive(Debug, Default)]
pub(super) struct DisconnectCause<'a> {
    /// Cause in words.
    pub(super) reason: &'a str,
    /// Cause as a number, if the syncer gave one.
    pub(super) code: Option<CloseCode>,
    /// Time in milliseconds for which the syncer asked the learner to stay away; 0 if it did not.
    pub(super) wait_ms: u32,
}

/// The sequence of connections to one syncer.
#[derive(Debug)]
pub(super) struct Reconnect {
    connection: Connection,
    backoff: Backoff,
    patience: SilenceLimit,
    /// Earliest time of the next attempt, in microseconds.
    not_before_us: u64,
    /// End of the period [`FRESH_US`], in microseconds.
    fresh_until_us: u64,
    absence: Downtime,
}

#[derive(Debug)]
enum Connection {
    /// There is no connection; the next attempt is at `retry_us`.
    Down { retry_us: u64 },
    /// A connection is being opened.
    Opening { silence: Keepalive },
    /// The connection is open. The first message sets `answered`, the admission sets `welcomed_us`.
    Open { welcomed_us: Option<u64>, answered: bool, silence: Keepalive },
}

impl Reconnect {
    /// Returns a state in which the first attempt is due at once.
    pub(super) fn new(config: &DriverConfig, seed: u64) -> Self {
        Self {
            connection: Connection::Down { retry_us: 0 },
            backoff: Backoff::new(config.waits.backoff, rng::key(&[seed, 0])),
            patience: SilenceLimit::new(config.waits.patience),
            not_before_us: 0,
            fresh_until_us: 0,
            absence: Downtime::new(config),
        }
    }

    /// Begins a connection attempt if one is due, and returns whether it did.
    pub(super) fn connect(&mut self, now_us: u64) -> bool {
        let due = matches!(self.connection, Connection::Down { retry_us } if retry_us <= now_us);
        if due {
            self.connection = Connection::Opening { silence: Keepalive::new(now_us) };
        }
        due
    }

    /// Handles the opening of the connection.
    pub(super) fn opened(&mut self, now_us: u64) {
        self.absence.set_reason("", None);
        self.patience.watch();
        self.connection =
            Connection::Open { welcomed_us: None, answered: false, silence: Keepalive::new(now_us) };
    }

    /// Handles [`super::Input::Heard`].
    pub(super) fn heard(&mut self, now_us: u64) {
        if let Connection::Opening { silence } | Connection::Open { silence, .. } = &mut self.connection {
            self.patience.end_silence(silence.observe(now_us));
            silence.end(now_us);
        }
    }

    /// Handles an incoming message.
    pub(super) fn answered(&mut self, now_us: u64) {
        self.heard(now_us);
        if let Connection::Open { answered, .. } = &mut self.connection {
            *answered = true;
        }
    }

    /// Handles the admission of this learner.
    pub(super) fn welcomed(&mut self, now_us: u64) {
        self.absence.end();
        if let Connection::Open { welcomed_us, .. } = &mut self.connection {
            welcomed_us.get_or_insert(now_us);
        }
    }

    /// Returns the reason to give the connection up, if it did not open in time or was silent for too long. Call it
    /// often, after all input has been handled. The syncer's first message always has a time limit; later silence is
    /// measured only if `awaited` is true.
    pub(super) fn timeout_reason(&mut self, now_us: u64, awaited: bool) -> Option<String> {
        match &mut self.connection {
            Connection::Down { .. } => None,
            Connection::Opening { silence } => {
                let late = silence.observe(now_us) >= OPEN_US_MAX;
                late.then(|| format!("no connection within {} s", OPEN_US_MAX / 1_000_000))
            }
            Connection::Open { answered: true, silence, .. } if !awaited => {
                silence.forgive(now_us);
                None
            }
            Connection::Open { silence, .. } => {
                let lost = silence.observe(now_us) >= self.patience.us();
                lost.then(|| format!("nothing was heard for {} s", self.patience.lose()))
            }
        }
    }

    /// Returns true if the silence is so long that [`Input::DrainNow`](super::Input::DrainNow) should replace the
    /// connection.
    pub(super) fn is_doubtful(&self, now_us: u64) -> bool {
        let Connection::Open { silence, .. } = &self.connection else { return false };
        silence.lasts_us(now_us) > self.patience.reconnect_limit_us()
    }

    /// Ends the connection, if there is one, and returns the wait before the next attempt, in milliseconds. A wait
    /// that the syncer asked for has priority, but [`Self::retry_now`] can shorten it. Otherwise the wait is that of
    /// [`Backoff::next_ms_within`]. Within [`FRESH_US`] it is at most [`FRESH_WAIT_MS_MAX`], because a refused
    /// connection then means only that the syncer is not back yet.
    pub(super) fn end(&mut self, now_us: u64, ending: &DisconnectCause<'_>) -> Option<u64> {
        let healthy_ms = match self.connection {
            Connection::Down { .. } => return None,
            Connection::Opening { .. } => 0,
            Connection::Open { welcomed_us: None, .. } => 0,
            // Silence at the end of a connection is not part of the healthy time.
            Connection::Open { welcomed_us: Some(from_us), ref silence, .. } => {
                let held_ms = silence.last_input_us().saturating_sub(from_us) / 1_000;
                if held_ms >= FRESH_MIN_MS {
                    self.fresh_until_us = silence.last_input_us().saturating_add(FRESH_US);
                }
                held_ms
            }
        };
        let ms_max = if now_us < self.fresh_until_us { FRESH_WAIT_MS_MAX } else { u64::MAX };
        let retry_ms = match self.not_before_us.saturating_sub(now_us).div_ceil(1_000) {
            0 if ending.wait_ms > 0 => u64::from(ending.wait_ms),
            0 => self.backoff.next_ms_within(healthy_ms, ms_max),
            postponed_ms => postponed_ms.max(ending.wait_ms.into()),
        };
        self.connection = Connection::Down { retry_us: now_us.saturating_add(retry_ms * 1_000) };
        self.absence.set_reason(ending.reason, ending.code);
        self.absence.begin(now_us, ending.wait_ms);
        Some(retry_ms)
    }

    /// Postpones the next attempt to `at_us` or later, because the device was lost.
    pub(super) fn postpone(&mut self, at_us: u64) {
        self.not_before_us = at_us;
        if let Connection::Down { retry_us } = &mut self.connection {
            *retry_us = at_us.max(*retry_us);
        }
    }

    /// Moves the next attempt to the earliest permitted time, at the request of the learner's owner.
    pub(super) fn retry_now(&mut self, now_us: u64) {
        if let Connection::Down { retry_us } = &mut self.connection {
            *retry_us = now_us.max(self.not_before_us).min(*retry_us);
        }
    }

    /// Returns the code with which the syncer ended the last connection, if it gave one.
    pub(super) fn refusal(&self) -> Option<CloseCode> {
        self.absence.code
    }

    /// Returns true if messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.connection, Connection::Open { .. })
    }

    /// Returns true if no connection is open or being opened.
    pub(super) fn is_down(&self) -> bool {
        matches!(self.connection, Connection::Down { .. })
    }

    /// Returns the time since the last admission in milliseconds and its reason, if it exceeds the limit.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        self.absence.too_long(now_us)
    }

    /// Returns the reason and the time until the next attempt, if the connection was lost.
    pub(super) fn offline(&self, now_us: u64) -> Option<Offline<'_>> {
        let retry_us = match self.connection {
            Connection::Down { retry_us } => retry_us,
            Connection::Opening { .. } | Connection::Open { .. } => 0,
        };
        self.absence.offline(retry_us.saturating_sub(now_us).div_ceil(1_000))
    }

    /// Returns the time of the next call to [`Self::connect`], [`Self::timeout_reason`] and [`Self::too_long`], in
    /// microseconds.
    pub(super) fn deadline(&self, awaited: bool) -> Option<u64> {
        let connection_us = match &self.connection {
            Connection::Down { retry_us } => Some(*retry_us),
            Connection::Opening { silence } => Some(silence.check_at_us(OPEN_US_MAX)),
            Connection::Open { answered: true, .. } if !awaited => None,
            Connection::Open { silence, .. } => Some(silence.check_at_us(self.patience.us())),
        };
        connection_us.into_iter().chain(self.absence.deadline()).min()
    }
}

/// Maximum part of the time between two checks that is measured as silence, in microseconds. During a longer step or
/// a sleep of the machine, the program could not receive input.
const CHECK_GAP_US_MAX: u64 = 5_000_000;
/// Divisor of the first silence limit; the quotient is the limit after a request of the owner to reconnect.
const DOUBTFUL: u64 = 6;
/// Divisor of the first silence limit. If the peer is silent for longer than the quotient, it is slow.
const RESPONSIVE: u64 = 4;

/// Silence of one peer, measured by repeated checks.
#[derive(Clone, Debug)]
pub(super) struct Keepalive {
    last_input_us: u64,
    checked_us: u64,
    /// Measured silence in microseconds, up to the last check.
    silent_us: u64,
}

impl Keepalive {
    /// Returns a measurement that begins at `now_us`.
    pub(super) fn new(now_us: u64) -> Self {
        Self { last_input_us: now_us, checked_us: now_us, silent_us: 0 }
    }

    /// Restarts the measurement, because input arrived.
    pub(super) fn end(&mut self, now_us: u64) {
        *self = Self::new(now_us);
    }

    /// Adds the time since the last check, at most [`CHECK_GAP_US_MAX`], and returns the measured silence in
    /// microseconds.
    pub(super) fn observe(&mut self, now_us: u64) -> u64 {
        let since_us = now_us.saturating_sub(std::mem::replace(&mut self.checked_us, now_us));
        self.silent_us = self.silent_us.saturating_add(since_us.min(CHECK_GAP_US_MAX));
        self.silent_us
    }

    /// Discards the silence measured up to now.
    pub(super) fn forgive(&mut self, now_us: u64) {
        (self.checked_us, self.silent_us) = (now_us, 0);
    }

    /// Returns the time of the last input, in microseconds.
    pub(super) fn last_input_us(&self) -> u64 {
        self.last_input_us
    }

    /// Returns the time since the last input by the clock, in microseconds.
    pub(super) fn lasts_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.last_input_us)
    }

    /// Returns the time of the next check, in microseconds, for a silence limit of `patience_us`.
    pub(super) fn check_at_us(&self, patience_us: u64) -> u64 {
        self.checked_us.saturating_add(patience_us.saturating_sub(self.silent_us).min(CHECK_GAP_US_MAX))
    }
}

/// Time limit for silence. It doubles with each connection that is given up, because a paused or slow run is silent
/// too. It is reset once the peer was responsive for as long as the first limit: a peer that returns after an hour is
/// not slow.
#[derive(Clone, Debug)]
pub(super) struct SilenceLimit {
    span: Doubling,
    now_ms: u64,
    /// Time for which the peer has been responsive, in microseconds.
    responsive_us: u64,
}

impl SilenceLimit {
    /// Returns a limit that begins at `span.first_ms`.
    pub(super) fn new(span: Doubling) -> Self {
        Self { span, now_ms: span.first_ms, responsive_us: 0 }
    }

    /// Forgets the responsive time, at the start of a new connection.
    pub(super) fn watch(&mut self) {
        self.responsive_us = 0;
    }

    /// Handles the end of a silence of `silent_us`, as measured by [`Keepalive`].
    pub(super) fn end_silence(&mut self, silent_us: u64) {
        let first_us = self.span.first_ms.saturating_mul(1_000);
        let is_responsive = silent_us <= first_us / RESPONSIVE;
        self.responsive_us = if is_responsive { self.responsive_us.saturating_add(silent_us) } else { 0 };
        if self.responsive_us >= first_us {
            self.now_ms = self.span.first_ms;
        }
    }

    /// Returns the current limit in microseconds.
    pub(super) fn us(&self) -> u64 {
        self.now_ms.saturating_mul(1_000)
    }

    /// Returns the limit after a request of the owner to reconnect, in microseconds.
    pub(super) fn reconnect_limit_us(&self) -> u64 {
        self.span.first_ms.saturating_mul(1_000) / DOUBTFUL
    }

    /// Raises the limit after a silence reached it. Returns the old limit in seconds.
    pub(super) fn lose(&mut self) -> u64 {
        let lost_s = self.now_ms / 1_000;
        self.now_ms = self.span.after(self.now_ms);
        lost_s
    }
}

/// Reason for the missing connection, and the time until the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offline<'a> {
    /// Reason in words.
    pub reason: &'a str,
    /// Reason as a number, if the syncer gave one.
    pub code: Option<CloseCode>,
    /// Time until the next attempt, in milliseconds; 0 while one is under way.
    pub retry_ms: u64,
}

/// Time without admission, since the end of the last admitted connection or since the start.
#[derive(Debug)]
pub(super) struct Downtime {
    /// Start in microseconds; `None` while the learner is admitted. It is in the future if the syncer asked the
    /// learner to stay away.
    since_us: Option<u64>,
    /// Current limit in milliseconds; `None` sets no limit.
    ms_max: Option<u64>,
    /// Limit after the first admission.
    again_ms_max: Option<u64>,
    reason: String,
    code: Option<CloseCode>,
}

impl Downtime {
    /// Returns a time without admission that began at time 0.
    pub(super) fn new(config: &DriverConfig) -> Self {
        let DriverConfig { contact_ms_max, reconnect_ms_max, .. } = *config;
        let (since_us, reason) = (Some(0), String::new());
        Self { since_us, ms_max: contact_ms_max, again_ms_max: reconnect_ms_max, reason, code: None }
    }

    /// Ends the time without admission: the learner is admitted.
    pub(super) fn end(&mut self) {
        self.since_us = None;
        self.ms_max = self.again_ms_max;
    }

    /// Begins a time without admission, unless one has begun already. If the syncer asked the learner to wait for
    /// `wait_ms`, it begins only after that wait.
    pub(super) fn begin(&mut self, now_us: u64, wait_ms: u32) {
        match wait_ms {
            0 => _ = self.since_us.get_or_insert(now_us),
            _ => self.since_us = Some(now_us.saturating_add(u64::from(wait_ms) * 1_000)),
        }
    }

    /// Records the reason for the end of the last connection; empty while a connection is open.
    pub(super) fn set_reason(&mut self, reason: &str, code: Option<CloseCode>) {
        reason.clone_into(&mut self.reason);
        self.code = code;
    }

    /// Returns the time without admission in milliseconds and its reason, if it exceeds the limit.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        let waited_ms = now_us.saturating_sub(self.since_us?) / 1_000;
        let reason = if self.reason.is_empty() { NO_ANSWER } else { &self.reason };
        (waited_ms >= self.ms_max?).then(|| (waited_ms, reason.to_owned()))
    }

    /// Returns the reason, if a connection was lost and the learner has not been admitted since.
    pub(super) fn offline(&self, retry_ms: u64) -> Option<Offline<'_>> {
        self.since_us.filter(|_| !self.reason.is_empty())?;
        Some(Offline { reason: &self.reason, code: self.code, retry_ms })
    }

    /// Returns the time at which the limit is exceeded, in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.since_us?.saturating_add(self.ms_max?.saturating_mul(1_000)))
    }
}

#[cfg(test)]
mod tests {
    //! Tests of when a connection is given up and when the next attempt is made.

    use super::*;
    use crate::diloco::learner::LearnerConfig;
    use crate::driver::Waits;
    use crate::wire::Identity;

    const SECOND_US: u64 = 1_000_000;

    fn contact() -> Reconnect {
        let learner = LearnerConfig {
            identity: Identity([1; 32]),
            name: String::new(),
            device: String::new(),
            invite: None,
            serial_first: 1,
        };
        let (contact_ms_max, reconnect_ms_max) = (Some(30_000), Some(300_000));
        let waits = Waits::default();
        Reconnect::new(&DriverConfig { learner, contact_ms_max, reconnect_ms_max, waits, seed: 1 }, 1)
    }

    fn ended(reason: &str) -> DisconnectCause<'_> {
        DisconnectCause { reason, ..DisconnectCause::default() }
    }

    /// Returns the seconds from `from_s` until the connection is given up, with a check every second; `None` if it
    /// stays open for an hour.
    fn given_up_after(contact: &mut Reconnect, from_s: u64, awaited: bool) -> Option<u64> {
        (0..3_600).find(|after_s| contact.timeout_reason((from_s + after_s) * SECOND_US, awaited).is_some())
    }

    #[test]
    fn a_connection_that_does_not_open_is_given_up() {
        let mut contact = contact();
        assert!(contact.connect(0) && !contact.connect(0));
        assert_eq!(given_up_after(&mut contact, 0, false), Some(10));
    }

    #[test]
    fn silence_limit_applies_while_a_message_is_awaited_and_doubles() {
        let mut contact = contact();
        assert!(contact.connect(0));
        contact.opened(0);
        // The greeting is unanswered.
        assert_eq!(given_up_after(&mut contact, 0, false), Some(60));
        contact.end(60 * SECOND_US, &DisconnectCause::default());
        assert!(contact.connect(100 * SECOND_US));
        contact.opened(100 * SECOND_US);
        // Signs of life are not an answer to the greeting.
        contact.heard(200 * SECOND_US);
        assert_eq!(given_up_after(&mut contact, 200, false), Some(120));
        contact.answered(320 * SECOND_US);
        // The learner fetches the parameters for an hour, then trains.
        assert_eq!(given_up_after(&mut contact, 320, false), None);
        assert!(!contact.is_doubtful(330 * SECOND_US) && contact.is_doubtful(331 * SECOND_US));
        assert_eq!(given_up_after(&mut contact, 3_919, true), Some(240));
        // A step of an hour is not measured as silence of the peer.
        assert_eq!(contact.timeout_reason(4_200 * SECOND_US, false), None);
        assert_eq!(contact.timeout_reason(7_800 * SECOND_US, true), None);
    }

    #[test]
    fn checks_at_the_deadlines_give_up_at_the_same_time() {
        let mut contact = contact();
        assert!(contact.connect(0));
        contact.opened(0);
        contact.answered(0);
        contact.welcomed(0);
        let mut now_us = 0;
        while contact.timeout_reason(now_us, true).is_none() {
            now_us = contact.deadline(true).unwrap();
        }
        assert_eq!(now_us, 60 * SECOND_US);
    }

    /// Opens connections and loses them again, as soon as [`Reconnect`] permits.
    struct Loser {
        contact: Reconnect,
        now_us: u64,
    }

    impl Loser {
        /// Connects, runs `life` on the connection and loses it after the microseconds that `life` returns. Returns
        /// the wait before the next attempt in milliseconds.
        fn lose(&mut self, life: impl FnOnce(&mut Reconnect, u64) -> u64) -> u64 {
            let Self { contact, now_us } = self;
            assert!(contact.connect(*now_us), "{contact:?} at {now_us} µs");
            *now_us += life(contact, *now_us);
            let retry_ms = contact.end(*now_us, &ended("it broke")).unwrap();
            assert!(!contact.connect(*now_us + 1_000 * retry_ms - 1), "{contact:?}");
            *now_us += 1_000 * retry_ms;
            retry_ms
        }
    }

    /// Returns a connection that is admitted at once, receives its last data after `last_input_us` and ends after
    /// `held_us`.
    fn welcomed(last_input_us: u64, held_us: u64) -> impl FnOnce(&mut Reconnect, u64) -> u64 {
        move |contact, now_us| {
            contact.opened(now_us);
            contact.answered(now_us);
            contact.welcomed(now_us);
            contact.heard(now_us + last_input_us);
            held_us
        }
    }

    #[test]
    fn attempts_back_off_until_a_connection_is_healthy() {
        let mut loser = Loser { contact: contact(), now_us: 0 };
        for ceiling_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000] {
            let retry_ms = loser.lose(|_, _| 0);
            assert!((ceiling_ms / 2..=ceiling_ms).contains(&retry_ms), "{retry_ms} of {ceiling_ms}");
        }
        // Connections without admission, with silence after the admission, and with a failure soon after the
        // admission.
        let open = |contact: &mut Reconnect, now_us| {
            contact.opened(now_us);
            contact.heard(now_us + 60 * SECOND_US);
            60 * SECOND_US
        };
        assert!(loser.lose(open) > 7_000);
        assert!(loser.lose(welcomed(0, 60 * SECOND_US)) > 7_000);
        assert!(loser.lose(welcomed(SECOND_US / 2 - 1_000, SECOND_US / 2)) > 7_000);
        // A healthy second undoes two doublings, and three seconds undo all of them.
        assert!((1_875..=3_750).contains(&loser.lose(welcomed(SECOND_US, 60 * SECOND_US))));
        assert!(loser.lose(welcomed(3 * SECOND_US, 3 * SECOND_US)) <= 250);
    }

    /// Goal: twenty crashes of the syncer in a row, some seconds apart and some seconds long, are overcome as fast as
    /// the first one. No learner reconnects later than a second after the syncer is back.
    #[test]
    fn reconnection_after_the_twentieth_crash_is_as_fast_as_after_the_first() {
        for (up_s, down_ms) in [(10, 500), (3, 500), (3, 2_600), (1, 8_000)] {
            let mut loser = Loser { contact: contact(), now_us: 0 };
            for crash in 0..20 {
                let mut away_ms = loser.lose(welcomed(up_s * SECOND_US, up_s * SECOND_US));
                while away_ms < down_ms {
                    away_ms += loser.lose(|_, _| 0);
                }
                assert!(away_ms <= down_ms + 1_000, "crash {crash} of {up_s} s: {away_ms} ms of {down_ms}");
            }
        }
    }

    /// Goal: a learner whose syncer is away for long does not retry every second.
    #[test]
    fn attempts_back_off_while_the_syncer_is_away() {
        let mut loser = Loser { contact: contact(), now_us: 0 };
        let mut away_ms = loser.lose(welcomed(3 * SECOND_US, 3 * SECOND_US));
        while away_ms < 10_000 {
            let retry_ms = loser.lose(|_, _| 0);
            assert!(retry_ms <= 1_000, "{retry_ms} after {away_ms}");
            away_ms += retry_ms;
        }
        for ceiling_ms in [2_000, 4_000, 8_000, 15_000] {
            let retry_ms = loser.lose(|_, _| 0);
            assert!((ceiling_ms / 2..=ceiling_ms).contains(&retry_ms), "{retry_ms} of {ceiling_ms}");
        }
    }

    /// Goal: after a syncer has recovered from long silence, a new silence of a minute is enough to give it up.
    #[test]
    fn patience_is_reset_after_the_syncer_recovers() {
        let mut contact = contact();
        let mut now_us = 0;
        for patience_s in [60, 120, 240] {
            now_us += 20 * SECOND_US;
            assert!(contact.connect(now_us));
            contact.opened(now_us);
            assert_eq!(given_up_after(&mut contact, now_us / SECOND_US, true), Some(patience_s));
            now_us += patience_s * SECOND_US;
            contact.end(now_us, &DisconnectCause::default());
        }
        now_us += 20 * SECOND_US;
        assert!(contact.connect(now_us));
        contact.opened(now_us);
        for _ in 0..61 {
            now_us += SECOND_US;
            contact.answered(now_us);
        }
        assert_eq!(given_up_after(&mut contact, now_us / SECOND_US, true), Some(60));
    }

    #[test]
    fn requested_wait_overrides_backoff_and_device_wait_overrides_both() {
        let asked = DisconnectCause { reason: "dropped", code: Some(CloseCode::Dropped), wait_ms: 20_000 };
        let mut away = contact();
        away.connect(0);
        away.opened(0);
        assert_eq!(away.end(0, &asked), Some(20_000));
        assert_eq!(away.end(0, &asked), None, "there is none any more");
        // The time without admission begins only after the wait that the syncer asked for.
        assert_eq!(away.too_long(49 * SECOND_US), None);
        assert_eq!(away.too_long(50 * SECOND_US), Some((30_000, "dropped".to_owned())));
        assert_eq!(away.refusal(), Some(CloseCode::Dropped));
        let offline = away.offline(5 * SECOND_US).unwrap();
        assert_eq!(
            (offline.reason, offline.code, offline.retry_ms),
            ("dropped", Some(CloseCode::Dropped), 15_000)
        );
        away.retry_now(6 * SECOND_US);
        assert!(away.connect(6 * SECOND_US));

        let mut lost = contact();
        lost.connect(0);
        lost.opened(0);
        lost.postpone(60 * SECOND_US);
        assert_eq!(lost.end(0, &asked), Some(60_000));
        lost.retry_now(6 * SECOND_US);
        assert!(!lost.connect(60 * SECOND_US - 1) && lost.connect(60 * SECOND_US));
    }

    #[test]
    fn absence_beyond_the_limit_is_reported() {
        let mut contact = contact();
        contact.connect(0);
        contact.end(0, &ended("nobody answers"));
        assert_eq!(contact.too_long(30 * SECOND_US - 1), None);
        assert_eq!(contact.too_long(30 * SECOND_US), Some((30_000, "nobody answers".to_owned())));
        contact.connect(30 * SECOND_US);
        contact.opened(30 * SECOND_US);
        assert_eq!(
            contact.too_long(30 * SECOND_US),
            Some((30_000, "no answer".to_owned())),
            "it is not taken in"
        );
        assert_eq!(contact.offline(30 * SECOND_US), None, "there is nothing to say");
        contact.welcomed(30 * SECOND_US);
        assert_eq!(contact.too_long(3_600 * SECOND_US), None);
        // After the first admission the limit is longer.
        contact.end(100 * SECOND_US, &ended("it broke"));
        assert_eq!(contact.too_long(400 * SECOND_US - 1), None);
        assert_eq!(contact.too_long(400 * SECOND_US), Some((300_000, "it broke".to_owned())));
    }

    #[test]
    fn a_long_gap_between_checks_adds_little_silence() {
        let mut silence = Keepalive::new(0);
        assert_eq!(silence.observe(3 * SECOND_US), 3 * SECOND_US);
        assert_eq!(silence.observe(3_600 * SECOND_US), 8 * SECOND_US);
        assert_eq!(silence.lasts_us(3_600 * SECOND_US), 3_600 * SECOND_US);
        silence.forgive(3_600 * SECOND_US);
        assert_eq!(silence.observe(3_601 * SECOND_US), SECOND_US);
        silence.end(3_602 * SECOND_US);
        assert_eq!((silence.observe(3_602 * SECOND_US), silence.lasts_us(3_603 * SECOND_US)), (0, SECOND_US));
    }

    #[test]
    fn checks_at_the_returned_times_measure_all_silence() {
        let mut silence = Keepalive::new(0);
        let mut now_us = 0;
        for check_s in [5, 10, 12] {
            assert_eq!(silence.check_at_us(12 * SECOND_US), check_s * SECOND_US);
            now_us = silence.check_at_us(12 * SECOND_US);
            silence.observe(now_us);
        }
        assert_eq!(silence.observe(now_us), 12 * SECOND_US);
    }

    #[test]
    fn patience_doubles_from_a_minute_to_sixteen() {
        let mut patience = SilenceLimit::new(Waits::default().patience);
        for patience_s in [60, 120, 240, 480, 960, 960] {
            assert_eq!(patience.us(), patience_s * SECOND_US);
            assert_eq!(patience.lose(), patience_s);
        }
        assert_eq!(patience.reconnect_limit_us(), 10 * SECOND_US);
    }

    #[test]
    fn patience_is_reset_by_a_responsive_peer_only() {
        let mut patience = SilenceLimit::new(Waits::default().patience);
        (0..3).for_each(|_| _ = patience.lose());
        // A message every five minutes, in bursts: the grown limit is needed.
        for _ in 0..100 {
            patience.end_silence(300 * SECOND_US);
            patience.end_silence(10 * SECOND_US);
        }
        assert_eq!(patience.us(), 480 * SECOND_US);
        patience.watch();
        for patience_s in [480, 480, 480, 60] {
            patience.end_silence(15 * SECOND_US);
            assert_eq!(patience.us(), patience_s * SECOND_US);
        }
        assert_eq!((patience.lose(), patience.us()), (60, 120 * SECOND_US));
    }
}
