//! Rows of a Parquet file as JSON objects.

use std::collections::BTreeMap;

use super::ParquetError;
use super::pages::{Cell, Column, Scalar};
use super::schema::{Node, Shape};

/// Columns of a row group, by their index in it.
pub struct Rows<'a> {
    columns: BTreeMap<usize, Column<'a>>,
    bytes_max: u64,
}

impl<'a> Rows<'a> {
    /// Creates the reader of these columns, whose rows have at most `bytes_max` bytes.
    pub fn new(columns: BTreeMap<usize, Column<'a>>, bytes_max: u64) -> Self {
        Self { columns, bytes_max }
    }

    /// Appends the next row to `out`: an object with the value of each node under the name next to it.
    pub fn row(&mut self, nodes: &[(&Node, &str)], out: &mut String) -> Result<(), ParquetError> {
        if self.columns.values().any(|column| column.peek().is_some_and(|cell| cell.rep != 0)) {
            return Err(ParquetError::Damaged("its columns have rows of different lengths"));
        }
        out.push('{');
        for (at, (node, name)) in nodes.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            string(name, out)?;
            out.push(':');
            self.value(node, out)?;
        }
        out.push('}');
        Ok(())
    }

    /// Returns the next value of the first leaf of `node`.
    fn first(&self, node: &Node) -> Option<&Cell> {
        self.columns.get(&node.first_leaf()?.column)?.peek()
    }

    /// Removes a value from each leaf of `node`. It stands for a null or an empty list.
    fn skip(&mut self, node: &Node) -> Result<(), ParquetError> {
        let mut leaves = Vec::new();
        node.leaves(&mut |leaf| leaves.push(leaf.column));
        leaves.into_iter().try_for_each(|leaf| self.take(leaf).map(|_| ()))
    }

    fn take(&mut self, column: usize) -> Result<Cell, ParquetError> {
        self.columns.get_mut(&column).ok_or(ParquetError::Damaged("it lacks a column"))?.take()
    }

    fn value(&mut self, node: &Node, out: &mut String) -> Result<(), ParquetError> {
        if out.len() as u64 > self.bytes_max {
            return Err(ParquetError::Long { bytes_max: self.bytes_max });
        }
        let def = self.first(node).ok_or(ParquetError::Damaged("a column ends before the others"))?.def;
        if def < node.def {
            out.push_str("null");
            return self.skip(node);
        }
        match &node.shape {
            Shape::Leaf(leaf) => match self.take(leaf.column)?.value {
                Scalar::Text(text) => string(&text, out)?,
                Scalar::Bool(value) => out.push_str(if value { "true" } else { "false" }),
                Scalar::Int(value) => out.push_str(&value.to_string()),
                Scalar::Float(value) => out.push_str(&serde_json::Value::from(value).to_string()),
                Scalar::Null => out.push_str("null"),
            },
            Shape::Struct(nodes) => {
                out.push('{');
                for (at, node) in nodes.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    string(&node.name, out)?;
                    out.push(':');
                    self.value(node, out)?;
                }
                out.push('}');
            }
            Shape::List(inner, def, rep) => {
                out.push('[');
                self.elements(inner, [*def, *rep], &mut |rows, out| rows.value(inner, out), out)?;
                out.push(']');
            }
            Shape::Map(inner, def, rep) => {
                out.push('{');
                self.elements(inner, [*def, *rep], &mut |rows, out| rows.entry(inner, out), out)?;
                out.push('}');
            }
        }
        Ok(())
    }

    /// Appends the elements of a list by `write`, with commas between them. The levels are those of its elements.
    fn elements(
        &mut self,
        inner: &Node,
        [def, rep]: [u32; 2],
        write: &mut dyn FnMut(&mut Self, &mut String) -> Result<(), ParquetError>,
        out: &mut String,
    ) -> Result<(), ParquetError> {
        if self.first(inner).is_some_and(|cell| cell.def < def) {
            return self.skip(inner);
        }
        loop {
            write(self, out)?;
            // The next value belongs to this list if its repetition level does.
            if self.first(inner).is_none_or(|cell| cell.rep != rep) {
                return Ok(());
            }
            out.push(',');
        }
    }

    /// Appends an entry of a map.
    fn entry(&mut self, node: &Node, out: &mut String) -> Result<(), ParquetError> {
        match &node.shape {
            Shape::Struct(pair) if pair.len() == 2 && pair[0].is_text() => {
                self.value(&pair[0], out)?;
                out.push(':');
                self.value(&pair[1], out)
            }
            _ => Err(ParquetError::Unsupported("a map has keys that are not texts".into())),
        }
    }
}

fn string(text: &str, out: &mut String) -> Result<(), ParquetError> {
    let quoted =
        serde_json::to_string(text).map_err(|_| ParquetError::Damaged("a text cannot be written"))?;
    out.push_str(&quoted);
    Ok(())
}
