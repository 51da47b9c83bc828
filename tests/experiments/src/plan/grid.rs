//! Settings and their values.

use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::statistics::{is_edge, twice};

/// Settings by name, each with one value, as written.
pub type NamedSettings = Vec<(String, String)>;

/// Settings by name, each with its values; it stands for every combination of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid(Vec<(String, Vec<String>)>);

/// An error in a grid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GridError {
    /// Malformed text.
    #[error("give NAME=VALUE,VALUE, and more of them after a slash; `{0}` has another form")]
    Malformed(String),
    /// A duplicate name, or a duplicate value of a setting.
    #[error("`{0}` is given twice: give it once")]
    Twice(String),
}

impl FromStr for Grid {
    type Err = GridError;

    fn from_str(text: &str) -> Result<Self, GridError> {
        let setting = |part: &str| {
            let wrong = || GridError::Malformed(part.to_owned());
            let (name, values) = part.split_once('=').ok_or_else(wrong)?;
            let values: Vec<String> = values.split(',').map(str::to_owned).collect();
            let holds = !name.is_empty() && values.iter().all(|value| !value.is_empty());
            holds.then(|| (name.to_owned(), values)).ok_or_else(wrong)
        };
        let parts = text.split('/').filter(|_| !text.is_empty());
        let grid: Vec<(String, Vec<String>)> = parts.map(setting).collect::<Result<_, _>>()?;
        let names: Vec<&String> = grid.iter().map(|(name, _)| name).collect();
        // For example, 0.10 equals 0.1.
        let same = |values: &Vec<String>| {
            let numbers: Result<Vec<f64>, _> = values.iter().map(|value| value.parse()).collect();
            numbers.map_or_else(|_| twice(values), |numbers| twice(&numbers))
        };
        let again = twice(&names).or_else(|| grid.iter().find_map(|(_, values)| same(values)));
        again.map_or(Ok(()), |again| Err(GridError::Twice(again)))?;
        Ok(Self(grid))
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
    /// Returns every combination, with the last setting changing first; a single empty one without settings.
    pub fn all(&self) -> Vec<NamedSettings> {
        self.0.iter().fold(vec![Vec::new()], |all, (name, values)| {
            let longer = |settings: &NamedSettings, value: &String| {
                settings.iter().cloned().chain([(name.clone(), value.clone())]).collect()
            };
            all.iter().flat_map(|settings| values.iter().map(move |value| longer(settings, value))).collect()
        })
    }

    /// Returns the number of combinations.
    pub fn count(&self) -> f64 {
        self.0.iter().map(|(_, values)| values.len() as f64).product()
    }

    /// Returns the first value of `name`, if it is in the grid.
    pub fn first(&self, name: &str) -> Option<&str> {
        let (_, values) = self.0.iter().find(|(other, _)| other == name)?;
        values.first().map(String::as_str)
    }

    /// Returns the names of the settings, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns true if `name` has several values, and `value` is the smallest or the largest of them.
    pub fn is_at_an_edge(&self, name: &str, value: &str) -> bool {
        let Some((_, values)) = self.0.iter().find(|(other, _)| other == name) else { return false };
        let numbers: Result<Vec<f64>, _> = values.iter().map(|value| value.parse()).collect();
        let (Ok(numbers), Ok(value)) = (numbers, value.parse::<f64>()) else { return false };
        is_edge(&numbers, value)
    }
}

/// Formats settings, such as "sync-every 4, lr 0.01".
pub fn words(settings: &[(String, String)]) -> String {
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
        assert_eq!("".parse::<Grid>().unwrap().all(), [NamedSettings::new()]);
        for wrong in ["a", "=1", "a=", "a=1,", "a=1/", "/"] {
            let error = wrong.parse::<Grid>().unwrap_err().to_string();
            assert!(error.starts_with("give NAME=VALUE"), "{wrong}: {error}");
        }
        for again in ["a=1,2/a=3", "b=1/a=2,2", "a=x,x", "a=0.1,2,0.10"] {
            let error = again.parse::<Grid>().unwrap_err().to_string();
            assert!(error.ends_with("is given twice: give it once"), "{again}: {error}");
        }
    }

    #[test]
    fn an_edge_is_the_least_or_the_greatest_number() {
        let grid: Grid = "a=3,1,2/b=x,y/c=5".parse().unwrap();
        let edges = [("a", "1"), ("a", "2"), ("a", "3"), ("b", "x"), ("c", "5"), ("d", "1")];
        assert_eq!(
            edges.map(|(name, value)| grid.is_at_an_edge(name, value)),
            [true, false, true, false, false, false]
        );
    }
}
