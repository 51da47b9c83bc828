//! Matrices of a layer that have adapters.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A matrix of a layer that can have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraTarget {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output of attention.
    O,
    /// Gates of the feed-forward layer.
    Gate,
    /// Up-projection of the feed-forward layer, which the gates multiply.
    Up,
    /// Output of the feed-forward layer.
    Down,
}

impl LoraTarget {
    /// All targets, in the order of the layout.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// Returns its name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::O => "o",
            Self::Gate => "gate",
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Returns the name of the matrix within a layer, as in Hugging Face: "self_attn.q_proj".
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }
}

/// A non-empty set of targets, parsed from and displayed as "q,k,v,o,gate,up,down".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LoraTargets(u8);

impl LoraTargets {
    /// All seven matrices.
    pub const ALL: Self = Self(0x7f);

    /// Returns true if `target` is in the set.
    #[must_use]
    pub fn contains(self, target: LoraTarget) -> bool {
        self.0 >> target as u8 & 1 == 1
    }

    /// Returns the targets in the set, in the order of the layout.
    pub fn iter(self) -> impl Iterator<Item = LoraTarget> {
        LoraTarget::ALL.into_iter().filter(move |target| self.contains(*target))
    }
}

impl fmt::Display for LoraTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.iter().map(LoraTarget::name).collect::<Vec<_>>().join(","))
    }
}

/// PEFT's name for all matrices of the layers.
const PEFT_ALL: &str = "all-linear";

/// Suffix of a matrix's name in PEFT.
const PEFT_SUFFIX: &str = "_proj";

impl FromStr for LoraTargets {
    type Err = TargetsError;

    /// Parses names separated by commas, in any order. Repeated names count once. PEFT's names, such as `q_proj` and
    /// `all-linear`, are accepted too.
    fn from_str(names: &str) -> Result<Self, TargetsError> {
        let mut set = 0;
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if name == PEFT_ALL {
                return Ok(Self::ALL);
            }
            let short = name.strip_suffix(PEFT_SUFFIX).unwrap_or(name);
            let found = LoraTarget::ALL.into_iter().find(|target| target.name() == short);
            let target = found.ok_or_else(|| TargetsError::Unknown { name: name.into() })?;
            set |= 1 << target as u8;
        }
        if set == 0 { Err(TargetsError::Empty) } else { Ok(Self(set)) }
    }
}

impl TryFrom<String> for LoraTargets {
    type Error = TargetsError;

    fn try_from(names: String) -> Result<Self, TargetsError> {
        names.parse()
    }
}

impl From<LoraTargets> for String {
    fn from(targets: LoraTargets) -> Self {
        targets.to_string()
    }
}

/// Reason why a text is not a set of targets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetsError {
    /// The set is empty.
    #[error("adapters need at least one target: choose from q,k,v,o,gate,up,down")]
    Empty,
    /// The name belongs to no matrix.
    #[error("there is no adapter target {name:?}; choose from q,k,v,o,gate,up,down")]
    Unknown {
        /// Name in the text.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_shown_as_it_is_read() {
        let set = |names: &str| names.parse::<LoraTargets>();
        assert_eq!(set("q,k,v,o,gate,up,down"), Ok(LoraTargets::ALL));
        assert_eq!(LoraTargets::ALL.to_string(), "q,k,v,o,gate,up,down");
        assert_eq!(set(" down, q,q").unwrap().to_string(), "q,down");
        assert_eq!(set(","), Err(TargetsError::Empty));
        let error = set("q,head").unwrap_err().to_string();
        assert_eq!(error, "there is no adapter target \"head\"; choose from q,k,v,o,gate,up,down");
        assert_eq!(set("q_proj,v_proj, down"), set("q,v,down"));
        assert_eq!(set("all-linear"), Ok(LoraTargets::ALL));
        assert!(set("_proj").is_err() && set("q_proj_proj").is_err());
        for target in LoraTarget::ALL {
            assert_eq!(set(target.name()).unwrap().iter().collect::<Vec<_>>(), [target]);
        }
    }

    #[test]
    fn a_set_travels_as_its_names() {
        let set: LoraTargets = "v,q".parse().unwrap();
        assert_eq!(serde_json::to_string(&set).unwrap(), "\"q,v\"");
        assert_eq!(serde_json::from_str::<LoraTargets>("\"q,v\"").unwrap(), set);
        assert!(serde_json::from_str::<LoraTargets>("\"\"").is_err());
    }
}
