//! The arrows between rooms: the map in ARCHITECTURE.md, compared with what the code imports.
//!
//! A room is a row of the map: some folders or files. What ships in a room may use what its row allows; tests may use
//! more.
//! A room is used by its door: the module that a path names, whatever that module passes on from elsewhere.
//! Among the modules side by side in one folder there is no circle either. A module and the one above it may
//! know each other, for the upper one is where neighbours keep what they share.

mod crates;
mod imports;
mod map;
mod pages;
mod tokens;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use self::map::Room;
use self::tree::{Tree, Use};

/// Compares the files `names` of the workspace in `root` with the map; the sentences to act on.
pub fn judge(root: &Path, names: &[String]) -> Vec<String> {
    judge_texts(names, &|name| fs::read_to_string(root.join(name)).ok())
}

/// The same for files whose texts `load` gives.
fn judge_texts(names: &[String], load: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let page = load("ARCHITECTURE.md").unwrap_or_default();
    let rooms = match map::read(&page) {
        Ok(rooms) => rooms,
        Err(broken) => return broken,
    };
    let manifests = match crates::find(names, load) {
        Ok(manifests) => manifests,
        Err(reason) => return vec![reason],
    };
    let mut tree = Tree::default();
    for manifest in &manifests {
        for root in manifest.roots(names) {
            tree.grow(&root.borrowed(), load);
        }
    }
    let mut arrows = arrows_of(&tree);
    arrows.extend(pages::arrows(names, load));
    let mut broken = missing(&rooms, names);
    broken.extend(against(&rooms, &arrows));
    broken.extend(idle(&rooms, &arrows));
    broken.extend(crates::against(&rooms, &manifests));
    broken.extend(circles(&tree.uses()));
    broken.extend(dead(&tree, names));
    broken
}

/// One room's file naming another file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// The file that uses.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// The file that is used.
    pub target: String,
}

/// The uses of `tree` as arrows between files, each to its door.
fn arrows_of(tree: &Tree) -> BTreeSet<Arrow> {
    let arrow = |used: Use| {
        let last = used.through.last()?;
        // The root of a crate, and what lies around the user, pass on what lies below them: they are no doors.
        let is_door = |module: &&Vec<String>| module.len() > 1 && !used.from.starts_with(module);
        let door = used.through.iter().find(is_door).unwrap_or(last);
        // A folder that passes on what lies below it is no user of it.
        if used.passed_on && door.starts_with(&used.from) {
            return None;
        }
        Some(Arrow { file: used.file, line: used.line, target: tree.modules.get(door)?.file.clone() })
    };
    tree.uses().into_iter().filter_map(arrow).collect()
}

/// Rows about what is not there, and files in no row.
fn missing(rooms: &[Room], names: &[String]) -> Vec<String> {
    let mut broken = Vec::new();
    for room in rooms {
        for path in &room.paths {
            if !names.iter().any(|name| name == path || name.starts_with(&format!("{path}/"))) {
                let line = room.line;
                broken.push(format!("ARCHITECTURE.md:{line}: `{path}` is not there; take it out of the map"));
            }
        }
    }
    for name in names.iter().filter(|name| name.ends_with(".rs")) {
        if map::room_of(rooms, name).is_none() {
            broken.push(format!("{name}: in no room of the map in ARCHITECTURE.md; give it a row"));
        }
    }
    broken
}

/// Arrows that the map does not allow.
fn against(rooms: &[Room], arrows: &BTreeSet<Arrow>) -> Vec<String> {
    let mut broken = Vec::new();
    for Arrow { file, line, target } in arrows {
        let (Some(from), Some(to)) = (map::room_of(rooms, file), map::room_of(rooms, target)) else {
            continue;
        };
        if from != to && !rooms[from].may_use(to) {
            broken.push(format!(
                "{file}:{line}: `{}` may not use `{}` (ARCHITECTURE.md:{}); move the code to where it may, \
                 take what it gives as an argument, or change the map on purpose",
                rooms[from].name(),
                rooms[to].name(),
                rooms[from].line
            ));
        }
    }
    broken
}

/// What the map allows and nobody needs.
fn idle(rooms: &[Room], arrows: &BTreeSet<Arrow>) -> Vec<String> {
    let place = |file: &str| map::room_of(rooms, file);
    let used: BTreeSet<(usize, usize)> =
        arrows.iter().filter_map(|arrow| Some((place(&arrow.file)?, place(&arrow.target)?))).collect();
    let mut broken = Vec::new();
    for (from, room) in rooms.iter().enumerate() {
        for list in room.may_use.iter().flatten() {
            if list.iter().all(|to| !used.contains(&(from, *to))) {
                let names: Vec<&str> = list.iter().map(|to| rooms[*to].name()).collect();
                broken.push(format!(
                    "ARCHITECTURE.md:{}: `{}` may use `{}` and does not; take that out of the map",
                    room.line,
                    room.name(),
                    names.join("`, `")
                ));
            }
        }
    }
    broken
}

/// Circles among modules that lie side by side, one sentence for each.
fn circles(uses: &[Use]) -> Vec<String> {
    type Edges = BTreeMap<String, BTreeSet<String>>;
    let mut levels: BTreeMap<Vec<String>, Edges> = BTreeMap::new();
    let mut places: BTreeMap<(String, String), String> = BTreeMap::new();
    for used in uses {
        let Some(target) = used.through.last() else { continue };
        let shared = used.from.iter().zip(target).take_while(|(a, b)| a == b).count();
        if shared == 0 || shared >= used.from.len() || shared >= target.len() {
            continue;
        }
        let (from, to) = (used.from[..=shared].join("::"), target[..=shared].join("::"));
        let level = levels.entry(used.from[..shared].to_vec()).or_default();
        level.entry(from.clone()).or_default().insert(to.clone());
        places.entry((from, to)).or_insert_with(|| format!("{}:{}", used.file, used.line));
    }
    let mut broken = Vec::new();
    for edges in levels.values_mut() {
        while let Some(circle) = map::find_circle(edges) {
            let steps = circle.windows(2).map(|pair| {
                edges.get_mut(&pair[0]).expect("a step of the circle").remove(&pair[1]);
                let place = &places[&(pair[0].clone(), pair[1].clone())];
                format!("`{}` uses `{}` ({place})", pair[0], pair[1])
            });
            let steps = steps.collect::<Vec<_>>().join(", ");
            broken.push(format!("a circle: {steps}; move what both need to a place of its own"));
        }
    }
    broken
}

/// Rust files that no module leads to.
fn dead(tree: &Tree, names: &[String]) -> Vec<String> {
    names
        .iter()
        .filter(|name| name.ends_with(".rs") && !tree.reached.contains(*name))
        .map(|name| format!("{name}: no `mod` leads here, so nothing compiles it; declare or delete it"))
        .collect()
}

#[cfg(test)]
mod tests;
