//! A small run for tests: what it trains, learners that make up their progress, doors for them, and what must hold.

pub mod check;
pub mod door;
pub mod learner;
pub mod run;
