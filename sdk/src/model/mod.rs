//! The reference model in plain scalar Rust: parameter layout, forward, backward, AdamW.
