//! What a GPU engine does to take less memory of its device, and what that costs.

/// Ways to take less memory. Without any, an engine keeps all that it could need again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thrift {
    /// Of what a layer leaves for the backward pass only its input is kept, and the rest is computed anew there (Chen
    /// et al. 2016, arXiv 1604.06174). It takes about a third more operations and changes no bit.
    pub recompute: bool,
}

impl Thrift {
    /// None.
    pub const NONE: Self = Self { recompute: false };
}
