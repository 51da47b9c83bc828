//! Check of the page of limits against the code: values equal the constants, quoted messages exist, and no constant is
//! missing from the page.

/// Path of the page.
const PAGE: &str = "docs/limits.md";

/// Files with the defaults of flags.
const FLAGS: [&str; 2] = ["syncer-server/src/config/live.rs", "syncer-server/src/config/server.rs"];

/// Files and folders whose bounds the page must list.
pub const WATCHED: &[&str] = &[
    "syncer-server/src/listener/",
    "syncer-server/src/connection/",
    "syncer-server/src/outbox.rs",
    "syncer-server/src/open_run.rs",
    "syncer-server/src/http/",
    "syncer-server/src/hosting/",
    "syncer-server/src/invites/",
    "syncer-server/src/actor/handle.rs",
    "sdk/core/src/wire/mod.rs",
    "sdk/core/src/wire/codec.rs",
    "sdk/core/src/diloco/sessions/rate_limit.rs",
];

/// Suffixes of the names of bounds.
const ENDINGS: &[&str] = &["_MAX", "_WITHIN", "_WAIT"];

/// Folders whose code contains the quoted messages.
const MESSAGE_FOLDERS: &[&str] = &["syncer-server/src/", "sdk/core/src/"];

/// Units of the page, each with its size in seconds, bytes or items.
const UNITS: &[(&str, f64)] =
    &[("", 1.0), ("B", 1.0), ("KiB", 1024.0), ("MiB", 1024.0 * 1024.0), ("ms", 1e-3), ("s", 1.0)];

/// Returns the violations in the page, and in the files among `names` whose bounds it lists. `load` returns the text of
/// a file.
pub fn judge(names: &[String], load: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let Some(page) = load(PAGE) else { return vec![format!("{PAGE} is missing")] };
    let mut broken = Vec::new();
    let mut listed = Vec::new();
    let says = |name: &&String| {
        MESSAGE_FOLDERS.iter().any(|folder| name.starts_with(folder)) && name.ends_with(".rs")
    };
    let said: Vec<String> =
        names.iter().filter(says).filter_map(|name| load(name)).map(|text| joined(&text)).collect();
    let rows = page.lines().enumerate().filter(|(_, line)| line.starts_with('|') && line.contains('`'));
    for (number, line) in rows {
        let mut say = |what: String| broken.push(format!("{PAGE}:{}: {what}", number + 1));
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [_, value, over, place] = cells[..] else {
            say("a row has four cells: what, limit, over it, where".into());
            continue;
        };
        let place = place.trim_matches('`');
        listed.push(place.to_owned());
        match (amount(value), value_at(place, load)) {
            (Some(told), Some(is)) if told == is => {}
            (None, _) => say(format!("`{value}` is not a number with a known unit")),
            (_, None) => say(format!("`{place}` is neither a constant nor a flag with a known value")),
            (Some(_), Some(is)) => say(format!("`{place}` is {is} in bytes, seconds or items, not {value}")),
        }
        for quoted in over.split('"').skip(1).step_by(2) {
            if !said.iter().any(|text| text.contains(quoted)) {
                say(format!("no program prints \"{quoted}\""));
            }
        }
    }
    for name in names.iter().filter(|name| WATCHED.iter().any(|watched| name.starts_with(watched))) {
        let bounds = constants(&load(name).unwrap_or_default());
        let bounds = bounds.into_iter().map(|(bound, _)| format!("{name}::{bound}"));
        let missing =
            bounds.filter(|bound| ENDINGS.iter().any(|end| bound.ends_with(end)) && !listed.contains(bound));
        broken.extend(missing.map(|bound| format!("{PAGE}: the bound `{bound}` has no row")));
    }
    broken
}

/// Parses the number of a cell, in seconds, bytes or items.
fn amount(cell: &str) -> Option<f64> {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(number.parse::<f64>().ok()? * factor)
}

/// Returns the value of the constant or flag that `place` names: `path::CONSTANT`, or `--flag`, whose value is its
/// default.
fn value_at(place: &str, load: &dyn Fn(&str) -> Option<String>) -> Option<f64> {
    if let Some(flag) = place.strip_prefix("--") {
        let field = format!("pub {}:", flag.replace('-', "_"));
        let text = FLAGS.iter().filter_map(|file| load(file)).find(|text| text.contains(&field))?;
        let (before, _) = text.split_once(&field)?;
        let (_, attribute) = before.rsplit_once("#[arg(long")?;
        let (_, default) = attribute.split_once("default_value_t = ")?;
        return product(default.split([',', ')']).next()?);
    }
    let (path, name) = place.split_once("::")?;
    let found = constants(&load(path)?).into_iter().find(|(constant, _)| constant == name)?;
    product(&found.1)
}

/// Returns the constants of a file with their values as written. Constants of tests are indented and thus skipped.
fn constants(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for statement in text.split(";\n") {
        let Some(begin) = statement.lines().position(declares) else { continue };
        let statement = statement.lines().skip(begin).collect::<Vec<_>>().join(" ");
        let Some((head, value)) = statement.split_once(" = ") else { continue };
        let name = head.split_once("const ").and_then(|(_, rest)| rest.split(':').next());
        found.extend(name.map(|name| (name.to_owned(), value.trim().to_owned())));
    }
    found
}

/// Returns true if a line begins the declaration of a module's constant.
fn declares(line: &str) -> bool {
    let visible = ["const ", "pub const ", "pub(crate) const ", "pub(super) const "];
    let name = visible.iter().find_map(|begin| line.strip_prefix(begin));
    name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Returns the value of a product or shift of numbers, a `Duration` in seconds, a number in a string, or the last
/// element of a list.
fn product(written: &str) -> Option<f64> {
    let written = written.trim().trim_matches('"');
    if let Some(list) = written.strip_prefix('[') {
        return product(list.strip_suffix(']')?.rsplit(", ").next()?);
    }
    for (make, factor) in [("Duration::from_secs(", 1.0), ("Duration::from_millis(", 1e-3)] {
        if let Some(inner) = written.strip_prefix(make) {
            return Some(product(inner.strip_suffix(')')?)? * factor);
        }
    }
    if let Some((left, right)) = written.split_once(" << ") {
        return Some(product(left)? * product(right)?.exp2());
    }
    written.split(" * ").map(|factor| factor.replace('_', "").parse::<f64>().ok()).product()
}

/// Returns `text` with each continued string on one line.
fn joined(text: &str) -> String {
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default();
    std::iter::once(first).chain(lines.map(str::trim_start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = r#"
/// Time for it.
const SHAKE_WAIT: Duration = Duration::from_secs(10);
pub const BYTES_MAX: usize = 32 << 10;
const EVERY: [Duration; 2] =
    [Duration::from_millis(20), Duration::from_millis(1)];
const OTHER: &str = "words";
fn f() {
    say("too long: \
        try again");
}
#[cfg(test)]
mod tests {
    const TRIES_MAX: u32 = 1;
}
"#;
    const CLI: &str = r#"
    #[arg(long, value_name = "COUNT", default_value_t = 8_192)]
    #[arg(value_parser = x())]
    pub crowd_max: u32,
"#;

    /// Returns the violations of a page with these rows.
    fn check(rows: &[&str], parts: &[&str]) {
        let page = format!("| what | limit | over it | where |\n|---|---|---|---|\n{}\n", rows.join("\n"));
        let load = |name: &str| match name {
            PAGE => Some(page.clone()),
            name if name == FLAGS[1] => Some(CLI.to_owned()),
            "syncer-server/src/listener/a.rs" => Some(CODE.to_owned()),
            _ => None,
        };
        let names = [FLAGS[1], "syncer-server/src/listener/a.rs"].map(str::to_owned);
        let broken = judge(&names, &load);
        let found = broken.iter().zip(parts).all(|(said, part)| said.contains(part));
        assert!(found && broken.len() == parts.len(), "{rows:?}: {broken:?}");
    }

    #[test]
    fn a_row_says_what_the_code_does() {
        let wait = "| a | 10 s | \"too long: try again\" | `syncer-server/src/listener/a.rs::SHAKE_WAIT` |";
        let bytes = "| a | 32 KiB | ends | `syncer-server/src/listener/a.rs::BYTES_MAX` |";
        let crowd = "| a | 8192 | ends | `--crowd-max` |";
        let every = "| a | 1 ms | ends | `syncer-server/src/listener/a.rs::EVERY` |";
        check(&[wait, bytes, crowd, every], &[]);
        check(&[&wait.replace("10 s", "11 s"), bytes], &["is 10 in"]);
        check(&[&wait.replace("10 s", "ten"), bytes], &["`ten` is not a number"]);
        check(&[&wait.replace("too long", "too short"), bytes], &["no program prints"]);
        check(&[wait, bytes, &crowd.replace("8192", "8191")], &["is 8192 in"]);
        check(&[wait, bytes, &crowd.replace("crowd", "people")], &["is neither a constant"]);
        check(&[wait, &bytes.replace("| ends ", "")], &["four cells", "BYTES_MAX` has no row"]);
        check(&[bytes], &["SHAKE_WAIT` has no row"]);
    }
}
