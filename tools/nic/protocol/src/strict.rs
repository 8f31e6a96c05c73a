// SPDX-License-Identifier: GPL-2.0 OR MIT

//! JSON in which no object may have a field twice. Without this check the parser would silently use
//! the last one.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// A JSON value without duplicate fields.
pub(crate) struct StrictJson(pub(crate) Value);

struct StrictJsonVisitor;

impl<'de> Deserialize<'de> for StrictJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(StrictJsonVisitor)
    }
}

impl<'de> Visitor<'de> for StrictJsonVisitor {
    type Value = StrictJson;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<StrictJson, E> {
        Ok(StrictJson(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<StrictJson, E> {
        Ok(StrictJson(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<StrictJson, E> {
        Ok(StrictJson(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<StrictJson, E> {
        Ok(StrictJson(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<StrictJson, E> {
        Ok(StrictJson(value.into()))
    }

    fn visit_unit<E>(self) -> Result<StrictJson, E> {
        Ok(StrictJson(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<StrictJson, A::Error> {
        let mut list = Vec::new();
        while let Some(StrictJson(value)) = from.next_element()? {
            list.push(value);
        }
        Ok(StrictJson(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<StrictJson, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            let StrictJson(value) = from.next_value()?;
            if fields.contains_key(&key) {
                return Err(de::Error::custom(format_args!("{key}: is there twice")));
            }
            fields.insert(key, value);
        }
        Ok(StrictJson(fields.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json_without_duplicate_fields() {
        let text = r#"{"a":[1,-2,3.5,null,true,"\u00e4"],"b":{"a":{}},"c":18446744073709551615}"#;
        let StrictJson(value) = serde_json::from_str(text).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        let twice = serde_json::from_str::<StrictJson>("{\"a\":\n{\"b\":1,\n\"b\":1}}");
        let error = twice.map(|strict| strict.0).unwrap_err().to_string();
        assert!(error.starts_with("b: is there twice at line 3"), "{error}");
        let deep = "[".repeat(100_000);
        assert!(serde_json::from_str::<StrictJson>(&deep).is_err());
    }
}
