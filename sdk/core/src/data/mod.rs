//! Training tokens: shards, the order in which an epoch visits their windows, and the built-in corpus.
//!
//! A *window* is `context + 1` successive tokens of a shard: `context` inputs and, shifted by one, their
//! targets. The syncer leases ranges of windows; a learner's [`Feed`] turns them into batches.

mod feed;
pub mod grammar;
mod held_out;
mod order;
pub mod pictures;
mod shard;
mod vocab;

pub(crate) use feed::LEASES_MAX;
pub use feed::{Feed, FeedError};
pub use held_out::{HELD_OUT_BYTES_MAX, HeldOutError, encode_held_out, parse_held_out};
pub use order::{Window, window_start, windows};
pub use shard::{
    SHARD_TOKENS_MAX, ShardError, ShardForm, ShardTokens, Split, SplitError, encode_shard, shard_spec, split,
};
pub use vocab::{BYTE_VOCAB, bytes_to_tokens, token_bytes, tokens_to_text};
