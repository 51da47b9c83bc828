//! TensorBoard event file with a run's curves and texts: `TFRecord` records, each with an `Event` in TensorBoard's
//! protobuf.
//!
//! A record has four parts: its length (64 bits), the masked CRC-32C of the length, the event, and the masked CRC-32C
//! of the event. All numbers are little endian. Of `Event` and `Summary`, only the fields that curves and texts need
//! are written.

use std::fs;
use std::path::{Path, PathBuf};

use super::RunReport;
use crate::errors::ServerError;
use crate::status::RunStatistics;
use crate::store::{disk, write_file};

/// Writes `events.out.tfevents.0.RUN` to `folder`, in place of an older one, and returns its path. Creates the folder
/// if it is missing. Steps in the file are merged tokens. `written_s` is the time of the snapshot, in seconds since
/// 1970; it dates a run without points.
///
/// # Errors
/// `Disk`: the file cannot be written.
pub fn tensorboard(report: &RunReport, folder: &Path, written_s: f64) -> Result<PathBuf, ServerError> {
    fs::create_dir_all(folder).map_err(disk("make", folder))?;
    let path = folder.join(format!("events.out.tfevents.0.{}", report.run));
    write_file(&path, &events(report, written_s))?;
    Ok(path)
}

/// Pairs of times of a run, oldest first, in seconds: total uptime of its syncers, and time since 1970.
struct WallClock(Vec<(f64, f64)>);

impl WallClock {
    fn new(statistics: &RunStatistics, written_s: f64) -> Self {
        let points = statistics.series.points();
        let mut known: Vec<_> = points.map(|point| (point.time_s, point.at_ms as f64 / 1e3)).collect();
        if known.is_empty() {
            known.push((statistics.run_s, written_s));
        }
        Self(known)
    }

    /// Returns the time, in seconds since 1970, at which the syncers had been up for `time_s` seconds. It is computed
    /// from the next known pair, because uptime stands still between two starts.
    fn at(&self, time_s: f64) -> f64 {
        let next = self.0.iter().find(|(up_s, _)| *up_s >= time_s).or(self.0.last());
        next.map_or(time_s, |(up_s, unix_s)| unix_s + (time_s - up_s))
    }
}

/// Encodes the content of the file.
fn events(report: &RunReport, written_s: f64) -> Vec<u8> {
    let statistics = &report.statistics;
    let clock = WallClock::new(statistics, written_s);
    let mut file = Vec::new();
    let mut version = Fields::default();
    version.double(1, clock.at(0.0)).bytes(3, b"brain.Event:2");
    record(&mut file, &version.0);
    for point in statistics.series.points() {
        let loss = point.train_loss.map(|loss| ("loss/training", loss));
        let curves = [
            ("participation", point.participation),
            ("learners", point.live),
            ("tokens_per_second", point.tokens_per_s),
            ("bytes/up", point.bytes_up as f32),
            ("bytes/down", point.bytes_down as f32),
        ];
        let values = loss.into_iter().chain(curves).map(|(tag, value)| scalar(tag, value)).collect();
        event(&mut file, clock.at(point.time_s), point.tokens_merged, values);
    }
    for found in &statistics.history.evaluations {
        event(
            &mut file,
            clock.at(found.time_s),
            found.tokens_merged,
            vec![scalar("loss/held_out", found.loss)],
        );
    }
    for sample in statistics.history.samples.kept() {
        event(&mut file, clock.at(sample.time_s), sample.tokens_merged, vec![text("sample", &sample.text)]);
    }
    file
}

/// Appends an `Event` with these values in its `Summary`. `unix_s` is in seconds since 1970.
fn event(file: &mut Vec<u8>, unix_s: f64, tokens: u64, values: Vec<Fields>) {
    let mut summary = Fields::default();
    for value in values {
        summary.bytes(1, &value.0);
    }
    let mut event = Fields::default();
    event.double(1, unix_s).varint(2, tokens).bytes(5, &summary.0);
    record(file, &event.0);
}

/// Encodes a `Summary.Value` with a number.
fn scalar(tag: &str, value: f32) -> Fields {
    let mut fields = Fields::default();
    fields.bytes(1, tag.as_bytes()).float(2, value);
    fields
}

/// Encodes a `Summary.Value` with a text: a tensor of one string for the text plug-in. The plug-in renders Markdown, so
/// the text is indented by four spaces, which keeps it unchanged.
fn text(tag: &str, text: &str) -> Fields {
    /// `DataType::DT_STRING`.
    const STRING: u64 = 7;
    let set_in: Vec<String> = text.lines().map(|line| format!("    {line}")).collect();
    let (mut plugin, mut metadata) = (Fields::default(), Fields::default());
    plugin.bytes(1, b"text");
    metadata.bytes(1, &plugin.0);
    let (mut size, mut shape, mut tensor) = (Fields::default(), Fields::default(), Fields::default());
    size.varint(1, 1);
    shape.bytes(2, &size.0);
    tensor.varint(1, STRING).bytes(2, &shape.0).bytes(8, set_in.join("\n").as_bytes());
    let mut fields = Fields::default();
    fields.bytes(1, tag.as_bytes()).bytes(8, &tensor.0).bytes(9, &metadata.0);
    fields
}

/// Encoded fields of a protobuf message. Each begins with its number and wire type.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn varint(&mut self, number: u8, value: u64) -> &mut Self {
        self.0.push(number << 3);
        self.raw_varint(value);
        self
    }

    fn double(&mut self, number: u8, value: f64) -> &mut Self {
        self.0.push(number << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(&mut self, number: u8, value: &[u8]) -> &mut Self {
        self.0.push(number << 3 | 2);
        self.raw_varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn float(&mut self, number: u8, value: f32) -> &mut Self {
        self.0.push(number << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a varint: seven bits per byte, lowest first. All bytes except the last have their highest bit set.
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// Appends a record of `TFRecord`.
fn record(file: &mut Vec<u8>, data: &[u8]) {
    let len = (data.len() as u64).to_le_bytes();
    file.extend(len);
    file.extend(masked_crc(&len).to_le_bytes());
    file.extend_from_slice(data);
    file.extend(masked_crc(data).to_le_bytes());
}

/// Returns the masked CRC-32C. The mask protects data that itself contains CRCs.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the CRC-32C (Castagnoli, reflected). Files are small, so one bit at a time is fast enough.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use archipelago_core::bytes::hex;

    use super::*;
    use crate::report::tests::report_of;
    use crate::status::{Evaluation, Point};

    #[test]
    fn sums_are_those_of_the_standard() {
        // RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn times_are_those_of_the_world() {
        let mut statistics = RunStatistics { run_s: 10.0, ..RunStatistics::default() };
        assert_eq!(
            WallClock::new(&statistics, 1_700_000_000.0).at(7.5),
            1_699_999_997.5,
            "a run without points"
        );
        // The syncer is up for ten seconds, then down for an hour, then up again.
        for (time_s, at_ms) in [(1.0, 5_001_000), (9.0, 5_009_000), (11.0, 8_611_000)] {
            statistics.series.push(Point { time_s, at_ms, ..Point::default() });
        }
        let clock = WallClock::new(&statistics, 0.0);
        assert_eq!(
            [0.5, 1.0, 8.0, 10.5, 12.0].map(|time_s| clock.at(time_s)),
            [5_000.5, 5_001.0, 5_008.0, 8_610.5, 8_612.0]
        );
    }

    /// `tests/golden/tensorboard/read.py` reads the same bytes with TensorBoard itself.
    #[test]
    fn files_are_those_that_tensorboard_reads() {
        let mut statistics = RunStatistics::default();
        for step in 0..3_u16 {
            let (time_s, live) = (f64::from(step) + 0.5, f32::from(step));
            let (train_loss, tokens_merged) = ((step > 0).then_some(4.25), 300 * u64::from(step));
            let (bytes_up, at_ms) = (1 << 20, 1_700_000_000_500 + 1_000 * u64::from(step));
            let point =
                Point { time_s, train_loss, live, tokens_merged, bytes_up, at_ms, ..Point::default() };
            statistics.series.push(point);
        }
        let evaluation =
            Evaluation { tokens_merged: 600, rounds: 2, loss: 3.5, time_s: 2.75, measured_by: None };
        statistics.history.push(evaluation, Some("Once *upon*\na time é".into()));
        let golden = include_str!("../../../tests/golden/tensorboard/events.txt");
        let lines: Vec<String> = hex(&events(&report_of(statistics), 0.0))
            .as_bytes()
            .chunks(100)
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect();
        assert_eq!(lines.join("\n"), golden.trim_end());
    }
}
