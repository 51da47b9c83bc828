//! Checks of the crates and the npm package as published: complete, licensed, and small enough.

use std::process::Command;

use crate::cargo::{cargo, root};

/// Published crates, in order of dependency.
const CRATES: [&str; 6] = [
    "archipelago-core",
    "archipelago-runtime",
    "archipelago",
    "archipelago-cli",
    "archipelago-sim",
    "archipelago-cluster",
];
/// Required files of each crate besides its sources.
const CRATE_FILES: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// Required files of the npm package.
const NPM_FILES: [&str; 9] = [
    "README.md",
    "dist/LICENSE-APACHE",
    "dist/LICENSE-MIT",
    "dist/index.d.ts",
    "dist/index.js",
    "dist/wasm/plain/archipelago_bg.wasm",
    "dist/wasm/relaxed/archipelago_bg.wasm",
    "dist/worker.js",
    "package.json",
];
/// Maximum size of the unpacked npm package in bytes: two builds of the engine and the code around them.
const NPM_BYTES_MAX: u64 = 6 << 20;

/// Packs the crates, and checks each package.
///
/// # Errors
/// A message if a crate cannot be packed, or a file is missing.
pub fn crates() -> Result<String, String> {
    let mut pack = cargo(&["package", "--locked", "--no-verify", "--allow-dirty", "--quiet"]);
    pack.args(CRATES.iter().flat_map(|name| ["--package", *name]));
    crate::web::call(&mut pack)?;
    for name in CRATES {
        let list =
            text(cargo(&["package", "--list", "--locked", "--allow-dirty", "--quiet", "--package", name]))?;
        let files: Vec<&str> = list.lines().collect();
        missing(name, &CRATE_FILES, &files)?;
        for file in files.iter().filter(|file| file.ends_with(".rs") && !file.contains("tests")) {
            included(name, file, &files)?;
        }
    }
    Ok(format!("{} crates", CRATES.len()))
}

/// Checks the npm package that `cargo xtask web` built.
///
/// # Errors
/// A message if npm is missing, or the package is incomplete or too large.
pub fn npm() -> Result<String, String> {
    let mut pack = crate::tools::program("npm");
    pack.args(["pack", "--dry-run", "--json"]).current_dir(root().join("web-demo/package"));
    let told: serde_json::Value =
        serde_json::from_str(&text(pack)?).map_err(|error| format!("npm pack printed no JSON: {error}"))?;
    // Some versions of npm print a list, others an object by package name.
    let packed = told.get(0).or_else(|| told.as_object()?.values().next());
    let packed = packed.ok_or("npm packed nothing")?;
    let files = packed["files"].as_array().ok_or("npm lists no files")?;
    let files: Vec<&str> = files.iter().filter_map(|file| file["path"].as_str()).collect();
    missing("the npm package", &NPM_FILES, &files)?;
    match packed["unpackedSize"].as_u64() {
        Some(bytes) if bytes <= NPM_BYTES_MAX => Ok(format!("{} kB", bytes / 1_000)),
        bytes => Err(format!("the npm package has {bytes:?} bytes; the limit is {NPM_BYTES_MAX}")),
    }
}

/// Checks that the package has all files that `file` includes. Includes of tests are exempt.
fn included(name: &str, file: &str, files: &[&str]) -> Result<(), String> {
    let folder = root().join(match name {
        "archipelago" => "sdk".to_owned(),
        name => name.replace("archipelago-", "sdk/"),
    });
    let path = folder.join(file);
    let source = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    lacks(file, &source, files)
        .map_or(Ok(()), |path| Err(format!("{name}: {file} includes {path}, which is not in the package")))
}

/// Returns a path that `source` includes and that `files` does not have. `source` is the text of `file`.
fn lacks<'a>(file: &str, source: &'a str, files: &[&str]) -> Option<&'a str> {
    let shipped = source.split("#[cfg(test)]").next().unwrap_or_default();
    for call in ["include_str!(\"", "include_bytes!(\""] {
        for rest in shipped.split(call).skip(1) {
            let path = rest.split('"').next().unwrap_or_default();
            let whole = resolve(file, path);
            if !files.contains(&whole.as_str()) {
                return Some(path);
            }
        }
    }
    None
}

/// Resolves `path` relative to the folder of `file`.
fn resolve(file: &str, path: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn missing(what: &str, wanted: &[&str], files: &[&str]) -> Result<(), String> {
    match wanted.iter().find(|file| !files.contains(file)) {
        Some(file) => Err(format!("{what} lacks {file}")),
        None => Ok(()),
    }
}

fn text(mut command: Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?} did not start: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_are_found() {
        assert_eq!(missing("x", &["a"], &["b"]), Err("x lacks a".into()));
        assert_eq!(missing("x", &["a"], &["b", "a"]), Ok(()));
        let source = "include_str!(\"a.txt\") #[cfg(test)] include_str!(\"../../far.txt\")";
        assert_eq!(lacks("src/b.rs", source, &["src/b.rs"]), Some("a.txt"));
        assert_eq!(
            lacks("src/b.rs", source, &["src/a.txt"]),
            None,
            "what only tests include may stay behind"
        );
        assert_eq!(resolve("src/wire/mod.rs", "WIRE.md"), "src/wire/WIRE.md");
        assert_eq!(resolve("src/wire/mod.rs", "../../a/b.txt"), "a/b.txt");
    }
}
