//! Notification configuration of a bucket: S3's document, and the rule that applies to an event.
//!
//! A rule names the events, a prefix and a suffix of keys, and a webhook. As on S3, no two rules apply to the same
//! event of the same key, so an event has at most one destination.

use std::collections::BTreeSet;

use crate::s3_xml::{ResponseDocumentBuilder, for_each_element};

/// The maximum number of rules of a bucket (S3's limit).
const RULES_MAX: usize = 100;
/// The maximum length of a rule's name.
const ID_BYTES_MAX: usize = 255;
/// The maximum length of a prefix or suffix (S3's limit).
const AFFIX_BYTES_MAX: usize = 1024;
/// The maximum length of a webhook's name. The length is limited because the names of journal files contain the name.
const WEBHOOK_BYTES_MAX: usize = 32;

/// The reason why a document is rejected: S3's error code, and what to correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationError {
    /// `MalformedXML`, `InvalidArgument` or `NotImplemented`.
    pub code: &'static str,
    /// The message; AWS's own message if AWS has one.
    pub message: String,
}

type Result<T> = std::result::Result<T, NotificationError>;

fn malformed(message: impl Into<String>) -> NotificationError {
    NotificationError { code: "MalformedXML", message: message.into() }
}

fn argument(message: impl Into<String>) -> NotificationError {
    NotificationError { code: "InvalidArgument", message: message.into() }
}

/// A change that a bucket can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// An object was written by a put.
    Put,
    /// An object was written by an HTML form.
    Post,
    /// An object was written by a copy, or got its key by a rename.
    Copy,
    /// An object was completed from parts.
    CompleteUpload,
    /// An object or a version was removed.
    Delete,
    /// An object was hidden by a delete marker.
    DeleteMarker,
    /// A lifecycle rule removed an object or a version.
    Expire,
    /// A lifecycle rule hid an object with a delete marker.
    ExpireMarker,
    /// The tags of an object were set.
    PutTags,
    /// The tags of an object were removed.
    DeleteTags,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [EventKind; 10] = [
        EventKind::Put,
        EventKind::Post,
        EventKind::Copy,
        EventKind::CompleteUpload,
        EventKind::Delete,
        EventKind::DeleteMarker,
        EventKind::Expire,
        EventKind::ExpireMarker,
        EventKind::PutTags,
        EventKind::DeleteTags,
    ];

    /// Returns S3's name, without the prefix `s3:` that the name has in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Put => "ObjectCreated:Put",
            EventKind::Post => "ObjectCreated:Post",
            EventKind::Copy => "ObjectCreated:Copy",
            EventKind::CompleteUpload => "ObjectCreated:CompleteMultipartUpload",
            EventKind::Delete => "ObjectRemoved:Delete",
            EventKind::DeleteMarker => "ObjectRemoved:DeleteMarkerCreated",
            EventKind::Expire => "LifecycleExpiration:Delete",
            EventKind::ExpireMarker => "LifecycleExpiration:DeleteMarkerCreated",
            EventKind::PutTags => "ObjectTagging:Put",
            EventKind::DeleteTags => "ObjectTagging:Delete",
        }
    }

    /// Returns the kind that S3 calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        EventKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether the event reports a new version of an object.
    pub const fn is_creation(self) -> bool {
        matches!(self, EventKind::Put | EventKind::Post | EventKind::Copy | EventKind::CompleteUpload)
    }
}

/// The beginnings of the names of S3 events that Fordway never reports.
const NEVER_REPORTED: [&str; 9] = [
    "s3:IntelligentTiering",
    "s3:LifecycleTransition",
    "s3:ObjectAcl:",
    "s3:ObjectAnnotation:",
    "s3:ObjectRestore:",
    "s3:ReducedRedundancyLostObject",
    "s3:Replication:",
    "s3:TestEvent",
    "s3:ObjectCreated:Restore",
];

/// Returns the kinds of events that a name in a configuration selects. Errors: `InvalidArgument` for an unknown name;
/// `NotImplemented` for S3 events that Fordway never reports.
fn kinds_of(name: &str) -> Result<Vec<EventKind>> {
    let class = name.strip_suffix('*').filter(|class| class.ends_with(':') && *class != "s3:");
    let fits = |kind: &EventKind| match (name.strip_prefix("s3:"), class) {
        (Some(_), Some(class)) => class.strip_prefix("s3:").is_some_and(|it| kind.name().starts_with(it)),
        (Some(name), None) => kind.name() == name,
        (None, _) => false,
    };
    let kinds: Vec<EventKind> = EventKind::ALL.into_iter().filter(fits).collect();
    match kinds.is_empty() {
        false => Ok(kinds),
        true if NEVER_REPORTED.iter().any(|known| name.starts_with(known)) => Err(NotificationError {
            code: "NotImplemented",
            message: format!("{name} never occurs in this store; remove it from the configuration"),
        }),
        true => Err(argument(format!("The event '{name}' is not supported for notifications"))),
    }
}

/// The AWS service (SQS or SNS) that a rule's destination imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationForm {
    /// `QueueConfiguration`
    Queue,
    /// `TopicConfiguration`
    Topic,
}

impl DestinationForm {
    const fn element(self) -> &'static str {
        match self {
            DestinationForm::Queue => "QueueConfiguration",
            DestinationForm::Topic => "TopicConfiguration",
        }
    }

    const fn arn_element(self) -> &'static str {
        match self {
            DestinationForm::Queue => "Queue",
            DestinationForm::Topic => "Topic",
        }
    }

    const fn service(self) -> &'static str {
        match self {
            DestinationForm::Queue => "sqs",
            DestinationForm::Topic => "sns",
        }
    }
}

/// Returns whether `name` can be the name of a webhook: 1 to 32 lower-case letters, digits and hyphens.
pub fn is_webhook_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=WEBHOOK_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// A notification rule of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationRule {
    /// The name of the rule.
    pub id: String,
    /// The element that contains the destination in the document.
    pub form: DestinationForm,
    /// The name of the webhook that gets the events.
    pub webhook: String,
    /// The events, as the document names them.
    pub events: Vec<String>,
    /// The prefix that keys must have.
    pub prefix: Option<String>,
    /// The suffix that keys must have.
    pub suffix: Option<String>,
    /// The kinds that `events` select.
    kinds: BTreeSet<EventKind>,
}

impl NotificationRule {
    /// Returns whether the rule applies to an event of `key`.
    pub fn applies_to(&self, kind: EventKind, key: &str) -> bool {
        self.kinds.contains(&kind)
            && key.starts_with(self.prefix.as_deref().unwrap_or_default())
            && key.ends_with(self.suffix.as_deref().unwrap_or_default())
    }

    /// Returns the ARN of the destination.
    pub fn arn(&self) -> String {
        format!("arn:fordway:{}::{}:webhook", self.form.service(), self.webhook)
    }

    /// Returns whether there is a key and an event to which both rules apply.
    fn overlaps(&self, other: &NotificationRule) -> bool {
        let text = |affix: &Option<String>| affix.clone().unwrap_or_default();
        let (one, two) = (text(&self.prefix), text(&other.prefix));
        let have_prefixes = one.starts_with(&two) || two.starts_with(&one);
        let (one, two) = (text(&self.suffix), text(&other.suffix));
        let have_suffixes = one.ends_with(&two) || two.ends_with(&one);
        have_prefixes && have_suffixes && !self.kinds.is_disjoint(&other.kinds)
    }
}

/// Returns the rule that applies to an event of `key`. If the document was checked ([`read`]), at most one rule
/// applies; otherwise, returns the first rule that applies.
pub fn rule_for<'r>(
    rules: &'r [NotificationRule],
    kind: EventKind,
    key: &str,
) -> Option<&'r NotificationRule> {
    rules.iter().find(|rule| rule.applies_to(kind, key))
}

/// The elements of a rule in a document, before they are checked.
#[derive(Default)]
struct RawNotificationRule {
    id: Option<String>,
    arn: Option<String>,
    events: Vec<String>,
    has_filter: bool,
    affix: (Option<String>, Option<String>),
    prefix: Option<String>,
    suffix: Option<String>,
}

fn set_once(slot: &mut Option<String>, path: &str, text: &str) -> Result<()> {
    match slot.replace(text.to_owned()) {
        None => Ok(()),
        Some(_) => Err(malformed(format!("{path} occurs twice; state it once"))),
    }
}

impl RawNotificationRule {
    fn take(&mut self, form: DestinationForm, path: &str, text: &str) -> Result<()> {
        match path {
            "Id" => set_once(&mut self.id, path, text.trim()),
            "Event" => {
                self.events.push(text.trim().to_owned());
                Ok(())
            }
            "Filter" => match std::mem::replace(&mut self.has_filter, true) {
                true => Err(malformed("Filter occurs twice; state it once")),
                false => Ok(()),
            },
            "Filter/S3Key/FilterRule/Name" => set_once(&mut self.affix.0, path, text.trim()),
            "Filter/S3Key/FilterRule/Value" => set_once(&mut self.affix.1, path, text),
            "Filter/S3Key/FilterRule" => self.take_affix(),
            path if path == form.arn_element() => set_once(&mut self.arn, path, text.trim()),
            _ => Ok(()),
        }
    }

    fn take_affix(&mut self) -> Result<()> {
        let (Some(name), value) = std::mem::take(&mut self.affix) else {
            return Err(malformed("a FilterRule needs a Name"));
        };
        let value = value.unwrap_or_default();
        if value.len() > AFFIX_BYTES_MAX {
            return Err(argument("filter rule values must not be longer than 1024 bytes"));
        }
        let (slot, word) = match name.to_ascii_lowercase().as_str() {
            "prefix" => (&mut self.prefix, "prefix"),
            "suffix" => (&mut self.suffix, "suffix"),
            _ => return Err(argument("filter rule name must be either prefix or suffix")),
        };
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(argument(format!("Cannot specify more than one {word} rule in a filter."))),
        }
    }

    /// Checks the elements, and returns the rule. The name of the rule is empty if the document contains no name.
    fn into_rule(self, form: DestinationForm) -> Result<NotificationRule> {
        let id = self.id.unwrap_or_default();
        if id.len() > ID_BYTES_MAX {
            return Err(argument("ID length should not exceed allowed limit of 255"));
        }
        let arn = self.arn.ok_or_else(|| malformed(format!("a rule needs a {}", form.arn_element())))?;
        if self.events.is_empty() {
            return Err(malformed("a rule needs at least one Event"));
        }
        let mut kinds = BTreeSet::new();
        for name in &self.events {
            kinds.extend(kinds_of(name)?);
        }
        let webhook = webhook_in(&arn, form)?;
        let (prefix, suffix) = (self.prefix, self.suffix);
        Ok(NotificationRule { id, form, webhook, events: self.events, prefix, suffix, kinds })
    }
}

/// Returns the webhook that an ARN names. Errors: `InvalidArgument`.
fn webhook_in(arn: &str, form: DestinationForm) -> Result<String> {
    let name = arn.strip_prefix("arn:fordway:").and_then(|rest| rest.strip_prefix(form.service()));
    let name = name.and_then(|rest| rest.strip_prefix("::")).and_then(|rest| rest.strip_suffix(":webhook"));
    match name.filter(|name| is_webhook_name(name)) {
        Some(name) => Ok(name.to_owned()),
        None => Err(argument(format!(
            "The ARN is not well formed: {arn:?}; write arn:fordway:{}::NAME:webhook",
            form.service()
        ))),
    }
}

/// Reads a document; the result has no rules if the document is empty. Errors: the first element that S3 or this store
/// does not accept.
pub fn read(document: &[u8]) -> Result<Vec<NotificationRule>> {
    let (mut rules, mut elements, mut failed) = (Vec::new(), RawNotificationRule::default(), None);
    let mut take = |path: &str, text: &str| -> Result<()> {
        for form in [DestinationForm::Queue, DestinationForm::Topic] {
            let Some(below) = path.strip_prefix(form.element()) else { continue };
            return match below.strip_prefix('/') {
                Some(below) => elements.take(form, below, text),
                None => {
                    rules.push(std::mem::take(&mut elements).into_rule(form)?);
                    Ok(())
                }
            };
        }
        match path.split('/').next().unwrap_or_default() {
            "" => Ok(()),
            name => Err(NotificationError {
                code: "NotImplemented",
                message: format!("{name} is not supported; use QueueConfiguration or TopicConfiguration"),
            }),
        }
    };
    let read = for_each_element(document, "NotificationConfiguration", |path, text| {
        if failed.is_none() {
            failed = take(path, text).err();
        }
        Ok(())
    });
    read.map_err(|error| malformed(error.detail()))?;
    failed.map_or(Ok(()), Err)?;
    check(&mut rules)?;
    Ok(rules)
}

/// Checks the number of rules, and that no two rules overlap or have the same name. Assigns a name to each unnamed
/// rule.
fn check(rules: &mut [NotificationRule]) -> Result<()> {
    if rules.len() > RULES_MAX {
        return Err(argument(format!("a bucket can have at most {RULES_MAX} notification configurations")));
    }
    let mut names = BTreeSet::new();
    for rule in rules.iter().filter(|rule| !rule.id.is_empty()) {
        if !names.insert(rule.id.clone()) {
            let words = "Same ID used for multiple configurations. IDs must be unique";
            return Err(argument(format!("{words}: {}", rule.id)));
        }
    }
    for (at, rule) in rules.iter().enumerate() {
        if let Some(other) = rules[..at].iter().find(|other| other.overlaps(rule)) {
            let words =
                "Configurations overlap. Configurations on the same bucket cannot share a common event type.";
            return Err(argument(format!("{words} : {:?} and {:?}", other.arn(), rule.arn())));
        }
    }
    for (at, rule) in rules.iter_mut().enumerate().filter(|(_, rule)| rule.id.is_empty()) {
        let mut free =
            (at + 1..).map(|number| format!("event-{number}")).filter(|name| !names.contains(name));
        rule.id = free.next().unwrap_or_default();
        names.insert(rule.id.clone());
    }
    Ok(())
}

/// Returns S3's XML document of `rules`.
pub fn write(rules: &[NotificationRule]) -> String {
    let mut document = ResponseDocumentBuilder::new("NotificationConfiguration");
    for rule in rules {
        document.open(rule.form.element()).element("Id", &rule.id);
        document.element(rule.form.arn_element(), &rule.arn());
        for event in &rule.events {
            document.element("Event", event);
        }
        write_filter(&mut document, rule);
        document.close();
    }
    document.finish()
}

fn write_filter(document: &mut ResponseDocumentBuilder, rule: &NotificationRule) {
    let affixes = [("Prefix", &rule.prefix), ("Suffix", &rule.suffix)];
    if affixes.iter().all(|(_, affix)| affix.is_none()) {
        return;
    }
    document.open("Filter").open("S3Key");
    for (name, affix) in affixes {
        if let Some(affix) = affix {
            document.open("FilterRule").element("Name", name).element("Value", affix).close();
        }
    }
    document.close().close();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(inner: &str) -> String {
        let arn = "<Queue>arn:fordway:sqs::ci:webhook</Queue>";
        format!("<QueueConfiguration>{arn}{inner}</QueueConfiguration>")
    }

    fn document(inner: &str) -> String {
        format!(
            "<NotificationConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{inner}\
             </NotificationConfiguration>"
        )
    }

    fn affix(name: &str, value: &str) -> String {
        format!("<FilterRule><Name>{name}</Name><Value>{value}</Value></FilterRule>")
    }

    fn filtered(event: &str, affixes: &[(&str, &str)]) -> String {
        let affixes: String = affixes.iter().map(|(name, value)| affix(name, value)).collect();
        queue(&format!("<Event>{event}</Event><Filter><S3Key>{affixes}</S3Key></Filter>"))
    }

    fn read_text(inner: &str) -> Result<Vec<NotificationRule>> {
        read(document(inner).as_bytes())
    }

    /// A document that was written with a NUL byte could not be read again.
    #[test]
    fn a_nul_byte_is_refused() {
        for nul in ["\0", "&#0;"] {
            let error = read_text(&filtered("s3:ObjectCreated:*", &[("suffix", nul)])).unwrap_err();
            assert_eq!(error.code, "MalformedXML", "{nul:?}");
        }
    }

    #[test]
    fn a_rule_applies_to_its_events_and_keys() {
        let rules =
            read_text(&filtered("s3:ObjectCreated:*", &[("prefix", "in/"), ("Suffix", ".root")])).unwrap();
        let [rule] = &rules[..] else { panic!("{rules:?}") };
        assert_eq!((rule.id.as_str(), rule.webhook.as_str()), ("event-1", "ci"));
        for kind in EventKind::ALL {
            let applies = rule.applies_to(kind, "in/a.root");
            assert_eq!(applies, kind.is_creation(), "{}", kind.name());
        }
        assert!(!rule.applies_to(EventKind::Put, "in/a.txt") && !rule.applies_to(EventKind::Put, "a.root"));
        // A prefix and a suffix may share bytes of the key, as on S3.
        let rules = read_text(&filtered("s3:ObjectRemoved:Delete", &[("prefix", "ab"), ("suffix", "bc")]));
        assert!(rule_for(&rules.unwrap(), EventKind::Delete, "abc").is_some());
    }

    #[test]
    fn a_document_survives_writing_and_reading() {
        let topic = "<TopicConfiguration><Id>t</Id><Topic>arn:fordway:sns::ci:webhook</Topic>\
                     <Event>s3:ObjectTagging:*</Event><Event>s3:LifecycleExpiration:Delete</Event>\
                     </TopicConfiguration>";
        let two = filtered("s3:ObjectRemoved:*", &[("suffix", "&amp;<![CDATA[<]]> ")]);
        let rules = read_text(&format!("{topic}{two}")).unwrap();
        assert_eq!(rules[1].suffix.as_deref(), Some("&< "));
        let written = write(&rules);
        assert_eq!(read(written.as_bytes()).unwrap(), rules, "{written}");
        assert_eq!(read_text("").unwrap(), []);
    }

    #[test]
    fn rules_that_overlap_are_refused() {
        let created = |affixes: &[(&str, &str)]| filtered("s3:ObjectCreated:*", affixes);
        let put = |affixes: &[(&str, &str)]| filtered("s3:ObjectCreated:Put", affixes);
        for (one, two) in [
            (created(&[]), put(&[])),
            (created(&[("prefix", "a")]), put(&[("prefix", "ab")])),
            (created(&[("prefix", "a")]), put(&[("suffix", "z")])),
            (created(&[("suffix", ".gz")]), put(&[("suffix", ".tar.gz")])),
        ] {
            let error = read_text(&format!("{one}{two}")).unwrap_err();
            assert!(error.code == "InvalidArgument" && error.message.contains("overlap"), "{error:?}");
        }
        for (one, two) in [
            (created(&[("prefix", "a")]), put(&[("prefix", "b")])),
            (created(&[("prefix", "a"), ("suffix", "1")]), put(&[("prefix", "ab"), ("suffix", "2")])),
            (put(&[]), filtered("s3:ObjectCreated:Copy", &[])),
        ] {
            assert_eq!(read_text(&format!("{one}{two}")).unwrap().len(), 2);
        }
    }

    #[test]
    fn other_documents_are_refused_by_name() {
        let event = "<Event>s3:ObjectCreated:Put</Event>";
        let arn = |arn: &str| format!("<QueueConfiguration><Queue>{arn}</Queue>{event}</QueueConfiguration>");
        for (inner, code, word) in [
            (queue(""), "MalformedXML", "Event"),
            (format!("<QueueConfiguration>{event}</QueueConfiguration>"), "MalformedXML", "Queue"),
            (queue("<Event>s3:ObjectCreated</Event>"), "InvalidArgument", "s3:ObjectCreated"),
            (queue("<Event>s3:*</Event>"), "InvalidArgument", "s3:*"),
            (queue("<Event>*</Event>"), "InvalidArgument", "*"),
            (queue("<Event>ObjectCreated:Put</Event>"), "InvalidArgument", "ObjectCreated:Put"),
            (queue("<Event>s3:Replication:*</Event>"), "NotImplemented", "Replication"),
            (filtered("s3:ObjectCreated:*", &[("infix", "a")]), "InvalidArgument", "prefix or suffix"),
            (
                filtered("s3:ObjectCreated:*", &[("prefix", "a"), ("Prefix", "b")]),
                "InvalidArgument",
                "more than one prefix",
            ),
            (arn("arn:aws:sqs:us-east-1:1:q"), "InvalidArgument", "arn:aws:sqs"),
            (arn("arn:fordway:sns::ci:webhook"), "InvalidArgument", "arn:fordway:sqs::NAME"),
            (arn("arn:fordway:sqs::../x:webhook"), "InvalidArgument", "ARN"),
            (arn("arn:fordway:sqs:::webhook"), "InvalidArgument", "ARN"),
            (
                format!("{}{}", queue(&format!("<Id>a</Id>{event}")), {
                    queue("<Id>a</Id><Event>s3:ObjectRemoved:*</Event>")
                }),
                "InvalidArgument",
                "Same ID",
            ),
            ("<EventBridgeConfiguration/>".to_owned(), "NotImplemented", "EventBridgeConfiguration"),
            (
                "<CloudFunctionConfiguration><Id>x</Id></CloudFunctionConfiguration>".to_owned(),
                "NotImplemented",
                "CloudFunctionConfiguration",
            ),
        ] {
            let error = read_text(&inner).unwrap_err();
            assert_eq!(error.code, code, "{inner}: {error:?}");
            assert!(error.message.contains(word), "{inner}: {error:?}");
        }
        assert_eq!(read(b"<Other/>").unwrap_err().code, "MalformedXML");
        assert_eq!(read(b"x").unwrap_err().code, "MalformedXML");
    }
}
