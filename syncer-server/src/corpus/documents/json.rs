//! JSON whose objects keep the order of their keys, as in Python: templates write keys in that order.

use std::fmt;
use std::ops::Index;

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::Number;

/// A JSON object.
pub type Map = IndexMap<String, Value>;

/// A JSON value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// 64-bit integer, or float.
    Number(Number),
    /// String.
    String(String),
    /// Values in order.
    Array(Vec<Value>),
    /// Values by key.
    Object(Map),
}

impl Value {
    /// Returns the value at `key` of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    /// Returns the text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the items of an array.
    pub fn as_array(&self) -> Option<&Vec<Self>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the values of an object.
    pub fn as_object(&self) -> Option<&Map> {
        match self {
            Self::Object(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the values of an object, for changes.
    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        match self {
            Self::Object(map) => Some(map),
            _ => None,
        }
    }

    /// Returns true if the value is null.
    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    /// Returns true if the value is a string.
    pub fn is_string(&self) -> bool {
        self.as_str().is_some()
    }
}

/// A missing value is null.
impl Index<&str> for Value {
    type Output = Self;

    fn index(&self, key: &str) -> &Self {
        self.get(key).unwrap_or(&Self::Null)
    }
}

/// A missing item is null.
impl Index<usize> for Value {
    type Output = Self;

    fn index(&self, at: usize) -> &Self {
        self.as_array().and_then(|items| items.get(at)).unwrap_or(&Self::Null)
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, text: &&str) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<str> for Value {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == Some(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<&Value> for minijinja::Value {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::from(()),
            Value::Bool(value) => Self::from(*value),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Self::from(number),
                (None, Some(number)) => Self::from(number),
                (None, None) => Self::from(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Self::from(text.as_str()),
            Value::Array(items) => items.iter().map(Self::from).collect(),
            Value::Object(map) => {
                Self::from_pairs(map.iter().map(|(key, value)| (key.as_str(), Self::from(value))))
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => value.serialize(serializer),
            Self::Number(number) => number.serialize(serializer),
            Self::String(text) => text.serialize(serializer),
            Self::Array(items) => items.serialize(serializer),
            Self::Object(map) => serializer.collect_map(map),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, value)) = entries.next_entry()? {
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_in_their_order() {
        let text = r#"{"b":[null,true,-1,18446744073709551615,1.5,"é"],"a":{"z":1,"y":2},"b2":{}}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value.to_string(), text);
        assert_eq!((value["b"][1].clone(), value["none"][3].is_null()), (Value::Bool(true), true));
        assert!(value["b"][5] == "é");
        // As in Python, a repeated key has its last value, at the position of the first.
        let twice: Value = serde_json::from_str(r#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(twice.to_string(), r#"{"a":3,"b":2}"#);
    }
}
