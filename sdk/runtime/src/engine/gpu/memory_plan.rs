//! Options of a GPU engine to take less device memory, and their cost.

use std::fmt;

/// Memory savings. Without any, an engine keeps all its data on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Saves only the input of each layer for the backward pass, which recomputes the rest (Chen et al. 2016, arXiv
    /// 1604.06174). Takes about a third more operations and changes no bit.
    pub recompute: bool,
    /// Keeps Θ̂ in host memory, in two bytes per parameter. Takes time when a fragment is exchanged, and changes no
    /// bit.
    pub host_hat: bool,
    /// Packs both moments into one word, see [`crate::model::moments`]. Changes steps slightly, by stochastic rounding.
    pub half_moments: bool,
}

impl MemoryPlan {
    /// No saving.
    pub const NONE: Self = Self { recompute: false, host_hat: false, half_moments: false };
    /// All savings that change no bit.
    pub const EXACT: Self = Self { recompute: true, host_hat: true, half_moments: false };
    /// All savings.
    pub const ALL: Self = Self { recompute: true, host_hat: true, half_moments: true };
    /// Steps from no saving to all, in the order in which they are tried if memory is short.
    pub const LADDER: [Self; 3] = [Self::NONE, Self::EXACT, Self::ALL];
}

/// Describes the savings as a part of a sentence.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [
            (self.recompute, "activations are recomputed"),
            (self.host_hat, "the syncer's parameters are kept in host memory"),
            (self.half_moments, "moments take 16 bits"),
        ];
        let taken: Vec<&str> = ways.iter().filter(|(is_taken, _)| *is_taken).map(|(_, way)| *way).collect();
        match taken.as_slice() {
            [] => f.write_str("everything is kept on the GPU"),
            [ways @ .., last] if !ways.is_empty() => write!(f, "{} and {last}", ways.join(", ")),
            ways => f.write_str(&ways.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_done() {
        let told = MemoryPlan::LADDER.map(|thrift| thrift.to_string());
        assert_eq!(told[0], "everything is kept on the GPU");
        assert_eq!(told[1], "activations are recomputed and the syncer's parameters are kept in host memory");
        assert!(told[2].ends_with("are kept in host memory and moments take 16 bits"), "{}", told[2]);
        let one = MemoryPlan { recompute: true, ..MemoryPlan::NONE };
        assert_eq!(one.to_string(), "activations are recomputed");
    }
}
