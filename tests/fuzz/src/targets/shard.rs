//! Shards of training data.

use archipelago_core::data::{ShardTokens, encode_shard, shard_spec};

use crate::script::Script;

/// Takes the bytes for a shard that its spec describes, and for one that it does not.
pub fn run(data: &[u8]) {
    let mut script = Script(data);
    let token_bytes = script.byte() % 6;
    let vocab = u32::from(script.short()) << script.below(16);
    let extra = script.below(2) as u64;
    let bytes = script.0.to_vec();
    let Ok(mut spec) = shard_spec(&bytes, token_bytes) else { return };
    spec.tokens = spec.tokens.saturating_add(extra);
    let Ok(shard) = ShardTokens::parse(bytes.clone(), &spec, token_bytes, vocab) else { return };
    assert_eq!(shard.len(), spec.tokens as usize);
    let tokens: Vec<u32> = shard.iter(0).collect();
    assert!(tokens.len() == shard.len() && tokens.iter().all(|token| *token < vocab));
    assert_eq!(encode_shard(&tokens, token_bytes).expect("tokens of a shard"), bytes);
}
