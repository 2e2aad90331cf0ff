//! A table of the file that is there by default: `KEY = false` is for none, `KEY = true` for the table's own defaults.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

pub(super) fn serialize<T: Serialize, S: Serializer>(table: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match table {
        Some(table) => table.serialize(to),
        None => to.serialize_bool(false),
    }
}

pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    from.deserialize_any(TableOrBool(PhantomData))
}

struct TableOrBool<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for TableOrBool<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table, or false for none")
    }

    fn visit_bool<E>(self, there: bool) -> Result<Self::Value, E> {
        Ok(there.then(T::default))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(table)).map(Some)
    }
}
