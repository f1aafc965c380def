//! Converts S3's XML documents to the JSON form of aws-cli, and back. One table, [`LISTS`], describes the lists of all
//! kinds of documents.

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::s3_xml::XmlElement;
use serde_json::{Map, Value};

/// Elements that may occur several times. Each entry contains the parent's name, the element's name, and the name of
/// the list in JSON.
const LISTS: [(&str, &str, &str); 15] = [
    ("CORSConfiguration", "CORSRule", "CORSRules"),
    ("CORSRule", "AllowedHeader", "AllowedHeaders"),
    ("CORSRule", "AllowedMethod", "AllowedMethods"),
    ("CORSRule", "AllowedOrigin", "AllowedOrigins"),
    ("CORSRule", "ExposeHeader", "ExposeHeaders"),
    ("LifecycleConfiguration", "Rule", "Rules"),
    ("Rule", "Transition", "Transitions"),
    ("Rule", "NoncurrentVersionTransition", "NoncurrentVersionTransitions"),
    ("And", "Tag", "Tags"),
    ("OwnershipControls", "Rule", "Rules"),
    ("NotificationConfiguration", "QueueConfiguration", "QueueConfigurations"),
    ("NotificationConfiguration", "TopicConfiguration", "TopicConfigurations"),
    ("QueueConfiguration", "Event", "Events"),
    ("TopicConfiguration", "Event", "Events"),
    ("S3Key", "FilterRule", "FilterRules"),
];

/// Elements that have another name in JSON: the parent, the element, and the name in JSON.
const RENAMED: [(&str, &str, &str); 3] = [
    ("QueueConfiguration", "Queue", "QueueArn"),
    ("TopicConfiguration", "Topic", "TopicArn"),
    ("Filter", "S3Key", "Key"),
];

/// The name of the element that is itself a list in JSON, and the name of its child elements.
const LIST: (&str, &str) = ("TagSet", "Tag");

/// The name of an element that becomes a JSON object even if the element is empty.
const FILTER: &str = "Filter";

const NUMBERS: [&str; 8] = [
    "Days",
    "DaysAfterInitiation",
    "MaxAgeSeconds",
    "NewerNoncurrentVersions",
    "NoncurrentDays",
    "ObjectSizeGreaterThan",
    "ObjectSizeLessThan",
    "Years",
];

const FLAGS: [&str; 5] = [
    "BlockPublicAcls",
    "BlockPublicPolicy",
    "ExpiredObjectDeleteMarker",
    "IgnorePublicAcls",
    "RestrictPublicBuckets",
];

/// Returns the content of an element as an object.
pub(super) fn object(element: &XmlElement) -> Value {
    let mut members = Map::new();
    for child in &element.children {
        let list = LISTS.iter().find(|(parent, name, _)| (*parent, *name) == (&*element.name, &*child.name));
        match list {
            Some((_, _, list)) => {
                let list = members.entry(*list).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut().into_iter().for_each(|list| list.push(value(child)));
            }
            None => insert(&mut members, &element.name, child),
        }
    }
    Value::Object(members)
}

/// Adds an element that is not in [`LISTS`]. If the element occurs several times anyway, its values become a list.
fn insert(members: &mut Map<String, Value>, parent: &str, child: &XmlElement) {
    let new = value(child);
    let renamed = RENAMED.iter().find(|(of, name, _)| (*of, *name) == (parent, &*child.name));
    let name = renamed.map_or(&*child.name, |(_, _, name)| name);
    match members.get_mut(name) {
        None => drop(members.insert(name.to_owned(), new)),
        Some(Value::Array(known)) => known.push(new),
        Some(known) => *known = Value::Array(vec![known.take(), new]),
    }
}

fn value(element: &XmlElement) -> Value {
    let name = &*element.name;
    if name == LIST.0 {
        return Value::Array(element.children.iter().map(object).collect());
    }
    if !element.children.is_empty() || name == FILTER {
        return object(element);
    }
    let text = element.text.trim();
    let number = NUMBERS.contains(&name).then(|| text.parse::<i64>().ok().map(Value::from)).flatten();
    let flag = FLAGS.contains(&name).then(|| text.parse::<bool>().ok().map(Value::from)).flatten();
    number.or(flag).unwrap_or_else(|| Value::from(element.text.as_str()))
}

/// Returns the element `name` with the content `value`. Errors: `InvalidArgument` for a key that cannot be the name of
/// an element, and for the value `null`.
pub(super) fn element(name: &str, value: &Value) -> Result<XmlElement> {
    let is_of_names = |byte: u8| byte.is_ascii_alphanumeric();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.bytes().all(is_of_names) {
        return Err(wrong(format!("{name:?} is not a name in S3's documents; correct the JSON")));
    }
    let mut element = XmlElement::new(name);
    match value {
        Value::Null => return Err(wrong(format!("the value of {name:?} is null; remove it or set a value"))),
        Value::Bool(flag) => element.text = flag.to_string(),
        Value::Number(number) => element.text = number.to_string(),
        Value::String(text) => element.text.clone_from(text),
        Value::Array(items) => element.children = all(LIST.1, items)?,
        Value::Object(members) => {
            for (key, value) in members {
                element.children.extend(children(name, key, value)?);
            }
        }
    }
    Ok(element)
}

/// Returns the XML elements for a member of a JSON object.
fn children(parent: &str, key: &str, value: &Value) -> Result<Vec<XmlElement>> {
    let list = LISTS.iter().find(|(of, _, list)| (*of, *list) == (parent, key));
    match (list, value) {
        (Some((_, name, _)), Value::Array(items)) => all(name, items),
        (Some(_), _) => Err(wrong(format!("the value of {key:?} must be a list; write it in brackets"))),
        (None, Value::Array(items)) if key != LIST.0 => all(key, items),
        (None, value) => {
            let renamed = RENAMED.iter().find(|(of, _, name)| (*of, *name) == (parent, key));
            Ok(vec![element(renamed.map_or(key, |(_, name, _)| name), value)?])
        }
    }
}

fn all(name: &str, items: &[Value]) -> Result<Vec<XmlElement>> {
    items.iter().map(|item| element(name, item)).collect()
}

fn wrong(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks that the document has this form in JSON, and that the conversion back to XML returns the same document.
    fn check(document: &str, expected: Value) {
        let root = XmlElement::read(document.as_bytes()).unwrap();
        assert_eq!(object(&root), expected);
        assert_eq!(object(&element(&root.name, &expected).unwrap()), expected);
    }

    /// The expected values are the output of `aws s3api get-...`.
    #[test]
    fn documents_have_the_form_of_aws_cli() {
        check(
            "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod>
             <AllowedOrigin>*</AllowedOrigin><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule></CORSConfiguration>",
            json!({"CORSRules": [
                {"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["*"], "MaxAgeSeconds": 60}]}),
        );
        check(
            "<LifecycleConfiguration><Rule><ID>7</ID><Filter/><Status>Enabled</Status><Expiration>
             <ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration></Rule><Rule><Filter><And>
             <Prefix></Prefix><Tag><Key>a</Key><Value>1</Value></Tag></And></Filter></Rule></LifecycleConfiguration>",
            json!({"Rules": [
                {"ID": "7", "Filter": {}, "Status": "Enabled", "Expiration": {"ExpiredObjectDeleteMarker": true}},
                {"Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "1"}]}}}]}),
        );
        check(
            "<Tagging><TagSet><Tag><Key>Days</Key><Value> 1 </Value></Tag></TagSet></Tagging>",
            json!({"TagSet": [{"Key": "Days", "Value": " 1 "}]}),
        );
        check("<Tagging><TagSet/></Tagging>", json!({"TagSet": []}));
        check(
            "<NotificationConfiguration><QueueConfiguration><Id>q</Id><Queue>arn</Queue><Event>s3:ObjectCreated:*</Event>
             <Filter><S3Key><FilterRule><Name>Prefix</Name><Value>in/</Value></FilterRule></S3Key></Filter>
             </QueueConfiguration></NotificationConfiguration>",
            json!({"QueueConfigurations": [{"Id": "q", "QueueArn": "arn", "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "Prefix", "Value": "in/"}]}}}]}),
        );
        check(
            "<ObjectLockConfiguration><Rule><DefaultRetention><Days>5</Days></DefaultRetention></Rule>
             </ObjectLockConfiguration>",
            json!({"Rule": {"DefaultRetention": {"Days": 5}}}),
        );
    }

    #[test]
    fn unknown_elements_are_kept() {
        check(
            "<A><B>1</B><C><D>x</D></C><B>2</B><B>3</B></A>",
            json!({"B": ["1", "2", "3"], "C": {"D": "x"}}),
        );
    }

    #[test]
    fn wrong_json_is_refused() {
        for wrong in [json!({"a b": 1}), json!({"x><y": 1}), json!({"": 1}), json!({"a": null})] {
            assert_eq!(element("Root", &wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
        assert!(element("CORSConfiguration", &json!({"CORSRules": {}})).is_err());
    }
}
