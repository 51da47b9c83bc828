//! Tape: one stream for each fragment.

use archipelago_core::cluster::{AsBytes, Record};
use archipelago_core::wire::FragmentId;
use async_nats::header::NATS_EXPECTED_LAST_SEQUENCE;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};

use super::{Nats, direct};
use crate::cluster_id::ClusterId;
use crate::error::ServiceError;
use crate::service::{Answer, Tape};

/// Number of records per request.
const BATCH: u64 = 256;
/// Metadata key of the cluster's mark in a stream.
pub(super) const MARK: &str = "archipelago-cluster";

impl Nats {
    pub(super) fn stream(&self, fragment: FragmentId) -> String {
        format!("{}_tape_{fragment}", self.prefix)
    }

    fn subject(&self, fragment: FragmentId) -> String {
        format!("{}.tape.{fragment}", self.prefix)
    }

    /// Creates the stream of a fragment unless it exists. Returns its mark.
    pub(super) async fn make_tape(
        &self,
        fragment: FragmentId,
        replicas: usize,
    ) -> Result<ClusterId, ServiceError> {
        let name = self.stream(fragment);
        let config = Config {
            name: name.clone(),
            subjects: vec![self.subject(fragment)],
            num_replicas: replicas,
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            allow_direct: true,
            deny_delete: true,
            deny_purge: true,
            metadata: [(MARK.to_owned(), self.mark.to_string())].into(),
            ..Config::default()
        };
        let made = match self.jetstream.create_stream(config).await {
            Ok(stream) => stream.cached_info().config.metadata.get(MARK).cloned(),
            Err(error) => match error.kind() {
                CreateStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NAME_EXIST =>
                {
                    let there = self.jetstream.get_stream(&name).await;
                    let there = there.map_err(|error| self.silent(&error.to_string()))?;
                    there.cached_info().config.metadata.get(MARK).cloned()
                }
                CreateStreamErrorKind::JetStream(error) => return Err(self.trouble(&error)),
                CreateStreamErrorKind::JetStreamUnavailable => {
                    return Err(self.no_jetstream(&error.to_string()));
                }
                _ => return Err(self.silent(&error.to_string())),
            },
        };
        self.mark_of(&name, made.as_deref())
    }

    /// Parses the mark `found` of the stream `name`.
    ///
    /// # Errors
    /// [`ServiceError::Foreign`]: the stream has no mark.
    pub(super) fn mark_of(&self, name: &str, found: Option<&str>) -> Result<ClusterId, ServiceError> {
        found.and_then(ClusterId::read).ok_or_else(|| ServiceError::Foreign {
            place: format!("{}, stream {name}", self.place),
            detail: "it was not made by the cluster of a run".to_owned(),
        })
    }

    /// Returns the name of the server that leads a fragment's tape, if the servers form a cluster and have elected one.
    ///
    /// # Errors
    /// [`ServiceError::Silent`], [`ServiceError::Denied`].
    pub async fn leader(&self, fragment: FragmentId) -> Result<Option<String>, ServiceError> {
        let name = self.stream(fragment);
        let look = async {
            let stream = self.jetstream.get_stream(&name).await;
            let stream = stream.map_err(|error| self.silent(&error.to_string()))?;
            Ok(stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone()))
        };
        self.in_time(look).await
    }

    /// Returns the next records after number `after`, and whether there are more.
    async fn next(&self, fragment: FragmentId, after: u64) -> Result<(Vec<Record>, bool), ServiceError> {
        let question = format!("{{\"seq\":{},\"batch\":{BATCH}}}", after + 1);
        let got = direct::get(&self.client, &self.stream(fragment), question).await;
        let (got, pending) = got.map_err(|detail| self.silent(&detail))?;
        let mut records = Vec::new();
        for (message, seq) in got.iter().zip(after + 1..) {
            let place = || format!("record {seq} of fragment {fragment} on {}", self.place);
            if message.seq != seq {
                let detail = format!("record {} follows {}", message.seq, seq - 1);
                return Err(ServiceError::Damaged { place: place(), detail });
            }
            let record = Record::of_bytes(&message.payload);
            records.push(
                record
                    .map_err(|error| ServiceError::Damaged { place: place(), detail: error.to_string() })?,
            );
        }
        let is_more = pending > 0 && !records.is_empty();
        Ok((records, is_more))
    }
}

impl Tape for Nats {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> Answer<'a, Option<u64>> {
        let bytes = record.to_bytes();
        Box::pin(self.in_time(self.put(self.subject(fragment), (NATS_EXPECTED_LAST_SEQUENCE, expect), bytes)))
    }

    fn read(&self, fragment: FragmentId, after: u64) -> Answer<'_, Vec<Record>> {
        Box::pin(async move {
            let mut records: Vec<Record> = Vec::new();
            loop {
                let known = after + records.len() as u64;
                let (more, is_more) = self.in_time(self.next(fragment, known)).await?;
                records.extend(more);
                if !is_more {
                    return Ok(records);
                }
            }
        })
    }

    fn newest(&self, fragment: FragmentId) -> Answer<'_, u64> {
        Box::pin(self.in_time(async move {
            let question = format!("{{\"last_by_subj\":{:?}}}", self.subject(fragment));
            let got = direct::one(&self.client, &self.stream(fragment), question).await;
            let got = got.map_err(|detail| self.silent(&detail))?;
            Ok(got.map_or(0, |newest| newest.seq))
        }))
    }
}
