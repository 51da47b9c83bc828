//! Helpers shared by the suites that are wider than one file.

pub mod lab;
pub mod toys;
