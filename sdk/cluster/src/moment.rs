//! Moments as servers write them, in milliseconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

/// What this machine's clock says.
#[expect(clippy::disallowed_methods, reason = "it is this clock that is compared with others")]
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The header `Date` of HTTP, as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn of_header(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.strip_suffix(" GMT")?.split(' ').skip(1);
    let day = words.next()?.parse().ok()?;
    let month = words.next().and_then(|name| MONTHS.iter().position(|month| *month == name))?;
    let year = words.next()?.parse().ok()?;
    Some(days(year, month as i64 + 1, day)? * 86_400_000 + time_ms(words.next()?)?)
}

/// A moment in the form of JSON's users, as `1994-11-06T08:49:37.25Z`.
pub(crate) fn of_stamp(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut parts = date.splitn(3, '-').map(str::parse);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    Some(days(year, month, day)? * 86_400_000 + time_ms(time)?)
}

/// `08:49:37`, or with a part of a second behind it.
fn time_ms(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':');
    let (hours, minutes) = (parts.next()?.parse::<i64>().ok()?, parts.next()?.parse::<i64>().ok()?);
    let seconds = parts.next()?.parse::<f64>().ok()?;
    let fits = (0..24).contains(&hours) && (0..60).contains(&minutes) && (0.0..61.0).contains(&seconds);
    fits.then(|| (hours * 60 + minutes) * 60_000 + (seconds * 1_000.0) as i64)
}

/// Days from 1970 to a day of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !((1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day)) {
        return None;
    }
    // Years that begin in March have their leap day last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        for (header, stamp, ms) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00Z", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z", 784_111_777_000),
            ("Thu, 29 Feb 2024 23:59:59 GMT", "2024-02-29T23:59:59Z", 1_709_251_199_000),
            ("Mon, 01 Mar 2100 00:00:00 GMT", "2100-03-01T00:00:00Z", 4_107_542_400_000),
        ] {
            assert_eq!((of_header(header), of_stamp(stamp)), (Some(ms), Some(ms)), "{header}");
        }
        assert_eq!(of_stamp("1970-01-01T00:00:01.2509Z"), Some(1_250));
        for text in ["", "now", "Sun, 06 Nov 1994 08:49:37", "Sun, 06 Nix 1994 08:49:37 GMT", "1994-11-06"] {
            assert_eq!((of_header(text), of_stamp(text)), (None, None), "{text}");
        }
        for text in ["1994-13-06T08:49:37Z", "1994-11-06T28:49:37Z", "1994-11-06T08:49:nanZ"] {
            assert_eq!(of_stamp(text), None, "{text}");
        }
    }
}
