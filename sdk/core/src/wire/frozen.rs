//! Storage formats of frozen weights.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The form in which weights that a run does not train are sent and held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum FrozenForm {
    /// 16 bits for each value, IEEE 754 binary16.
    F16,
    /// 8 bits for each value of a matrix, −127…127 times a binary16 scale for each 32 of a row; vectors in 16 bits.
    Int8,
}

impl FrozenForm {
    /// All forms, the most exact first.
    pub const ALL: [Self; 2] = [Self::F16, Self::Int8];

    /// Returns its name in settings, reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for FrozenForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FrozenForm {
    type Err = UnknownForm;

    fn from_str(name: &str) -> Result<Self, UnknownForm> {
        let found = Self::ALL.into_iter().find(|form| form.name() == name);
        found.ok_or_else(|| UnknownForm { name: name.into() })
    }
}

/// An unknown form of frozen weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frozen weights cannot be stored as {name:?}; choose f16 or int8")]
pub struct UnknownForm {
    /// Requested form.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_by_its_name_only() {
        for form in FrozenForm::ALL {
            assert_eq!(form.to_string().parse(), Ok(form));
            assert_eq!(serde_json::to_string(&form).unwrap(), format!("\"{form}\""));
        }
        let error = "q4".parse::<FrozenForm>().unwrap_err().to_string();
        assert_eq!(error, "frozen weights cannot be stored as \"q4\"; choose f16 or int8");
    }
}
