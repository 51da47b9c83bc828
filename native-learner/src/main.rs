//! The native-learner binary.

fn main() {}
