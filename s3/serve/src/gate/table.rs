//! The table of S3 operations, parsed once from the file `operations.txt` next to this module.

use std::sync::LazyLock;

/// The kind of resource that a request's path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathResource {
    Service,
    Bucket,
    Object,
}

/// An operation, with all parameters, headers and elements that a request for it may have.
#[derive(Debug)]
pub(crate) struct OperationRule {
    pub(crate) name: &'static str,
    pub(super) method: &'static str,
    pub(super) resource: PathResource,
    pub(crate) is_offered: bool,
    /// Parameters that distinguish the operation from others. If the second element is `Some`, the parameter must have
    /// this value.
    pub(super) selecting_parameters: Vec<(&'static str, Option<&'static str>)>,
    pub(super) selecting_headers: Vec<&'static str>,
    parameters: Vec<ParameterRule>,
    headers: Vec<ParameterRule>,
    /// Paths of the elements that the operation's document may have; empty if the operation has no document.
    pub(super) elements: Vec<&'static str>,
}

/// A parameter or header that may be sent, and the values it may have.
#[derive(Clone, Debug)]
struct ParameterRule {
    /// The name, or (if `is_prefix`) the common prefix of several names, without the asterisk.
    name: &'static str,
    is_prefix: bool,
    permits: PermittedValues,
}

/// The values that a parameter or a header may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PermittedValues {
    Anything,
    Values(Vec<&'static str>),
    Nothing,
}

impl PermittedValues {
    pub(super) fn is_met_by(&self, value: &str) -> bool {
        match self {
            PermittedValues::Anything => true,
            PermittedValues::Values(known) => known.contains(&value),
            PermittedValues::Nothing => false,
        }
    }
}

impl OperationRule {
    /// Returns the values that the operation's parameter `name` may have; `None` if the operation has no such
    /// parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&PermittedValues> {
        let is_selecting = self.selecting_parameters.iter().any(|(known, _)| *known == name);
        if is_selecting { Some(&PermittedValues::Anything) } else { find(&self.parameters, name) }
    }

    /// Returns the values that the operation's header `name`, in lower case, may have; `None` if the operation has no
    /// such header.
    pub(super) fn header(&self, name: &str) -> Option<&PermittedValues> {
        let is_selecting = self.selecting_headers.contains(&name);
        if is_selecting { Some(&PermittedValues::Anything) } else { find(&self.headers, name) }
    }

    /// Returns whether the operation's document may have an element at this path.
    pub(super) fn has_element(&self, path: &str) -> bool {
        self.elements.contains(&path)
    }

    /// Returns whether checksums in the request's head apply to the object, not to the document in the body.
    pub(crate) fn is_completion(&self) -> bool {
        self.name == "CompleteMultipartUpload"
    }

    /// Returns whether the body is an HTML form.
    pub(crate) fn is_form(&self) -> bool {
        self.name == "PostObject"
    }

    /// Returns whether the body is the content of an object or of a part.
    pub(crate) fn is_upload(&self) -> bool {
        ["PutObject", "UploadPart"].contains(&self.name)
    }

    /// Returns all supported operations.
    #[cfg(test)]
    pub(crate) fn offered() -> impl Iterator<Item = &'static OperationRule> {
        TABLE.operations.iter().filter(|operation| operation.is_offered)
    }

    /// Returns the number of parameters and headers that must be present to select the operation.
    fn selectors(&self) -> usize {
        self.selecting_parameters.len() + self.selecting_headers.len()
    }
}

fn find<'w>(words: &'w [ParameterRule], name: &str) -> Option<&'w PermittedValues> {
    let is =
        |word: &&ParameterRule| if word.is_prefix { name.starts_with(word.name) } else { name == word.name };
    words.iter().find(is).map(|word| &word.permits)
}

/// All operations, and the parameters and headers that are harmless in every operation.
pub(super) struct OperationTable {
    /// The operations, sorted by resource and method, then by the number of selectors in descending order.
    operations: Vec<OperationRule>,
    harmless_parameters: Vec<ParameterRule>,
    harmless_headers: Vec<ParameterRule>,
    /// The fields that a form may have, named after the corresponding headers.
    form_fields: Vec<ParameterRule>,
}

/// The table of this gateway.
pub(super) static TABLE: LazyLock<OperationTable> =
    LazyLock::new(|| OperationTable::read(include_str!("operations.txt")));

impl OperationTable {
    /// Returns the operation with this name.
    pub(super) fn named(&self, name: &str) -> Option<&OperationRule> {
        self.operations.iter().find(|operation| operation.name == name)
    }

    /// Returns the operations on a resource with the given method.
    pub(super) fn of(&self, resource: PathResource, method: &str) -> &[OperationRule] {
        let start =
            self.operations.partition_point(|known| (known.resource, known.method) < (resource, method));
        let rest = &self.operations[start..];
        &rest[..rest.partition_point(|known| (known.resource, known.method) == (resource, method))]
    }

    pub(super) fn is_harmless_parameter(&self, name: &str) -> bool {
        find(&self.harmless_parameters, name).is_some()
    }

    pub(super) fn is_harmless_header(&self, name: &str) -> bool {
        find(&self.harmless_headers, name).is_some()
    }

    /// Returns the operation whose body is a form.
    pub(super) fn form(&self) -> &OperationRule {
        self.operations.iter().find(|operation| operation.is_form()).expect("the table has the operation")
    }

    /// Returns the values that the form field for the header `name` may have; `None` if there is no such field.
    pub(super) fn form_field(&self, name: &str) -> Option<&PermittedValues> {
        find(&self.form_fields, name)
    }

    /// Parses the table's text, which is compiled into the program. Panics if the text is invalid.
    fn read(text: &'static str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let (groups, rows): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with('@'));
        let groups: Vec<_> = groups.iter().map(|line| line.split_once(' ').expect("a group")).collect();
        let words = |text: &'static str| {
            let mut words = Vec::new();
            read_words(text, &groups, &mut words);
            words
        };
        let mut operations: Vec<_> = rows.iter().map(|row| read_operation(row, &words)).collect();
        operations.sort_by_key(|operation| {
            (operation.resource, operation.method, std::cmp::Reverse(operation.selectors()))
        });
        OperationTable {
            operations,
            harmless_parameters: words("@harmless-parameters"),
            harmless_headers: words("@harmless-headers"),
            form_fields: words("@form-fields"),
        }
    }
}

fn read_operation(row: &'static str, words: &impl Fn(&'static str) -> Vec<ParameterRule>) -> OperationRule {
    let mut columns = row.split('|');
    let (what, parameters, headers) = (columns.next(), columns.next(), columns.next());
    let elements = columns.next().unwrap_or_default();
    let mut what = what.expect("an operation").split_ascii_whitespace();
    let mut next = || what.next().expect("verdict, method, resource, name, selector");
    let is_offered = match next() {
        "done" => true,
        "refused" => false,
        other => panic!("{other} is neither done nor refused"),
    };
    let method = next();
    let resource = match next() {
        "service" => PathResource::Service,
        "bucket" => PathResource::Bucket,
        "object" => PathResource::Object,
        other => panic!("{other} is not a resource"),
    };
    let (name, selector) = (next(), next());
    let (parameters_named, headers_named) = read_selector(selector);
    OperationRule {
        name,
        method,
        resource,
        is_offered,
        selecting_parameters: parameters_named,
        selecting_headers: headers_named,
        parameters: words(parameters.unwrap_or_default()),
        headers: words(headers.unwrap_or_default()),
        elements: elements.split_ascii_whitespace().collect(),
    }
}

type OperationSelector = (Vec<(&'static str, Option<&'static str>)>, Vec<&'static str>);

/// Parses `?name?name=value!header`; a hyphen means no selector.
fn read_selector(text: &'static str) -> OperationSelector {
    let (mut parameters, mut headers) = (Vec::new(), Vec::new());
    for word in text.split_inclusive(['?', '!']).collect::<Vec<_>>().windows(2) {
        let name = word[1].trim_end_matches(['?', '!']);
        match word[0].ends_with('!') {
            true => headers.push(name),
            false => parameters.push(match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (name, None),
            }),
        }
    }
    (parameters, headers)
}

fn read_words(text: &'static str, groups: &[(&'static str, &'static str)], words: &mut Vec<ParameterRule>) {
    for word in text.split_ascii_whitespace() {
        if word.starts_with('@') {
            let group = groups.iter().find(|(name, _)| *name == word);
            let (_, members) = group.unwrap_or_else(|| panic!("there is no group {word}"));
            read_words(members, groups, words);
            continue;
        }
        let (name, permits) = match (word.strip_prefix('-'), word.split_once('=')) {
            (Some(name), _) => (name, PermittedValues::Nothing),
            (None, Some((name, values))) => (name, PermittedValues::Values(values.split(',').collect())),
            (None, None) => (word, PermittedValues::Anything),
        };
        let start = name.strip_suffix('*');
        words.push(ParameterRule { name: start.unwrap_or(name), is_prefix: start.is_some(), permits });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static OperationRule {
        TABLE.operations.iter().find(|operation| operation.name == name).expect(name)
    }

    #[test]
    fn a_row_is_read_whole() {
        let part = named("UploadPartCopy");
        assert_eq!((part.method, part.resource, part.is_offered), ("PUT", PathResource::Object, true));
        assert_eq!(part.selecting_parameters, [("partNumber", None), ("uploadId", None)]);
        assert_eq!(part.selecting_headers, ["x-amz-copy-source"]);
        assert_eq!(named("ListObjectsV2").selecting_parameters, [("list-type", Some("2"))]);
        assert!(named("ListBuckets").selecting_parameters.is_empty());
        assert!(!named("RestoreObject").is_offered);
    }

    #[test]
    fn words_say_what_they_permit() {
        let put = named("PutObject");
        assert_eq!(put.header("x-amz-meta-colour"), Some(&PermittedValues::Anything));
        assert_eq!(put.header("x-amz-website-redirect-location"), Some(&PermittedValues::Nothing));
        assert!(put.header("x-amz-storage-class").unwrap().is_met_by("STANDARD"));
        assert!(!put.header("x-amz-storage-class").unwrap().is_met_by("GLACIER"));
        assert_eq!(put.header("x-amz-checksum-sha512"), Some(&PermittedValues::Anything));
        assert_eq!(put.header("x-amz-rename-source"), None);
        assert_eq!(named("GetObject").parameter("response-expires"), Some(&PermittedValues::Anything));
    }

    /// If two operations had the same selectors, the second operation could never be selected.
    #[test]
    fn no_two_operations_are_selected_alike() {
        for (at, one) in TABLE.operations.iter().enumerate() {
            let is_alike = |other: &&OperationRule| {
                (one.method, one.resource, &one.selecting_parameters, &one.selecting_headers)
                    == (other.method, other.resource, &other.selecting_parameters, &other.selecting_headers)
            };
            assert!(!TABLE.operations[at + 1..].iter().any(|other| is_alike(&other)), "{}", one.name);
        }
    }

    /// The user documentation must list everything that the gate ignores.
    #[test]
    fn what_is_harmless_is_documented() {
        let docs = include_str!("../../../../docs/reference/semantics.md");
        for word in TABLE.harmless_parameters.iter().chain(&TABLE.harmless_headers) {
            let star = if word.is_prefix { "*" } else { "" };
            let name = format!("`{}{star}`", word.name);
            assert!(docs.contains(&name), "docs/reference/semantics.md does not name {name}");
        }
    }
}
