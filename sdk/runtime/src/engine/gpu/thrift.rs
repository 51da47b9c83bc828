//! What a GPU engine does to take less memory of its device, and what that costs.

use std::fmt;

/// Ways to take less memory. Without any, an engine keeps all that it could need again on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thrift {
    /// Of what a layer leaves for the backward pass only its input is kept, and the rest is computed anew there (Chen
    /// et al. 2016, arXiv 1604.06174). It takes about a third more operations and changes no bit.
    pub recompute: bool,
    /// Θ̂ is in host memory, in two bytes a parameter. It takes time when a fragment is exchanged, and changes no bit.
    pub host_hat: bool,
    /// Both moments are in one word, see [`crate::model::moments`]. It changes what steps do a little, by chance.
    pub half_moments: bool,
}

impl Thrift {
    /// None.
    pub const NONE: Self = Self { recompute: false, host_hat: false, half_moments: false };
    /// All that changes no bit.
    pub const EXACT: Self = Self { recompute: true, host_hat: true, half_moments: false };
    /// All.
    pub const ALL: Self = Self { recompute: true, host_hat: true, half_moments: true };
    /// From none to all, in the order in which they are tried where there is too little memory.
    pub const LADDER: [Self; 3] = [Self::NONE, Self::EXACT, Self::ALL];
}

/// What is done, as a part of a sentence.
impl fmt::Display for Thrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [
            (self.recompute, "activations are computed anew"),
            (self.host_hat, "what the syncer holds lies in host memory"),
            (self.half_moments, "moments take 16 bits"),
        ];
        let taken: Vec<&str> = ways.iter().filter(|(is_taken, _)| *is_taken).map(|(_, way)| *way).collect();
        match taken.as_slice() {
            [] => f.write_str("everything is kept on it"),
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
        let told = Thrift::LADDER.map(|thrift| thrift.to_string());
        assert_eq!(told[0], "everything is kept on it");
        assert_eq!(told[1], "activations are computed anew and what the syncer holds lies in host memory");
        assert!(told[2].ends_with("lies in host memory and moments take 16 bits"), "{}", told[2]);
        let one = Thrift { recompute: true, ..Thrift::NONE };
        assert_eq!(one.to_string(), "activations are computed anew");
    }
}
