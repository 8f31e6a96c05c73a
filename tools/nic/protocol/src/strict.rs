// SPDX-License-Identifier: GPL-2.0 OR MIT

//! JSON in which no object may have a field twice. Without this check the parser would silently use
//! the last one.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// A JSON value without duplicate fields.
pub(crate) struct Strict(pub(crate) Value);

struct Seen;

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Seen)
    }
}

impl<'de> Visitor<'de> for Seen {
    type Value = Strict;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Strict, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(value)) = from.next_element()? {
            list.push(value);
        }
        Ok(Strict(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Strict, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            let Strict(value) = from.next_value()?;
            if fields.contains_key(&key) {
                return Err(de::Error::custom(format_args!("{key}: is there twice")));
            }
            fields.insert(key, value);
        }
        Ok(Strict(fields.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json_without_duplicate_fields() {
        let text = r#"{"a":[1,-2,3.5,null,true,"\u00e4"],"b":{"a":{}},"c":18446744073709551615}"#;
        let Strict(value) = serde_json::from_str(text).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        let twice = serde_json::from_str::<Strict>("{\"a\":\n{\"b\":1,\n\"b\":1}}");
        let told = twice.map(|strict| strict.0).unwrap_err().to_string();
        assert!(told.starts_with("b: is there twice at line 3"), "{told}");
        let deep = "[".repeat(100_000);
        assert!(serde_json::from_str::<Strict>(&deep).is_err());
    }
}
