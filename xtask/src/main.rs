//! `cargo xtask demo | test | bench | web`: the only build logic.

fn main() {}
