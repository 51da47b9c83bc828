//! Posts of alerts to a URL of the owner (`--webhook`).
//!
//! A separate thread posts them, so that no caller waits. Failed posts are retried and finally dropped; the log reports
//! a failure once.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use archipelago_runtime::platform::{Proxy, transfer_fault};
use serde::Serialize;
use ureq::Agent;

use crate::errors::ServerError;
use crate::status::AlertKind;

/// Maximum number of notices that wait to be posted.
const NOTICES_MAX: usize = 64;

/// Time limit of one attempt.
const TRY_WITHIN: Duration = Duration::from_secs(10);

/// Delays before the second attempt and the following ones.
const WAITS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(240),
];

/// The posted JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// The whole alert as a sentence; chat rooms show this field.
    pub text: String,
    /// The run, as 16 hex digits.
    pub run: String,
    /// The kind of alert.
    pub alert: AlertKind,
    /// True if the alert was raised, false if it was cleared.
    pub raised: bool,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
}

/// Handle to the thread that posts alerts.
#[derive(Debug)]
pub struct Webhook {
    queue: SyncSender<Notice>,
}

impl Webhook {
    /// Starts posting to `url`.
    ///
    /// # Errors
    /// - `Config`: `url` is not an address to post to, or the proxy for it is unusable.
    /// - `System`: the thread cannot be started.
    pub fn start(url: &str) -> Result<Self, ServerError> {
        Self::with(url, &WAITS)
    }

    fn with(url: &str, waits: &'static [Duration]) -> Result<Self, ServerError> {
        check(url)?;
        let proxy = Proxy::for_url(url).map_err(|error| ServerError::Config { why: error.to_string() })?;
        let (queue, notices) = sync_channel(NOTICES_MAX);
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy.as_ref().map(Proxy::for_transfers))
            .timeout_global(Some(TRY_WITHIN))
            .build()
            .into();
        let poster = WebhookSender { agent, proxy, url: url.to_owned(), waits, is_failing: false };
        let spawned = thread::Builder::new().name("webhook".to_owned()).spawn(move || poster.work(&notices));
        spawned.map_err(|source| ServerError::System { what: "cannot start a thread".into(), source })?;
        Ok(Self { queue })
    }

    /// Queues `notice` without waiting. If the queue is full, the notice is dropped.
    pub fn enqueue(&self, notice: Notice) {
        if let Err(TrySendError::Full(notice)) = self.queue.try_send(notice) {
            tracing::warn!(
                text = notice.text,
                "too many alerts wait for the webhook: this one is not posted"
            );
        }
    }
}

/// Checks that `url` can be posted to.
///
/// # Errors
/// `Config`: it cannot.
pub fn check(url: &str) -> Result<(), ServerError> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace)) {
        true => Ok(()),
        // The message does not repeat the address, which may contain a secret.
        false => Err(ServerError::Config {
            why: "--webhook is not an address: give one that begins with http:// or https://".into(),
        }),
    }
}

#[expect(clippy::disallowed_methods, reason = "this thread waits by the real clock")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the index of the next notice to post: among the oldest waiting notices of each alert, the one that is due
/// first.
fn next(waiting: &VecDeque<Waiting>) -> Option<usize> {
    let is_free = |at: usize| waiting.iter().take(at).all(|one| one.notice.alert != waiting[at].notice.alert);
    (0..waiting.len()).filter(|&at| is_free(at)).min_by_key(|&at| waiting[at].due)
}

struct WebhookSender {
    agent: Agent,
    proxy: Option<Proxy>,
    url: String,
    waits: &'static [Duration],
    /// True if the log already reports the failure.
    is_failing: bool,
}

/// The outcome of an attempt.
enum AttemptOutcome {
    Posted,
    /// A temporary failure.
    Later(String),
    /// A permanent failure.
    Never(String),
}

/// A queued notice.
struct Waiting {
    notice: Notice,
    /// Failed attempts.
    failed: usize,
    /// Earliest time of the next attempt.
    due: Instant,
}

impl WebhookSender {
    /// Posts notices until all senders are gone. A failing notice delays only later notices of the same alert, since
    /// their order matters.
    fn work(mut self, notices: &Receiver<Notice>) {
        let mut waiting: VecDeque<Waiting> = VecDeque::new();
        loop {
            let came = match next(&waiting) {
                None => notices.recv().map_err(|_| RecvTimeoutError::Disconnected),
                // A shutdown of the syncer ends this wait at once.
                Some(at) => notices.recv_timeout(waiting[at].due.saturating_duration_since(now())),
            };
            match came {
                Ok(notice) => {
                    waiting.push_back(Waiting { notice, failed: 0, due: now() });
                    if waiting.len() > NOTICES_MAX {
                        waiting.pop_front();
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let Some(at) = next(&waiting) else { continue };
            let wait = self.waits.get(waiting[at].failed).copied();
            match (self.post(&waiting[at].notice), wait) {
                (AttemptOutcome::Later(why), Some(wait)) => {
                    self.log_failure(&why);
                    waiting[at].failed += 1;
                    waiting[at].due = now() + wait;
                }
                (AttemptOutcome::Later(why) | AttemptOutcome::Never(why), _) => {
                    self.log_failure(&why);
                    waiting.remove(at);
                }
                (AttemptOutcome::Posted, _) => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!("the webhook accepts alerts again");
                    }
                    waiting.remove(at);
                }
            }
        }
    }

    fn post(&self, notice: &Notice) -> AttemptOutcome {
        let body = serde_json::to_string(notice).expect("plain data");
        let answer = self.agent.post(&self.url).header("content-type", "application/json").send(body);
        match answer.map(|answer| answer.status()) {
            Ok(status) if status.is_success() => AttemptOutcome::Posted,
            Ok(status) if status.is_server_error() || [408, 429].contains(&status.as_u16()) => {
                AttemptOutcome::Later(format!("it answers {status}"))
            }
            Ok(status) => AttemptOutcome::Never(format!("it answers {status}")),
            Err(error) => AttemptOutcome::Later(transfer_fault(&error, self.proxy.as_ref())),
        }
    }

    /// Logs a failure once. The log does not contain the URL, which may hold a secret.
    fn log_failure(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(
                why,
                "alerts cannot be posted to the webhook; this warning is not repeated until they can"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const AT_ONCE: &[Duration] = &[Duration::from_millis(1); 2];

    fn notice(number: u64) -> Notice {
        let text = "No learner has taken part for 10 min.".to_owned();
        Notice { text, run: "ab".into(), alert: AlertKind::NoLearner, raised: true, at_ms: number }
    }

    /// Returns the next connection; fails after a minute without one.
    fn accepted(listener: &TcpListener) -> TcpStream {
        listener.set_nonblocking(true).unwrap();
        for _ in 0..6_000 {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                return stream;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("nothing more was posted");
    }

    /// Queues `count` notices, answers each post with the next of `answers`, and returns the `atMs` values of the
    /// posts.
    fn check_posts(answers: &'static [&'static str], count: u64) -> Vec<u64> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook?secret", listener.local_addr().unwrap());
        let webhook = Webhook::with(&url, AT_ONCE).unwrap();
        (1..=count).for_each(|number| webhook.enqueue(notice(number)));
        let mut came = Vec::new();
        for answer in answers {
            let mut stream = accepted(&listener);
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut len = 0;
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
            }
            assert!(head.starts_with("POST /hook?secret HTTP/1.1\r\n"), "{head}");
            for line in head.to_lowercase().lines() {
                if let Some(value) = line.strip_prefix("content-length: ") {
                    len = value.parse().unwrap();
                }
            }
            let mut body = vec![0; len];
            reader.read_exact(&mut body).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&body["alert"], &body["raised"]), (&"noLearner".into(), &true.into()));
            came.push(body["atMs"].as_u64().unwrap());
            write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        }
        came
    }

    #[test]
    fn failing_notice_delays_no_other_alert() {
        let of = |alert, failed, due| Waiting { notice: Notice { alert, ..notice(1) }, failed, due };
        let soon = now();
        let later = soon + Duration::from_secs(9);
        let mut waiting =
            VecDeque::from([of(AlertKind::NoLearner, 1, later), of(AlertKind::NoLearner, 0, soon)]);
        assert_eq!(next(&waiting), Some(0), "in their order");
        waiting.push_back(of(AlertKind::DiskFault, 0, soon));
        assert_eq!(next(&waiting), Some(2));
    }

    #[test]
    fn failed_posts_are_retried_and_then_dropped() {
        assert_eq!(check_posts(&["204 No Content", "200 OK"], 2), [1, 2]);
        assert_eq!(check_posts(&["503 Busy", "200 OK", "200 OK"], 2), [1, 1, 2]);
        assert_eq!(check_posts(&["503 Busy", "429 Slow", "500 Oh", "200 OK"], 2), [1, 1, 1, 2]);
        assert_eq!(check_posts(&["404 Gone", "200 OK"], 2), [1, 2], "what is refused is not tried again");
    }

    #[test]
    fn addresses_are_checked_and_never_repeated() {
        assert!(check("https://chat.example/hooks/secret").is_ok());
        for bad in ["", "chat.example/secret", "ftp://secret", "http://", "http://a secret"] {
            let error = check(bad).unwrap_err();
            assert!(error.exit_code() == 3 && !error.to_string().contains("secret"), "{bad}: {error}");
        }
    }
}
