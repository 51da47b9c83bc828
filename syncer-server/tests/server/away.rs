//! Tests of a server whose cluster services do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use archipelago_cluster::{Answer, Local, ServiceError, Services, Tape};
use archipelago_core::cluster::Record;
use archipelago_core::wire::FragmentId;
use serde_json::Value;
use syncer_server::Role;

use crate::cluster::{part, until};
use crate::support::Server;

/// Tape that can be made unavailable.
struct Lame {
    tape: Arc<dyn Tape>,
    is_away: Arc<AtomicBool>,
}

impl Lame {
    fn or<'a, T: Send + 'a>(&self, answer: Answer<'a, T>) -> Answer<'a, T> {
        if !self.is_away.load(Ordering::SeqCst) {
            return answer;
        }
        let error = ServiceError::Silent { place: "nats://inside".into(), detail: "nobody is there".into() };
        Box::pin(std::future::ready(Err(error)))
    }
}

impl Tape for Lame {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> Answer<'a, Option<u64>> {
        self.or(self.tape.append(fragment, expect, record))
    }

    fn read(&self, fragment: FragmentId, after: u64) -> Answer<'_, Vec<Record>> {
        self.or(self.tape.read(fragment, after))
    }

    fn newest(&self, fragment: FragmentId) -> Answer<'_, u64> {
        self.or(self.tape.newest(fragment))
    }
}

/// Goal: a server that cannot admit learners reports that it is not ready, and its owner reads the reason without
/// service addresses.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_says_that_what_it_shares_is_away() {
    let (dir, is_away) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
    let local = Local::services();
    let tape = Lame { tape: Arc::clone(&local.tape), is_away: Arc::clone(&is_away) };
    let server =
        Server::start(part(dir.path(), &Services { tape: Arc::new(tape), ..local }, Role::All)).await;
    assert_eq!(server.http("GET /readyz").await.0, 200);
    is_away.store(true, Ordering::SeqCst);
    let fault = |status: &Value| status["disk"]["servicesFault"].as_str().map(str::to_owned);
    let status = until(&server, "it is away", |status| fault(status).is_some()).await;
    assert_eq!(fault(&status).unwrap(), "NATS does not answer");
    let (code, _, body) = server.http("GET /readyz").await;
    assert_eq!((code, &body[..]), (503, &b"NATS does not answer\n"[..]));
    is_away.store(false, Ordering::SeqCst);
    until(&server, "it is back", |status| fault(status).is_none()).await;
    assert_eq!(server.http("GET /readyz").await.0, 200);
    let (_, _, body) = server.http("GET /v1/log").await;
    let log = String::from_utf8_lossy(&body);
    for said in ["Nothing is merged, because NATS does not answer.", "answer again, and the run continues."] {
        assert!(log.contains(said), "{said}: {log}");
    }
    server.stop().await;
}
