//! Models of large machines that a simulated world cannot hold: goodput while chips fail, and the links that data
//! centres need.

pub mod bandwidth;
pub mod goodput;
