//! Conditional writes: messages stored only if the last number is the expected one, and JetStream's errors.

use async_nats::HeaderMap;
use async_nats::header::IntoHeaderName;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};

use super::Nats;
use crate::error::ServiceError;

impl Nats {
    /// Stores `bytes` under `subject` if the number that the header `fence` names equals `expect`. Returns the
    /// message's number, or `None` if the numbers differ.
    pub(super) async fn put(
        &self,
        subject: String,
        (fence, expect): (impl IntoHeaderName, u64),
        bytes: Vec<u8>,
    ) -> Result<Option<u64>, ServiceError> {
        let mut headers = HeaderMap::new();
        headers.insert(fence, expect.to_string());
        let result = match self.jetstream.publish_with_headers(subject, headers, bytes.into()).await {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        match result {
            Ok(acknowledgement) => Ok(Some(acknowledgement.sequence)),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(None),
            Err(error) => match jetstream_error(&error) {
                Some(error) if error.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
                    Ok(None)
                }
                Some(error) => Err(self.trouble(error)),
                None if error.kind() == PublishErrorKind::MaxPayloadExceeded => Err(ServiceError::Setting {
                    place: self.place.clone(),
                    detail: format!("raise max_payload of the servers: {error}"),
                }),
                None => Err(self.silent(&error.to_string())),
            },
        }
    }

    pub(super) fn no_jetstream(&self, detail: &str) -> ServiceError {
        ServiceError::Missing { place: format!("JetStream on {}", self.place), detail: detail.to_owned() }
    }

    /// Converts an error of JetStream.
    pub(super) fn trouble(&self, error: &jetstream::Error) -> ServiceError {
        let (place, detail) = (self.place.clone(), error.to_string());
        match error.error_code() {
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                self.no_jetstream(&detail)
            }
            ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED
            | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::MAXIMUM_STREAMS_LIMIT
            | ErrorCode::STREAM_STORE_FAILED
            | ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED => ServiceError::Full { place, detail },
            ErrorCode::STREAM_NOT_FOUND => ServiceError::Missing { place, detail },
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => ServiceError::Setting { place, detail },
            _ => ServiceError::Silent { place, detail },
        }
    }
}

fn jetstream_error(error: &PublishError) -> Option<&jetstream::Error> {
    std::error::Error::source(error)?.downcast_ref()
}
