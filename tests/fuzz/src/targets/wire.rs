//! Target for frames of a peer.

use archipelago_core::wire::{Assembler, BODY_BYTES_MAX, PARTIALS_MAX, decode, encode};

use crate::script::Script;

/// Decodes the bytes as one message, and then as a stream of frames. A valid message is unchanged after encoding and
/// decoding. Invalid bytes take no more memory than their own size.
pub fn run(data: &[u8]) {
    if let Ok(message) = decode(data) {
        let coded = encode(&message);
        let again = decode(&coded).expect("what we code we can read");
        assert_eq!(coded, encode(&again), "{message:?}");
        assert!(coded.len() as u64 <= u64::from(BODY_BYTES_MAX) + 64);
    }
    let (mut assembler, mut script, mut came) = (Assembler::new(1 << 16), Script(data), 0);
    while !script.is_over() {
        let frame = script.bytes(255);
        came += frame.len() as u64;
        if assembler.push(&frame).is_err() {
            break;
        }
        assert!(assembler.held_bytes() <= came.min(u64::from(PARTIALS_MAX) << 16));
    }
}
