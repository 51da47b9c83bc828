//! The names by which people ask for an engine.

use std::fmt;
use std::str::FromStr;

/// Which engine to train with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The GPU if there is one that the model fits, the CPU otherwise.
    #[default]
    Auto,
    /// A GPU, even one that is a program on the CPU; nothing else.
    Gpu,
    /// The CPU.
    Cpu,
}

impl EngineKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Gpu, Self::Cpu];

    /// The name by which it is asked for.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownEngine { name: name.into() })
    }
}

/// An engine that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no engine {name:?}; choose auto, gpu or cpu")]
pub struct UnknownEngine {
    /// What was asked for.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_by_its_name_only() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "GPU".parse::<EngineKind>().unwrap_err().to_string();
        assert!(EngineKind::ALL.iter().all(|kind| error.contains(kind.name())), "{error}");
    }
}
