//! The packages of the workspace: where their code begins, and which of the others they depend on.

use std::collections::BTreeMap;

use super::map::{Room, room_of};
use super::tree::Root;

/// What is read of a `Cargo.toml`.
#[derive(Debug)]
pub struct Manifest {
    /// Its file, from the workspace's root.
    file: String,
    /// The folder, with a slash unless it is empty.
    folder: String,
    name: String,
    /// Packages it depends on when it ships, with the line.
    depends_on: Vec<(String, usize)>,
    /// Files that begin a program or a test, by the kind of their table.
    targets: Vec<(String, String)>,
}

/// A root with the texts that it borrows elsewhere.
pub struct OwnedRoot {
    name: String,
    file: String,
    library: bool,
    for_tests: bool,
}

impl OwnedRoot {
    /// As the tree takes it.
    pub fn borrowed(&self) -> Root<'_> {
        Root { name: &self.name, file: &self.file, library: self.library, for_tests: self.for_tests }
    }
}

/// The manifests among `names`.
///
/// # Errors
/// A sentence, if none is there.
pub fn find(names: &[String], load: &dyn Fn(&str) -> Option<String>) -> Result<Vec<Manifest>, String> {
    let manifests: Vec<Manifest> = names
        .iter()
        .filter(|name| name.ends_with("/Cargo.toml"))
        .filter_map(|name| Some(read(name, &load(name)?)))
        .collect();
    if manifests.is_empty() { Err("no package was found".into()) } else { Ok(manifests) }
}

/// Reads the lines of a manifest that matter here; of TOML no more than they need.
fn read(file: &str, text: &str) -> Manifest {
    let mut table = String::new();
    let mut manifest = Manifest {
        file: file.to_owned(),
        folder: file.trim_end_matches("Cargo.toml").to_owned(),
        name: String::new(),
        depends_on: Vec::new(),
        targets: Vec::new(),
    };
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).to_owned();
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim().trim_end_matches(".workspace"), value.trim().trim_matches('"'));
        let ships = table.ends_with("dependencies") && !table.ends_with("dev-dependencies");
        match (table.as_str(), key) {
            ("package", "name") => manifest.name = value.to_owned(),
            ("lib" | "bin" | "test" | "example" | "bench", "path") => {
                manifest.targets.push((table.clone(), value.to_owned()));
            }
            _ if ships => manifest.depends_on.push((key.to_owned(), number + 1)),
            _ => {}
        }
    }
    manifest
}

impl Manifest {
    /// Where the code of this package begins, among the files `names`.
    pub fn roots(&self, names: &[String]) -> Vec<OwnedRoot> {
        let mut roots = Vec::new();
        let mut add = |file: String, kind: &str| {
            let library = kind == "lib";
            let name = if library { self.name.replace('-', "_") } else { file.clone() };
            let for_tests = ["test", "bench"].contains(&kind);
            if names.contains(&file) && roots.iter().all(|root: &OwnedRoot| root.file != file) {
                roots.push(OwnedRoot { name, file, library, for_tests });
            }
        };
        for (kind, path) in &self.targets {
            add(format!("{}{path}", self.folder), kind);
        }
        for (kind, path) in [("lib", "src/lib.rs"), ("bin", "src/main.rs"), ("bin", "build.rs")] {
            add(format!("{}{path}", self.folder), kind);
        }
        for (kind, folder) in [("bin", "src/bin/"), ("test", "tests/"), ("example", "examples/")] {
            let folder = format!("{}{folder}", self.folder);
            for name in names {
                let Some(rest) = name.strip_prefix(&folder) else { continue };
                let direct = rest.ends_with(".rs") && !rest.contains('/');
                if direct || (rest.ends_with("/main.rs") && rest.matches('/').count() == 1) {
                    add(name.clone(), kind);
                }
            }
        }
        roots
    }
}

/// Dependencies between packages that the map does not allow between any of their rooms.
pub fn against(rooms: &[Room], manifests: &[Manifest]) -> Vec<String> {
    let by_name: BTreeMap<&str, &Manifest> = manifests.iter().map(|m| (m.name.as_str(), m)).collect();
    // A room belongs to the package with the deepest folder around it.
    let owner = |room: &Room| {
        let around = |m: &&Manifest| format!("{}/", room.name()).starts_with(&m.folder);
        manifests.iter().filter(around).max_by_key(|m| m.folder.len()).map(|m| m.name.as_str())
    };
    let mut broken = Vec::new();
    for manifest in manifests {
        for (on, line) in manifest.depends_on.iter().filter(|(on, _)| by_name.contains_key(on.as_str())) {
            let allowed = rooms.iter().filter(|room| owner(room) == Some(&manifest.name)).any(|room| {
                rooms.iter().enumerate().any(|(place, to)| owner(to) == Some(on) && room.may_use(place))
            });
            if !allowed {
                broken.push(format!(
                    "{}:{line}: no room of `{}` may use one of `{on}` (ARCHITECTURE.md); drop the dependency, or \
                     change the map on purpose",
                    manifest.file, manifest.name
                ));
            }
        }
        if room_of(rooms, &format!("{}src/lib.rs", manifest.folder)).is_none() {
            broken
                .push(format!("{}: in no room of the map in ARCHITECTURE.md; give it a row", manifest.file));
        }
    }
    broken
}
