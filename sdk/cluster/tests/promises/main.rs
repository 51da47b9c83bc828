//! Tests of each service's guarantees for all implementations: always within one process, and with the feature
//! `nats-s3` and `cargo xtask test --only cluster` also on NATS, S3 storage and a folder.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod suite;
#[cfg(feature = "nats-s3")]
#[path = "../support/mod.rs"]
mod support;

use archipelago_cluster::Local;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_within_one_process_keep_their_guarantees() {
    let (services, others) = (Local::services(), Local::services());
    suite::tape(&services).await;
    suite::blobs(&services).await;
    suite::roster(&services).await;
    suite::bus(&services).await;
    suite::apart(&services, &others).await;
}

#[cfg(feature = "nats-s3")]
mod real {
    use std::sync::Arc;

    use archipelago_cluster::{Servers, ServiceError, Services, open};
    use archipelago_core::cluster::Record;
    use archipelago_core::wire::{FragmentId, RunId};

    use crate::suite;
    use crate::support::servers::{self, ClusterServers};

    const FRAGMENTS: [FragmentId; 2] = [FragmentId(0), FragmentId(1)];

    fn at(crew: &ClusterServers, prefix: &str, replicas: usize, blobs: &str) -> Servers {
        Servers { nats: crew.nats(), replicas, blobs: crew.blobs(blobs), prefix: prefix.to_owned() }
    }

    async fn join(servers: Servers, run: u64) -> Result<Services, ServiceError> {
        open(servers, RunId(run), FRAGMENTS.to_vec()).await
    }

    /// Goal: all guarantees hold on one NATS server and on three, with S3 and with a folder.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn services_on_servers_keep_their_guarantees() {
        let Some(bin) = servers::wanted() else { return };
        let crew = ClusterServers::start(&bin, 3);
        let folder = format!("file://{}", crew.folder().join("states").display());
        for (prefix, replicas, blobs) in [("one", 1, "s3://states/folder"), ("three", 3, &*folder)] {
            let services = join(at(&crew, prefix, replicas, blobs), 1).await.unwrap();
            suite::tape(&services).await;
            suite::blobs(&services).await;
            suite::roster(&services).await;
            suite::bus(&services).await;
            let others = join(at(&crew, &format!("{prefix}-other"), replicas, blobs), 1).await.unwrap();
            suite::apart(&services, &others).await;
        }
    }

    /// Goal: the tape and its fence survive a restart of all servers.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn tape_survives_a_restart_of_all_servers() {
        let Some(bin) = servers::wanted() else { return };
        let mut crew = ClusterServers::start(&bin, 3);
        let services = join(at(&crew, "p", 3, "s3://states"), 1).await.unwrap();
        let p = FRAGMENTS[0];
        for seq in 0..20 {
            assert_eq!(services.tape.append(p, seq, &Record::Abandoned).await, Ok(Some(seq + 1)));
        }
        (0..3).for_each(|node| crew.kill(node));
        assert!(matches!(
            services.tape.append(p, 20, &Record::Abandoned).await,
            Err(ServiceError::Silent { .. })
        ));
        (0..3).for_each(|node| crew.revive(node));
        let read =
            suite::insist(async || services.tape.read(p, 0).await.ok().filter(|tape| tape.len() >= 20)).await;
        let next = read.len() as u64;
        let refused =
            suite::insist(async || services.tape.append(p, next + 1, &Record::Abandoned).await.ok()).await;
        assert_eq!(refused, None);
        assert!(read.iter().all(|record| *record == Record::Abandoned));
    }

    /// Goal: each kind of failure gives the operator a clear error.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn failures_have_distinct_errors() {
        let Some(bin) = servers::wanted() else { return };
        let crew = ClusterServers::start(&bin, 1);
        let s3 = "s3://states";
        join(at(&crew, "p", 1, s3), 1).await.unwrap();
        join(at(&crew, "p", 1, s3), 1).await.unwrap();
        let check = async |servers: Servers, run: u64, expected: fn(&ServiceError) -> bool| {
            let error = join(servers, run).await.err().expect("it cannot work");
            assert!(expected(&error), "{error}");
        };
        check(at(&crew, "p", 1, s3), 2, |error| matches!(error, ServiceError::Foreign { .. })).await;
        // These are the states of one cluster, and the tape of another cluster of the same run.
        let mixed = at(&crew, "q", 1, s3);
        join(mixed.clone(), 1).await.unwrap();
        let folder = format!("file://{}", crew.folder().join("other").display());
        let fresh = ClusterServers::start(&bin, 1);
        join(at(&fresh, "q", 1, &folder), 1).await.unwrap();
        check(at(&crew, "q", 1, &folder), 1, |error| matches!(error, ServiceError::Foreign { .. })).await;
        check(at(&crew, "p", 1, "s3://gone"), 1, |error| matches!(error, ServiceError::Missing { .. })).await;
        for (prefix, replicas, blobs) in [("P", 1, s3), ("p", 2, s3), ("p", 1, "here"), ("p", 1, "file://x")]
        {
            check(at(&crew, prefix, replicas, blobs), 1, |error| {
                matches!(error, ServiceError::Setting { .. })
            })
            .await;
        }
        let nobody = Servers { nats: vec!["nats://127.0.0.1:1".into()], ..at(&crew, "p", 1, s3) };
        check(nobody, 1, |error| matches!(error, ServiceError::Silent { .. })).await;
        let stranger = crew.nats()[0].replace("owner:secret", "owner:guess");
        let stranger = Servers { nats: vec![stranger], ..at(&crew, "p", 1, s3) };
        check(stranger, 1, |error| matches!(error, ServiceError::Denied { .. })).await;
        let reader = crew.nats()[0].replace("owner:secret", "reader:secret");
        let reader = Servers { nats: vec![reader], ..at(&crew, "p", 1, s3) };
        check(reader, 1, |error| matches!(error, ServiceError::Denied { .. })).await;
    }

    /// Goal: a full tape returns an error and accepts no record.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn full_tape_reports_an_error() {
        let Some(bin) = servers::wanted() else { return };
        let crew = ClusterServers::start_with(&bin, 1, 400_000);
        let services = Arc::new(join(at(&crew, "p", 1, "s3://states"), 1).await.unwrap());
        let mut seq = 0;
        let error = loop {
            match services.tape.append(FRAGMENTS[0], seq, &suite::large(20_000)).await {
                Ok(Some(next)) => seq = next,
                Ok(None) => panic!("nobody else appends"),
                Err(error) => break error,
            }
            assert!(seq < 100, "it is never full");
        };
        assert!(matches!(error, ServiceError::Full { .. }), "{error}");
        assert_eq!(services.tape.read(FRAGMENTS[0], 0).await.unwrap().len() as u64, seq);
    }
}
