//! The imports of pages and of the npm package: TypeScript and modules of JavaScript.

use std::collections::BTreeSet;

use super::Arrow;

/// What stands before the file that is imported.
const BEFORE: &[&str] = &["from \"", "import \"", "import(\"", "new URL(\""];

/// The npm package's name, and the file that it means here.
const PACKAGE: &str = "@archipelago-train/learner";
const PACKAGE_FILE: &str = "web-demo/package/src/index.ts";

/// The arrows between the files `names` that are written in TypeScript or JavaScript.
pub fn arrows(names: &[String], load: &dyn Fn(&str) -> Option<String>) -> BTreeSet<Arrow> {
    let mut arrows = BTreeSet::new();
    for file in names.iter().filter(|name| ships(name)) {
        let Some(text) = load(file) else { continue };
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            for before in BEFORE {
                let Some(path) = code.split(before).nth(1).and_then(|rest| rest.split('"').next()) else {
                    continue;
                };
                if let Some(target) = resolve(file, path) {
                    arrows.insert(Arrow { file: file.clone(), line: number + 1, target });
                }
            }
        }
    }
    arrows
}

/// Whether `name` is code of a page or of the package, and no test.
fn ships(name: &str) -> bool {
    let code = [".ts", ".js", ".mjs"].iter().any(|kind| name.ends_with(kind));
    code && !name.contains("/tests/") && !name.contains(".test.")
}

/// The file that `path` means, seen from `file`; `None` for a package from elsewhere.
fn resolve(file: &str, path: &str) -> Option<String> {
    if path == PACKAGE {
        return Some(PACKAGE_FILE.to_owned());
    }
    if !path.starts_with('.') {
        return None;
    }
    let mut folders: Vec<&str> = file.split('/').collect();
    folders.pop();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => {
                folders.pop()?;
            }
            name => folders.push(name),
        }
    }
    Some(folders.join("/"))
}
