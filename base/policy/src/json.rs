//! The JSON values of a policy document. A name that occurs twice in an object is an error, because two programs could
//! read such a document differently.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Json>),
    /// Names are unique and in the same order as in the document.
    Object(Vec<(String, Json)>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// Builds a JSON value from the parser's calls, and rejects objects with duplicate members.
struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        serde_json::Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("not a number"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        while let Some(name) = object.next_key::<String>()? {
            if members.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format!("{DUPLICATE}{name}")));
            }
            members.push((name, object.next_value()?));
        }
        Ok(Json::Object(members))
    }
}

/// The prefix of the error for a name that occurs twice.
const DUPLICATE: &str = "duplicate name ";

/// Parses a document. Errors: the duplicate name, if a duplicate is the cause, and a message that contains the
/// position.
pub(crate) fn parse(document: &[u8]) -> Result<Json, (Option<String>, String)> {
    serde_json::from_slice(document).map_err(|error| {
        let text = error.to_string();
        let name = text.strip_prefix(DUPLICATE).and_then(|rest| rest.rsplit_once(" at line "));
        (name.map(|(name, _)| name.to_owned()), text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_occurs_once() {
        let (name, text) = parse(b"{\"a\": {\"b\": 1, \"b\": 2}}").unwrap_err();
        assert_eq!(name.as_deref(), Some("b"));
        assert!(text.contains("line 1"), "{text}");
        assert!(parse(b"{\"a\": 1} x").is_err());
        assert!(parse("[".repeat(10_000).as_bytes()).is_err());
    }
}
