//! Settings and the values that they take.

use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Settings by name, each with one value, as they are written.
pub(super) type Settings = Vec<(String, String)>;

/// Settings by name, each with its values; every combination of them is meant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid(Vec<(String, Vec<String>)>);

/// What is no grid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("give NAME=VALUE,VALUE, and more of them behind a slash; `{0}` is none")]
pub struct GridError(String);

impl FromStr for Grid {
    type Err = GridError;

    fn from_str(text: &str) -> Result<Self, GridError> {
        let setting = |part: &str| {
            let wrong = || GridError(part.to_owned());
            let (name, values) = part.split_once('=').ok_or_else(wrong)?;
            let values: Vec<String> = values.split(',').map(str::to_owned).collect();
            let holds = !name.is_empty() && values.iter().all(|value| !value.is_empty());
            holds.then(|| (name.to_owned(), values)).ok_or_else(wrong)
        };
        let parts = text.split('/').filter(|_| !text.is_empty());
        Ok(Self(parts.map(setting).collect::<Result<_, _>>()?))
    }
}

impl Serialize for Grid {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let parts: Vec<String> =
            self.0.iter().map(|(name, values)| format!("{name}={}", values.join(","))).collect();
        to.serialize_str(&parts.join("/"))
    }
}

impl Grid {
    /// Every combination, the last setting changing first; one of nothing where there are no settings.
    pub(super) fn all(&self) -> Vec<Settings> {
        self.0.iter().fold(vec![Vec::new()], |all, (name, values)| {
            let longer = |settings: &Settings, value: &String| {
                settings.iter().cloned().chain([(name.clone(), value.clone())]).collect()
            };
            all.iter().flat_map(|settings| values.iter().map(move |value| longer(settings, value))).collect()
        })
    }

    /// The name of the first setting, if there is one.
    pub(super) fn first(&self) -> Option<&str> {
        self.0.first().map(|(name, _)| name.as_str())
    }
}

/// "sync-every 4, lr 0.01"
pub(super) fn words(settings: &[(String, String)]) -> String {
    settings.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_all_combinations() {
        let grid: Grid = "a=1,2/b=x,blend=0.5".parse().unwrap();
        let all: Vec<String> = grid.all().iter().map(|settings| words(settings)).collect();
        assert_eq!(all, ["a 1, b x", "a 1, b blend=0.5", "a 2, b x", "a 2, b blend=0.5"]);
        assert_eq!(serde_json::to_value(&grid).unwrap(), "a=1,2/b=x,blend=0.5");
        assert_eq!("".parse::<Grid>().unwrap().all(), [Settings::new()]);
        for wrong in ["a", "=1", "a=", "a=1,", "a=1/", "/"] {
            let error = wrong.parse::<Grid>().unwrap_err().to_string();
            assert!(error.starts_with("give NAME=VALUE"), "{wrong}: {error}");
        }
    }
}
