//! Target for bodies of updates.

use archipelago_core::diloco::{Codec, MergeClass, Segment};
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec};

use crate::script::Script;

/// Largest magnitude that a code accepts.
const LARGEST: f32 = (1_u64 << 60) as f32;

/// Decodes the bytes as a body. A valid body has finite values of bounded size, and its norms match its values. Those
/// values, coded again, give a valid body.
pub fn run(data: &[u8]) {
    let mut script = Script(data);
    let code = [Code::Int4, Code::E3m0, Code::F32, Code::Int2, Code::Int1][script.below(5)];
    let block = 8 * (1 + script.below(32) as u32);
    let apply = ApplyPolicy::Keep { residue: true };
    let spec = ExchangeSpec { fragments: 1, sync_every: 1, block, code, apply };
    let Ok(codec) = Codec::new(&spec) else { return };
    let (mut start, mut segments) = (0, Vec::new());
    for _ in 0..=script.below(3) {
        let len = 1 + script.below(200) as u32;
        segments.push(Segment { start, len, merge: MergeClass::Mean, expert: None });
        start += len;
    }
    let mut body = script.0.to_vec();
    let is_cut = body.len() != codec.body_bytes(&segments);
    let Ok(values) = codec.decode(&segments, &body) else {
        // Most bodies have the wrong length, and their content would never be decoded.
        if is_cut {
            body.resize(codec.body_bytes(&segments), 0);
            let _ = codec.decode(&segments, &body);
        }
        return;
    };
    assert_eq!(values.len(), start as usize);
    assert!(values.iter().all(|value| value.abs() <= 8.0 * LARGEST), "{values:?}");
    let checked = codec.check(&segments, body).expect("what can be decoded passes");
    let squares: f64 = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let norm = checked.norm();
    assert!((norm - squares.sqrt()).abs() <= 1e-6 * norm, "{norm} and {}", squares.sqrt());
    codec.decode(&segments, &codec.encode(&segments, &values)).expect("what we code we can read");
}
