//! Measured links and models.

use std::{fmt, str::FromStr, time::Duration};

/// Rates of the grid, in Mbit/s each way.
const RATES: [f64; 5] = [0.5, 1.0, 5.0, 50.0, 1_000.0];
/// Round trips of the grid, in milliseconds.
const ROUND_TRIPS_MS: [u64; 4] = [0, 80, 300, 1_000];
const PRESETS: [&str; 2] = ["tiny", "small"];

/// Name of a rate without limit.
const UNLIMITED: &str = "unlimited";

/// Model, and the link of its far learner.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Preset of the model, known to the syncer.
    pub preset: String,
    /// Rate each way, in Mbit/s; `None` means no limit.
    pub mbit_per_s: Option<f64>,
    /// Round-trip time to the syncer.
    pub round_trip: Duration,
}

/// Returns all cells, starting with the smallest model and the thinnest link.
pub fn grid() -> Vec<Cell> {
    let of = |preset: &str| Only { preset: preset.to_owned(), mbit_per_s: None, round_trip_ms: None }.cells();
    PRESETS.into_iter().flat_map(of).collect()
}

/// Part of the grid, or one cell that need not be in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Only {
    preset: String,
    /// The given rate, if any; the inner `None` means no limit.
    mbit_per_s: Option<Option<f64>>,
    round_trip_ms: Option<u64>,
}

impl Only {
    /// Returns the selected cells.
    pub fn cells(&self) -> Vec<Cell> {
        let rates = self.mbit_per_s.map_or_else(|| RATES.map(Some).to_vec(), |rate| vec![rate]);
        let round_trips = self.round_trip_ms.map_or_else(|| ROUND_TRIPS_MS.to_vec(), |ms| vec![ms]);
        let cell = |&mbit_per_s: &Option<f64>, &ms: &u64| Cell {
            preset: self.preset.clone(),
            mbit_per_s,
            round_trip: Duration::from_millis(ms),
        };
        rates.iter().flat_map(|rate| round_trips.iter().map(move |ms| cell(rate, ms))).collect()
    }
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let preset = parts.next().filter(|preset| !preset.is_empty()).ok_or("it names no preset")?;
        let rate = |rate: &str| match rate.parse() {
            _ if rate == UNLIMITED => Ok(None),
            Ok(mbit) if f64::is_finite(mbit) && mbit > 0.0 => Ok(Some(mbit)),
            _ => Err(format!("{rate:?} is no rate: give Mbit/s above 0, or {UNLIMITED}")),
        };
        let only = Self {
            preset: preset.to_owned(),
            mbit_per_s: parts.next().map(rate).transpose()?,
            round_trip_ms: parts
                .next()
                .map(|ms| ms.parse().map_err(|_| format!("{ms:?} is no round trip in milliseconds")))
                .transpose()?,
        };
        match parts.next() {
            Some(more) => Err(format!("{more:?} is one part too many: PRESET,MBIT/S,ROUND-TRIP-MS")),
            None => Ok(only),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.preset)?;
        match self.mbit_per_s {
            Some(rate) => write!(f, "{rate} Mbit/s")?,
            None => write!(f, "{UNLIMITED} rate")?,
        }
        write!(f, ", {} ms", self.round_trip.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(text: &str) -> Vec<String> {
        text.parse::<Only>().unwrap().cells().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_grid_has_each_model_on_each_link_once() {
        let grid: Vec<String> = grid().iter().map(ToString::to_string).collect();
        assert_eq!(grid.len(), 2 * 5 * 4);
        assert_eq!(grid[0], "tiny, 0.5 Mbit/s, 0 ms");
        assert!((1..grid.len()).all(|at| !grid[..at].contains(&grid[at])));
    }

    #[test]
    fn a_part_of_it_is_named_by_what_it_has_in_common() {
        assert_eq!(cells("small").len(), 20);
        let row = cells("small,5");
        assert_eq!((row.len(), row[3].as_str()), (4, "small, 5 Mbit/s, 1000 ms"));
        assert_eq!(cells("medium,0.25,80"), ["medium, 0.25 Mbit/s, 80 ms"]);
        assert_eq!(cells("tiny, unlimited, 80"), ["tiny, unlimited rate, 80 ms"]);
    }

    #[test]
    fn what_is_no_cell_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "no preset"),
            ("small,0", "no rate"),
            ("small,fast", "no rate"),
            ("small,inf", "no rate"),
            ("small,1,1.5", "no round trip"),
            ("small,1,80,3", "too many"),
        ] {
            let error = text.parse::<Only>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
