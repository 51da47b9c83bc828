//! Check of pages against the command line: each flag in a page exists, and the exit codes in a page are those of the
//! programs.

/// Program as pages call it, and the path prefixes of the files that declare its flags.
struct DocumentedProgram {
    call: &'static str,
    sources: &'static [&'static str],
}

const METHOD: &str = "sdk/cli/src/method.rs";
const DEMO: &str = "sdk/cli/src/demo.rs";

const PROGRAMS: &[DocumentedProgram] = &[
    DocumentedProgram { call: "syncer-server", sources: &["syncer-server/src/config/", METHOD, DEMO] },
    DocumentedProgram { call: "native-learner", sources: &["native-learner/src/cli.rs"] },
    DocumentedProgram { call: "simulate", sources: &["tests/experiments/src/", METHOD] },
    DocumentedProgram {
        call: "archipelago-train",
        sources: &["sdk/python/python/archipelago_train/__main__.py"],
    },
    DocumentedProgram { call: "cargo xtask demo", sources: &[DEMO, "xtask/src/demo.rs"] },
    DocumentedProgram { call: "cargo xtask test", sources: &["xtask/src/test/mod.rs"] },
    DocumentedProgram { call: "cargo xtask bench", sources: &["xtask/src/bench/"] },
    DocumentedProgram { call: "cargo xtask web", sources: &["xtask/src/web/mod.rs"] },
    DocumentedProgram { call: "cargo xtask gpu", sources: &["xtask/src/gpu/mod.rs"] },
];

/// Flags that `clap` adds to each program.
const GIVEN: &[&str] = &["help", "version"];

/// Page with the exit codes, and the files that declare them.
const REFERENCE: &str = "docs/commands.md";
const CODES: &[&str] =
    &["syncer-server/src/errors.rs", "native-learner/src/exit.rs", "tests/experiments/src/error.rs"];

/// Returns the files and path prefixes that these rules read.
pub fn watched() -> impl Iterator<Item = &'static str> {
    let sources = PROGRAMS.iter().flat_map(|program| program.sources);
    sources.chain(CODES).copied().chain([REFERENCE])
}

/// Returns the violations in the pages among `names`; `load` returns the text of a file.
pub fn judge(names: &[String], load: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let flags: Vec<Vec<String>> = PROGRAMS.iter().map(|program| declared(names, load, program)).collect();
    let mut broken = Vec::new();
    for page in names.iter().filter(|name| name.ends_with(".md")) {
        for (number, piece) in code(&load(page).unwrap_or_default()) {
            // A flag alone may belong to any program.
            if piece.starts_with("--")
                && !flags.iter().flatten().any(|flag| asked(piece, "").any(|one| one == flag))
            {
                broken.push(format!("{page}:{number}: no program has `{piece}`"));
            }
            for (program, flags) in PROGRAMS.iter().zip(&flags) {
                let unknown =
                    asked(piece, program.call).filter(|flag| !flags.iter().any(|known| known == flag));
                broken.extend(
                    unknown.map(|flag| format!("{page}:{number}: `{}` has no `--{flag}`", program.call)),
                );
            }
        }
    }
    let listed = load(REFERENCE).unwrap_or_default();
    for file in CODES {
        let missing = codes(&load(file).unwrap_or_default()).into_iter().filter(|row| !listed.contains(row));
        broken.extend(missing.map(|row| format!("{REFERENCE}: the row `{row}` of {file} is missing")));
    }
    broken
}

/// Returns the flags of `program`, without the dashes.
fn declared(
    names: &[String],
    load: &dyn Fn(&str) -> Option<String>,
    program: &DocumentedProgram,
) -> Vec<String> {
    let ours = |name: &&String| program.sources.iter().any(|source| name.starts_with(source));
    let mut flags: Vec<String> = GIVEN.iter().map(ToString::to_string).collect();
    for text in names.iter().filter(ours).filter_map(|name| load(name)) {
        // Flags of Python's argparse are literals.
        let literals = text.split("add_argument(").skip(1).map(|call| call.trim_start());
        let literals = literals.filter_map(|call| call.strip_prefix("\"--")?.split('"').next());
        flags.extend(literals.map(str::to_owned));
        // Text from the first `#[arg(` to its field.
        let mut attribute: Option<String> = None;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[arg(") {
                attribute.get_or_insert_default().push_str(line);
                continue;
            }
            let Some(about) = &mut attribute else { continue };
            let Some((field, _)) = line.split_once(": ").filter(|_| !line.starts_with("//")) else {
                about.push_str(line);
                continue;
            };
            let named = about.split("long = \"").nth(1).and_then(|rest| rest.split('"').next());
            let field = field.split(' ').next_back().unwrap_or_default().replace('_', "-");
            flags.extend(about.contains("long").then(|| named.map_or(field, str::to_owned)));
            attribute = None;
        }
    }
    flags
}

/// Returns the pieces of code in a page with their line numbers: code spans, and lines of code blocks.
fn code(page: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut pieces = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            pieces.push((number, line));
        } else {
            pieces.extend(line.split('`').skip(1).step_by(2).map(|piece| (number, piece)));
        }
    }
    pieces
}

/// Returns the flags that `piece` passes to the program `call`, without the dashes.
fn asked<'a>(piece: &'a str, call: &str) -> impl Iterator<Item = &'a str> {
    let given = piece.find(call).map_or("", |at| &piece[at + call.len()..]);
    // Otherwise the match is a prefix of another program's name, or a file.
    let whole = call.is_empty() || given.is_empty() || given.starts_with(' ');
    // Flags before a lone `--` are cargo's.
    let by_cargo = piece.contains("cargo ") && !call.starts_with("cargo ");
    let own = if by_cargo { given.split_once(" -- ").map_or("", |(_, own)| own) } else { given };
    let words = own.split(['#', ';', '|', '&', ')']).next().unwrap_or_default().split_whitespace();
    words
        .filter(move |_| whole)
        .filter_map(|word| word.strip_prefix("--"))
        .filter_map(|flag| flag.split('=').next())
        .filter(|flag| !flag.is_empty())
}

/// Returns the exit codes that a Rust file declares, as rows of the reference.
fn codes(text: &str) -> Vec<String> {
    let mut rows = Vec::new();
    let mut listed = false;
    for line in text.lines() {
        // `Usage = 2, "what it means";`
        if let Some((code, meaning)) = line.split_once(" = ").and_then(|(_, rest)| rest.split_once(", \""))
            && let Some(meaning) = meaning.strip_suffix("\";")
            && code.parse::<u8>().is_ok()
        {
            rows.push(format!("| {code} | {meaning} |"));
        }
        // Or a row of a help text.
        let row = line.trim().trim_end_matches("\";").split_once("  ");
        if let Some((code, meaning)) = row.filter(|_| listed) {
            rows.push(format!("| {code} | {meaning} |"));
        }
        listed = (listed || line == "Exit codes:") && !line.ends_with("\";");
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLI: &str = "\
        #[arg(long)]\n    pub(crate) duty_cycle: f64,\n    #[arg(long = \"for\")]\n    run_max: u8,\n\
        #[arg(short)]\n    q: u8,\n    #[arg(long)]\n    #[arg(value_name = \"N\")]\n    twice: u8,\n";
    const ARGPARSE: &str = "        followed.add_argument(\n            \"--to\", required=True)\n";
    const EXIT: &str = "        Done = 0, \"all is well\";\n        Lost = 12, \"no way was found\";\n";
    const DEMO: &str = "Exit codes:\n    0  done\n 3-18  others'\n  130  stopped\";\nno  code\n";

    /// Asserts that a page with `text` breaks `count` rules.
    fn check(text: &str, count: usize) {
        let argparse = "sdk/python/python/archipelago_train/__main__.py";
        let names = ["A.md", "native-learner/src/cli.rs", argparse].map(str::to_owned);
        let load = |name: &str| match name {
            "A.md" => Some(text.to_owned()),
            "native-learner/src/cli.rs" => Some(CLI.to_owned()),
            name if name == argparse => Some(ARGPARSE.to_owned()),
            _ => None,
        };
        let broken = judge(&names, &load);
        assert_eq!(broken.len(), count, "{text}: {broken:?}");
    }

    #[test]
    fn flags_that_are_named_are_there() {
        check("`native-learner join A --duty-cycle 0.5 --for=5m --twice 1 --help`", 0);
        check("`native-learner join --duty 0.5`", 1);
        check("    native-learner join --run-max 5m --no-such --nor-this  # --comment", 3);
        check("```\nExecStart=/usr/local/bin/native-learner join --gone\n```", 1);
        check("native-learner --in-prose, `native-learner.service --not-it`", 0);
        check("`cargo build --release -p native-learner --bins`", 0);
        check("`cargo run -p native-learner --release -- join --gone`", 1);
        check("`cargo xtask test --only tidy`", 1);
        check("`--duty-cycle 0.5` and `--no-such 1`", 1);
        check("    archipelago-train watch URL --to trackio --from here", 1);
    }

    #[test]
    fn exit_codes_are_rows() {
        assert_eq!(codes(EXIT), ["| 0 | all is well |", "| 12 | no way was found |"]);
        assert_eq!(codes(DEMO), ["| 0 | done |", "| 3-18 | others' |", "| 130 | stopped |"]);
    }

    #[test]
    fn the_reference_has_each_code() {
        let load = |name: &str| match name {
            "native-learner/src/exit.rs" => Some(EXIT.to_owned()),
            REFERENCE => Some("| 0 | all is well |".to_owned()),
            _ => None,
        };
        let broken = judge(&[], &load);
        assert!(broken.len() == 1 && broken[0].contains("| 12 |"), "{broken:?}");
    }
}
