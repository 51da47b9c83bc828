//! Columns of a Parquet file as a tree, and the places of their data.

use super::ParquetError;
use super::thrift::Thrift;

/// Maximum nesting of columns.
const DEPTH_MAX: usize = 16;

/// Maximum number of nodes in the tree.
const NODES_MAX: usize = 1 << 16;

/// Physical type of the values in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Physical {
    /// True or false, in a bit.
    Bool,
    /// A whole number of 32 bits.
    I32,
    /// A whole number of 64 bits.
    I64,
    /// A number of 32 bits with a fraction.
    F32,
    /// A number of 64 bits with a fraction.
    F64,
    /// Text or bytes.
    Bytes,
    /// Any other: bytes of fixed length, or a time of 96 bits.
    Other,
}

/// Column without columns in it.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Index of the column in a row group.
    pub column: usize,
    /// Type of its values.
    pub physical: Physical,
    /// Definition level of a value that is not null.
    pub def_max: u32,
    /// Number of lists around a value.
    pub rep_max: u32,
}

/// Shape of a node.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Values.
    Leaf(Leaf),
    /// Named nodes.
    Struct(Vec<Node>),
    /// A list of one node, whose elements begin at this definition level and this repetition level.
    List(Box<Node>, u32, u32),
    /// Keys and values as a list of structs, with the levels of a list.
    Map(Box<Node>, u32, u32),
}

/// Node of the tree of columns.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the column.
    pub name: String,
    /// Definition level at which the node is not null; 0 if it cannot be null.
    pub def: u32,
    /// Shape of the node.
    pub shape: Shape,
}

impl Node {
    /// Returns true if each value is a text.
    pub fn is_text(&self) -> bool {
        matches!(&self.shape, Shape::Leaf(leaf) if leaf.physical == Physical::Bytes)
    }

    /// Calls `found` with each leaf.
    pub fn leaves<'a>(&'a self, found: &mut impl FnMut(&'a Leaf)) {
        match &self.shape {
            Shape::Leaf(leaf) => found(leaf),
            Shape::Struct(nodes) => nodes.iter().for_each(|node| node.leaves(found)),
            Shape::List(node, ..) | Shape::Map(node, ..) => node.leaves(found),
        }
    }

    /// Returns a leaf of this node. All leaves of a node agree on whether it is null, and on the lengths of its lists.
    pub fn first_leaf(&self) -> Option<&Leaf> {
        let mut first = None;
        self.leaves(&mut |leaf| first = first.or(Some(leaf)));
        first
    }
}

/// Element of the list in which a file describes the tree, in preorder.
struct Element<'a> {
    name: &'a str,
    physical: Option<i64>,
    repetition: i64,
    children: usize,
    /// True if the element is a list by its annotation.
    is_list: bool,
    /// True if the element has keys and values by its annotation.
    is_map: bool,
}

const REPEATED: i64 = 2;
const OPTIONAL: i64 = 1;

impl<'a> Element<'a> {
    fn read(element: &Thrift<'a>) -> Result<Self, ParquetError> {
        let children = usize::try_from(element.int(5).unwrap_or(0));
        let (converted, logical) = (element.int(6), element.field(10));
        let is_logical = |id| logical.is_some_and(|logical| logical.field(id).is_some());
        Ok(Self {
            name: element.text(4).ok_or(ParquetError::Damaged("a column has no name"))?,
            physical: element.int(1),
            repetition: element.int(3).unwrap_or(0),
            children: children.map_err(|_| ParquetError::Damaged("a column has an invalid size"))?,
            is_list: converted == Some(3) || is_logical(3),
            is_map: matches!(converted, Some(1 | 2)) || is_logical(2),
        })
    }
}

/// Reader of the tree.
struct Tree<'a> {
    elements: Vec<Element<'a>>,
    at: usize,
    column: usize,
}

/// Returns the columns of a file, from the `schema` in its description.
pub fn columns(schema: &[Thrift<'_>]) -> Result<Vec<Node>, ParquetError> {
    if schema.len() > NODES_MAX {
        return Err(ParquetError::Damaged("it has too many columns"));
    }
    let elements = schema.iter().map(Element::read).collect::<Result<Vec<_>, _>>()?;
    let count = elements.first().ok_or(ParquetError::Damaged("it has no columns"))?.children;
    let mut tree = Tree { elements, at: 1, column: 0 };
    tree.children(count, 0, 0, 0)
}

impl Tree<'_> {
    /// Reads `count` nodes below the given levels.
    fn children(
        &mut self,
        count: usize,
        def: u32,
        rep: u32,
        depth: usize,
    ) -> Result<Vec<Node>, ParquetError> {
        if depth > DEPTH_MAX {
            return Err(ParquetError::Damaged("its columns are nested too deeply"));
        }
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(self.node(def, rep, depth)?);
        }
        Ok(nodes)
    }

    fn next(&mut self) -> Result<usize, ParquetError> {
        let at = self.at;
        self.at += 1;
        (at < self.elements.len()).then_some(at).ok_or(ParquetError::Damaged("it lacks columns"))
    }

    /// Reads the next node. A repeated node is a list of itself.
    fn node(&mut self, def: u32, rep: u32, depth: usize) -> Result<Node, ParquetError> {
        let at = self.next()?;
        let element = &self.elements[at];
        let (name, repetition) = (element.name.to_owned(), element.repetition);
        let level = def + u32::from(repetition != 0);
        if repetition == REPEATED {
            let inner = Node { name: name.clone(), def: 0, shape: self.shape(at, level, rep + 1, depth)? };
            return Ok(Node { name, def: 0, shape: Shape::List(Box::new(inner), level, rep + 1) });
        }
        let own = if repetition == OPTIONAL { level } else { 0 };
        Ok(Node { name, def: own, shape: self.shape(at, level, rep, depth)? })
    }

    /// Reads the shape of the element at `at`, whose values begin at these levels.
    fn shape(&mut self, at: usize, def: u32, rep: u32, depth: usize) -> Result<Shape, ParquetError> {
        let Element { physical, children, is_list, is_map, .. } = self.elements[at];
        if children == 0 {
            let physical = match physical {
                Some(0) => Physical::Bool,
                Some(1) => Physical::I32,
                Some(2) => Physical::I64,
                Some(4) => Physical::F32,
                Some(5) => Physical::F64,
                Some(6) => Physical::Bytes,
                _ => Physical::Other,
            };
            self.column += 1;
            return Ok(Shape::Leaf(Leaf { column: self.column - 1, physical, def_max: def, rep_max: rep }));
        }
        let mut nodes = self.children(children, def, rep, depth + 1)?;
        let is_single = matches!(&nodes[..], [Node { shape: Shape::List(..), .. }]);
        if !is_single || !(is_list || is_map) {
            return Ok(Shape::Struct(nodes));
        }
        match nodes.pop().map(|node| node.shape) {
            Some(Shape::List(inner, def, rep)) if is_map => Ok(Shape::Map(inner, def, rep)),
            Some(Shape::List(inner, def, rep)) => Ok(Shape::List(Box::new(element_of(*inner)), def, rep)),
            _ => Err(ParquetError::Damaged("a list has no elements")),
        }
    }
}

/// Returns the elements of a list, by the rules for files of all ages: a repeated struct of one column wraps the
/// elements, unless it is named like an element itself.
fn element_of(inner: Node) -> Node {
    let is_own = inner.name == "array" || inner.name.ends_with("_tuple");
    match inner.shape {
        Shape::Struct(mut nodes) if nodes.len() == 1 && !is_own => nodes.remove(0),
        shape => Node { shape, ..inner },
    }
}
