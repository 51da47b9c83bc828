//! Reading of Parquet files: tables of texts, as data sets are published.
//!
//! Only the columns of documents are read, and each row becomes a line of JSON, which is then read like any other. A
//! file may be hostile: sizes in it allocate no memory before the bytes are there, and each fault is an error. The
//! crate `parquet` takes more than a minute of processor time to build, and needs a C library for zstd.

mod bits;
mod file;
mod pages;
mod rows;
mod schema;
mod thrift;

pub use file::{Limits, MAGIC, Table};
pub use schema::Node;

/// Reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParquetError {
    /// The content contradicts itself, or parts are missing.
    #[error("{0}")]
    Damaged(&'static str),
    /// The file uses a feature that this reader lacks.
    #[error("{0}")]
    Unsupported(String),
    /// A row is longer than the limit.
    #[error("a row has more than {bytes_max} bytes")]
    Long {
        /// The limit in bytes.
        bytes_max: u64,
    },
    /// A page is larger than the limit.
    #[error("it has a page of {bytes} bytes")]
    Page {
        /// Size of the unpacked page in bytes.
        bytes: u64,
    },
    /// The operating system's error.
    #[error("{0}")]
    Read(#[from] std::io::Error),
}
