//! The table of rooms in ARCHITECTURE.md: what each may use.

use std::collections::{BTreeMap, BTreeSet};

/// The line that the table begins with.
pub const HEADER: &str = "| where | what | may use |";

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Room {
    /// The folders and files that it consists of, from the workspace's root; the first one names it.
    pub paths: Vec<String>,
    /// Its line in the page, from 1.
    pub line: usize,
    /// The rooms that it may use, by their place in the table, one list for each name in the cell; `None` for
    /// all rooms.
    pub may_use: Option<Vec<Vec<usize>>>,
}

impl Room {
    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.paths[0]
    }

    /// Whether it may use the room at `place`.
    pub fn may_use(&self, place: usize) -> bool {
        self.may_use.as_ref().is_none_or(|lists| lists.iter().flatten().any(|allowed| *allowed == place))
    }
}

/// Reads the table out of `page`.
///
/// # Errors
/// Sentences with the line, each about a row that cannot be read, names what is not there, or is on a circle.
pub fn read(page: &str) -> Result<Vec<Room>, Vec<String>> {
    let rows: Vec<(usize, Vec<&str>)> = page
        .lines()
        .enumerate()
        .skip_while(|(_, line)| line.trim() != HEADER)
        .skip(2)
        .take_while(|(_, line)| line.starts_with('|'))
        .map(|(number, line)| (number + 1, line.trim_matches('|').split('|').map(str::trim).collect()))
        .collect();
    if rows.is_empty() {
        return Err(vec![format!("ARCHITECTURE.md: the table that begins with `{HEADER}` is missing")]);
    }
    let mut broken = Vec::new();
    let mut rooms: Vec<Room> = rows
        .iter()
        .map(|(line, cells)| Room {
            paths: quoted(cells[0]).iter().map(|path| (*path).to_owned()).collect(),
            line: *line,
            may_use: Some(Vec::new()),
        })
        .collect();
    for room in rooms.iter().filter(|room| room.paths.is_empty()) {
        broken.push(format!("ARCHITECTURE.md:{}: the first cell names no folder in backticks", room.line));
    }
    if !broken.is_empty() {
        return Err(broken);
    }
    for (place, (line, cells)) in rows.iter().enumerate() {
        match allowed(&rooms, place, cells.get(2).unwrap_or(&"")) {
            Ok(may_use) => rooms[place].may_use = may_use,
            Err(reason) => broken.push(format!("ARCHITECTURE.md:{line}: {reason}")),
        }
    }
    if let Some(circle) = circle(&rooms) {
        let names: Vec<&str> = circle.iter().map(|place| rooms[*place].name()).collect();
        broken.push(format!("ARCHITECTURE.md: the map allows a circle: {}", names.join(" → ")));
    }
    if broken.is_empty() { Ok(rooms) } else { Err(broken) }
}

/// The words in backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// What the third cell of the row at `place` allows.
fn allowed(rooms: &[Room], place: usize, cell: &str) -> Result<Option<Vec<Vec<usize>>>, String> {
    match cell {
        "nothing" => return Ok(Some(Vec::new())),
        "everything" => return Ok(None),
        _ => {}
    }
    let between: String = cell.split('`').step_by(2).collect();
    if !between.chars().all(|c| c == ',' || c == ' ') || !cell.contains('`') {
        return Err(format!(
            "`may use` holds rooms in backticks with commas between them, or `nothing`, or `everything`, not: {cell}"
        ));
    }
    let mut may_use = Vec::new();
    for name in quoted(cell) {
        let found = named(rooms, name);
        if found.is_empty() {
            return Err(format!("there is no room `{name}`; the first cells of the table name them"));
        }
        if found.len() > 1 && !below(rooms, &found, name) {
            let names: Vec<&str> = found.iter().map(|place| rooms[*place].name()).collect();
            return Err(format!("`{name}` may mean {}; name more of its path", names.join(" or ")));
        }
        may_use.push(found.into_iter().filter(|found| *found != place).collect());
    }
    Ok(Some(may_use))
}

/// The rooms that `name` means: those with the end of a path by that name, or all below a folder.
fn named(rooms: &[Room], name: &str) -> Vec<usize> {
    let ends = |path: &str| {
        let path = path.trim_end_matches(".rs");
        path == name || path.strip_suffix(name).is_some_and(|rest| rest.ends_with('/'))
    };
    let folder = format!("{name}/");
    let pick = |fits: &dyn Fn(&Room) -> bool| -> Vec<usize> {
        rooms.iter().enumerate().filter(|(_, room)| fits(room)).map(|(place, _)| place).collect()
    };
    let exact = pick(&|room| room.paths.iter().any(|path| ends(path)));
    if exact.is_empty() {
        pick(&|room| room.paths.iter().all(|path| path.starts_with(&folder)))
    } else {
        exact
    }
}

/// Whether all of `found` lie below the folder `name`.
fn below(rooms: &[Room], found: &[usize], name: &str) -> bool {
    found.iter().all(|place| rooms[*place].paths.iter().all(|path| path.starts_with(&format!("{name}/"))))
}

/// A circle of what rooms may use, if there is one.
fn circle(rooms: &[Room]) -> Option<Vec<usize>> {
    let edges: BTreeMap<usize, BTreeSet<usize>> = rooms
        .iter()
        .enumerate()
        .map(|(i, room)| (i, room.may_use.iter().flatten().flatten().copied().collect()))
        .collect();
    find_circle(&edges)
}

/// The first circle in a graph, as its nodes in order with the first one again at the end.
pub fn find_circle<N: Ord + Clone>(edges: &BTreeMap<N, BTreeSet<N>>) -> Option<Vec<N>> {
    fn visit<N: Ord + Clone>(
        node: &N,
        edges: &BTreeMap<N, BTreeSet<N>>,
        way: &mut Vec<N>,
        done: &mut BTreeSet<N>,
    ) -> Option<Vec<N>> {
        if let Some(begin) = way.iter().position(|seen| seen == node) {
            return Some([&way[begin..], std::slice::from_ref(node)].concat());
        }
        if !done.insert(node.clone()) {
            return None;
        }
        way.push(node.clone());
        let found = edges.get(node).into_iter().flatten().find_map(|next| visit(next, edges, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    edges.keys().find_map(|node| visit(node, edges, &mut Vec::new(), &mut done))
}

/// The room that holds `file`: the one with the longest path that is the file or a folder around it.
pub fn room_of(rooms: &[Room], file: &str) -> Option<usize> {
    let holds =
        |path: &str| file == path || file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    rooms
        .iter()
        .enumerate()
        .flat_map(|(place, room)| room.paths.iter().map(move |path| (place, path)))
        .filter(|(_, path)| holds(path))
        .max_by_key(|(_, path)| path.len())
        .map(|(place, _)| place)
}
