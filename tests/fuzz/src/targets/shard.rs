//! Target for shards of training data.

use archipelago_core::data::{ShardForm, ShardTokens, encode_shard, shard_spec};
use archipelago_core::token;

use crate::script::Script;

/// Reads the bytes as a shard with a matching spec, and with a wrong one.
pub fn run(data: &[u8]) {
    let mut script = Script(data);
    let first = script.byte();
    // High values of the first byte select masks.
    let form = ShardForm { token_bytes: first % 6, masks: first >= 240 };
    let vocab = u32::from(script.short()) << script.below(16);
    let extra = script.below(2) as u64;
    let bytes = script.0.to_vec();
    let Ok(mut spec) = shard_spec(&bytes, form) else { return };
    spec.tokens = spec.tokens.saturating_add(extra);
    let Ok(shard) = ShardTokens::parse(bytes.clone(), &spec, form, vocab) else { return };
    assert_eq!(shard.len(), spec.tokens as usize);
    let tokens: Vec<u32> = shard.iter(0).collect();
    assert!(tokens.len() == shard.len() && tokens.iter().all(|&token| token::id(token) < vocab));
    assert_eq!(encode_shard(&tokens, form).expect("tokens of a shard"), bytes);
}
