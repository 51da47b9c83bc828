//! The syncer-server binary.

fn main() {}
