//! Lifecycle rules of a bucket: S3's document, and the times at which a rule expires an object, a version or an
//! upload.
//!
//! Times and the length of a day are arguments, so that tests need not wait. Expiry times are rounded up to midnight
//! UTC, as on S3. For example, if objects expire after one day, an object written at 03:00 UTC expires at the second
//! midnight after it was written.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::Tags;

use crate::date::parse_iso8601;
use crate::s3_xml::{ResponseDocumentBuilder, for_each_element};

/// The maximum number of rules of a bucket (S3's limit).
const RULES_MAX: usize = 1000;
/// The maximum length of a rule's name (S3's limit).
const ID_BYTES_MAX: usize = 255;
/// The maximum of `NewerNoncurrentVersions` (S3's limit).
const NEWER_MAX: u32 = 100;
/// The length of a day, except in tests, which may use shorter days.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The reason why a document is rejected: S3's error code, and what to correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleError {
    /// `MalformedXML`, `InvalidArgument`, `InvalidRequest` or `NotImplemented`.
    pub code: &'static str,
    /// The message; AWS's own message if AWS has one.
    pub message: String,
}

type Result<T> = std::result::Result<T, LifecycleError>;

fn malformed(message: impl Into<String>) -> LifecycleError {
    LifecycleError { code: "MalformedXML", message: message.into() }
}

fn argument(message: impl Into<String>) -> LifecycleError {
    LifecycleError { code: "InvalidArgument", message: message.into() }
}

fn request(message: impl Into<String>) -> LifecycleError {
    LifecycleError { code: "InvalidRequest", message: message.into() }
}

/// The objects to which a rule applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFilter {
    /// The prefix that keys must have.
    pub prefix: Option<String>,
    /// The tags that objects must have; all of them are required.
    pub tags: Tags,
    /// The size that objects must exceed, in bytes.
    pub larger_than: Option<u64>,
    /// The size that objects must be smaller than, in bytes.
    pub smaller_than: Option<u64>,
    /// The syntax of the filter in the document.
    form: RuleFilterSyntax,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RuleFilterSyntax {
    /// `Prefix` in the rule itself, the form that was used before `Filter` existed.
    #[default]
    Prefix,
    /// One condition, or none, in `Filter` itself.
    Direct,
    /// `Filter/And`.
    And,
}

impl RuleFilter {
    /// Returns whether the rule applies to the key.
    pub fn has_key(&self, key: &str) -> bool {
        key.starts_with(self.prefix.as_deref().unwrap_or_default())
    }

    /// Returns whether the rule applies to objects of this size in bytes.
    pub fn has_size(&self, size: u64) -> bool {
        self.larger_than.is_none_or(|least| size > least) && self.smaller_than.is_none_or(|most| size < most)
    }

    /// Returns whether the rule applies to objects with these tags.
    pub fn has_tags(&self, tags: &Tags) -> bool {
        self.tags.iter().all(|(name, value)| tags.get(name) == Some(value))
    }
}

/// When the latest version of an object expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiration {
    /// This many days after the object was written.
    Days(u32),
    /// On this date.
    Date(SystemTime),
    /// Never; the value is true if a delete marker is removed when it no longer hides a version.
    DeleteMarker(bool),
}

/// When a noncurrent version expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoncurrentExpiration {
    /// The number of days after which the version expires, counted from its replacement.
    pub days: u32,
    /// The number of newest noncurrent versions to keep.
    pub newer: Option<u32>,
}

/// A lifecycle rule of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleRule {
    /// The name of the rule.
    pub id: String,
    /// Whether the rule is in effect.
    pub is_enabled: bool,
    /// The objects to which the rule applies.
    pub filter: RuleFilter,
    /// What happens to the latest versions.
    pub expiration: Option<Expiration>,
    /// What happens to older versions.
    pub noncurrent: Option<NoncurrentExpiration>,
    /// Days after which an upload that was not completed is aborted.
    pub abort_days: Option<u32>,
}

/// Returns the first midnight that is at least `days` after `from`. `day` is the length of a day.
pub fn expiry(from: SystemTime, days: u32, day: Duration) -> SystemTime {
    let day_ns = day.as_nanos().max(1);
    let since_ns = from.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let due_ns = (since_ns + u128::from(days) * day_ns).div_ceil(day_ns) * day_ns;
    let due = Duration::from_nanos(u64::try_from(due_ns).unwrap_or(u64::MAX));
    UNIX_EPOCH.checked_add(due).unwrap_or(from)
}

impl LifecycleRule {
    /// Returns when the latest version of an object written at `modified` expires; `None` if never.
    pub fn current_expiry(&self, modified: SystemTime, day: Duration) -> Option<SystemTime> {
        match self.expiration? {
            Expiration::Days(days) => Some(expiry(modified, days, day)),
            Expiration::Date(date) => Some(date),
            Expiration::DeleteMarker(_) => None,
        }
    }

    /// Returns when a noncurrent version expires; `None` if never. The version was replaced at `replaced`, and `newer`
    /// other noncurrent versions are newer.
    pub fn noncurrent_expiry(&self, replaced: SystemTime, newer: u32, day: Duration) -> Option<SystemTime> {
        let rule = self.noncurrent.filter(|rule| rule.newer.is_none_or(|kept| newer >= kept))?;
        Some(expiry(replaced, rule.days, day))
    }

    /// Returns when a delete marker that was created at `made` and hides no version expires; `None` if never.
    pub fn marker_expiry(&self, made: SystemTime, day: Duration) -> Option<SystemTime> {
        match self.expiration? {
            Expiration::DeleteMarker(is_on) => is_on.then_some(made),
            _ => self.current_expiry(made, day),
        }
    }

    /// Returns when an upload that was started at `started` is aborted; `None` if never.
    pub fn abort_expiry(&self, started: SystemTime, day: Duration) -> Option<SystemTime> {
        Some(expiry(started, self.abort_days?, day))
    }
}

/// The elements of a rule in a document, before they are checked.
#[derive(Default)]
struct RawLifecycleRule {
    id: Option<String>,
    status: Option<String>,
    prefix: Option<String>,
    has_filter: bool,
    has_and: bool,
    filter: RuleFilter,
    /// `Prefix` in `Filter` itself, and in `Filter/And`.
    filter_prefixes: [Option<String>; 2],
    /// The number of conditions in `Filter` itself.
    direct_conditions: usize,
    tag: (Option<String>, Option<String>),
    days: Option<String>,
    date: Option<String>,
    marker: Option<String>,
    has_expiration: bool,
    noncurrent_days: Option<String>,
    newer: Option<String>,
    has_noncurrent: bool,
    abort_days: Option<String>,
    has_abort: bool,
}

/// Sets the value of an element. Errors: `MalformedXML` if the element occurs twice, because it would be unclear which
/// value applies.
fn set_once<T>(slot: &mut Option<T>, path: &str, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(twice(path)),
    }
}

fn twice(path: &str) -> LifecycleError {
    malformed(format!("{path} occurs twice in one rule; state it once"))
}

/// Returns the prefix of all keys that have both prefixes. Errors: `MalformedXML` if there are no such keys.
fn both_prefixes(one: Option<String>, other: Option<String>) -> Result<Option<String>> {
    match (one, other) {
        (Some(one), Some(other)) if one.starts_with(&other) => Ok(Some(one)),
        (Some(one), Some(other)) if other.starts_with(&one) => Ok(Some(other)),
        (Some(_), Some(_)) => Err(malformed("no key has both prefixes of the Filter; state one prefix")),
        (one, other) => Ok(one.or(other)),
    }
}

impl RawLifecycleRule {
    fn take(&mut self, path: &str, text: &str) -> Result<()> {
        let state = |slot: &mut Option<String>| set_once(slot, path, text.to_owned());
        let note = |flag: &mut bool| match std::mem::replace(flag, true) {
            true => Err(twice(path)),
            false => Ok(()),
        };
        match path {
            "ID" => state(&mut self.id)?,
            "Status" => state(&mut self.status)?,
            "Prefix" => state(&mut self.prefix)?,
            "Filter" => note(&mut self.has_filter)?,
            "Filter/And" => note(&mut self.has_and)?,
            "Expiration" => note(&mut self.has_expiration)?,
            "Expiration/Days" => state(&mut self.days)?,
            "Expiration/Date" => state(&mut self.date)?,
            "Expiration/ExpiredObjectDeleteMarker" => state(&mut self.marker)?,
            "NoncurrentVersionExpiration" => note(&mut self.has_noncurrent)?,
            "NoncurrentVersionExpiration/NoncurrentDays" => state(&mut self.noncurrent_days)?,
            "NoncurrentVersionExpiration/NewerNoncurrentVersions" => state(&mut self.newer)?,
            "AbortIncompleteMultipartUpload" => note(&mut self.has_abort)?,
            "AbortIncompleteMultipartUpload/DaysAfterInitiation" => state(&mut self.abort_days)?,
            "Transition" | "NoncurrentVersionTransition" => {
                let message = "transitions need storage classes, which are not supported; remove them";
                return Err(LifecycleError { code: "NotImplemented", message: message.to_owned() });
            }
            _ => {
                if let Some(path) = path.strip_prefix("Filter/") {
                    let within = path.strip_prefix("And/");
                    self.direct_conditions += usize::from(within.is_none() && !path.contains('/'));
                    match within.unwrap_or(path) {
                        "Prefix" => {
                            let slot = &mut self.filter_prefixes[usize::from(within.is_some())];
                            set_once(slot, path, text.to_owned())?;
                        }
                        condition => self.take_condition(condition, text)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn take_condition(&mut self, path: &str, text: &str) -> Result<()> {
        let size = || text.trim().parse().map_err(|_| malformed(format!("{path} is not a size in bytes")));
        match path {
            "Tag/Key" => set_once(&mut self.tag.0, path, text.to_owned())?,
            "Tag/Value" => set_once(&mut self.tag.1, path, text.to_owned())?,
            "Tag" => {
                let (Some(name), Some(value)) = std::mem::take(&mut self.tag) else {
                    return Err(malformed("a tag needs a key and a value"));
                };
                if self.filter.tags.insert(name, value).is_some() {
                    return Err(request("Duplicate Tag Keys are not allowed."));
                }
            }
            "ObjectSizeGreaterThan" => set_once(&mut self.filter.larger_than, path, size()?)?,
            "ObjectSizeLessThan" => set_once(&mut self.filter.smaller_than, path, size()?)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks the elements, and returns the rule. The name of the rule is empty if the document contains no name.
    fn into_rule(self) -> Result<LifecycleRule> {
        let id = self.id.clone().unwrap_or_default();
        if id.len() > ID_BYTES_MAX {
            return Err(argument("ID length should not exceed allowed limit of 255"));
        }
        let is_enabled = match self.status.as_deref().map(str::trim) {
            Some("Enabled") => true,
            Some("Disabled") => false,
            _ => return Err(malformed("the status of a rule must be Enabled or Disabled")),
        };
        let rule = LifecycleRule {
            id,
            is_enabled,
            expiration: self.expiration()?,
            noncurrent: self.noncurrent()?,
            abort_days: self.abort()?,
            filter: self.filter()?,
        };
        rule.check()?;
        Ok(rule)
    }

    /// Returns the filter, whose conditions must all hold. AWS accepts several conditions only in `And`. Ceph also
    /// accepts them in `Filter` itself and next to `And`.
    fn filter(self) -> Result<RuleFilter> {
        let [direct, within_and] = self.filter_prefixes;
        match (self.prefix, self.has_filter) {
            (Some(prefix), false) => Ok(RuleFilter { prefix: Some(prefix), ..RuleFilter::default() }),
            (None, true) => {
                let has_several = self.has_and || self.direct_conditions > 1;
                let form = if has_several { RuleFilterSyntax::And } else { RuleFilterSyntax::Direct };
                Ok(RuleFilter { form, prefix: both_prefixes(direct, within_and)?, ..self.filter })
            }
            (Some(_), true) => Err(malformed("a rule must have either a Filter or a Prefix, not both")),
            (None, false) => Err(malformed("a rule needs a Filter; an empty one selects all objects")),
        }
    }

    fn expiration(&self) -> Result<Option<Expiration>> {
        if !self.has_expiration {
            return Ok(None);
        }
        Ok(Some(match (&self.days, &self.date, &self.marker) {
            (Some(days), None, None) => Expiration::Days(positive(days, "'Days' for Expiration action")?),
            (None, Some(date), None) => Expiration::Date(midnight(date)?),
            (None, None, Some(is_on)) => match is_on.trim() {
                "true" => Expiration::DeleteMarker(true),
                "false" => Expiration::DeleteMarker(false),
                _ => return Err(malformed("ExpiredObjectDeleteMarker must be true or false")),
            },
            _ => return Err(malformed("an expiration needs Days, a Date or ExpiredObjectDeleteMarker")),
        }))
    }

    fn noncurrent(&self) -> Result<Option<NoncurrentExpiration>> {
        if !self.has_noncurrent {
            return Ok(None);
        }
        let what = "'NoncurrentDays' for NoncurrentVersionExpiration action";
        let days = self.noncurrent_days.as_deref();
        let days = days.ok_or_else(|| malformed("NoncurrentVersionExpiration needs NoncurrentDays"))?;
        let days = positive(days, what)?;
        let newer = self.newer.as_deref().map(|newer| positive(newer, "'NewerNoncurrentVersions'"));
        let newer = newer.transpose()?;
        match newer {
            Some(newer) if newer > NEWER_MAX => {
                Err(argument(format!("'NewerNoncurrentVersions' must not be more than {NEWER_MAX}")))
            }
            newer => Ok(Some(NoncurrentExpiration { days, newer })),
        }
    }

    fn abort(&self) -> Result<Option<u32>> {
        if !self.has_abort {
            return Ok(None);
        }
        let days = self.abort_days.as_deref();
        let days =
            days.ok_or_else(|| malformed("AbortIncompleteMultipartUpload needs DaysAfterInitiation"))?;
        positive(days, "'DaysAfterInitiation' for AbortIncompleteMultipartUpload action").map(Some)
    }
}

impl LifecycleRule {
    fn check(&self) -> Result<()> {
        if self.expiration.is_none() && self.noncurrent.is_none() && self.abort_days.is_none() {
            return Err(request("At least one action needs to be specified in a rule"));
        }
        let RuleFilter { tags, larger_than, smaller_than, .. } = &self.filter;
        let has_sizes = larger_than.is_some() || smaller_than.is_some();
        if self.abort_days.is_some() && !tags.is_empty() {
            return Err(request("AbortIncompleteMultipartUpload cannot be specified with Tags"));
        }
        if self.abort_days.is_some() && has_sizes {
            return Err(request("AbortIncompleteMultipartUpload cannot be specified with Object Size"));
        }
        if matches!(self.expiration, Some(Expiration::DeleteMarker(_))) && !tags.is_empty() {
            return Err(request("ExpiredObjectDeleteMarker cannot be specified with Tags"));
        }
        if larger_than.zip(*smaller_than).is_some_and(|(least, most)| least >= most) {
            return Err(request(
                "'ObjectSizeLessThan' has to be a value greater than 'ObjectSizeGreaterThan'",
            ));
        }
        Ok(())
    }
}

fn positive(text: &str, what: &str) -> Result<u32> {
    let number: i64 = text.trim().parse().map_err(|_| malformed(format!("{what} is not a number")))?;
    match u32::try_from(number) {
        Ok(number) if (1..=i32::MAX as u32).contains(&number) => Ok(number),
        _ => Err(argument(format!("{what} must be a positive integer"))),
    }
}

fn midnight(text: &str) -> Result<SystemTime> {
    let date = parse_iso8601(text.trim())
        .ok_or_else(|| malformed("a date must have the form 2030-01-31T00:00:00Z"))?;
    let seconds = date.duration_since(UNIX_EPOCH).unwrap_or_default();
    match seconds.as_nanos().is_multiple_of(DAY.as_nanos()) {
        true => Ok(date),
        false => Err(argument("'Date' must be at midnight GMT")),
    }
}

/// Reads a document of rules. Errors: the first element that S3 or this store does not accept.
pub fn read(document: &[u8]) -> Result<Vec<LifecycleRule>> {
    let (mut rules, mut elements, mut failed) = (Vec::new(), RawLifecycleRule::default(), None);
    let mut take = |path: &str, text: &str| -> Result<()> {
        if path == "Rule" {
            rules.push(std::mem::take(&mut elements).into_rule()?);
        } else if let Some(path) = path.strip_prefix("Rule/") {
            elements.take(path, text)?;
        }
        Ok(())
    };
    let read = for_each_element(document, "LifecycleConfiguration", |path, text| {
        if failed.is_none() {
            failed = take(path, text).err();
        }
        Ok(())
    });
    read.map_err(|error| malformed(error.detail()))?;
    failed.map_or(Ok(()), Err)?;
    if !(1..=RULES_MAX).contains(&rules.len()) {
        return Err(malformed(format!("a bucket must have from 1 to {RULES_MAX} lifecycle rules")));
    }
    name_unnamed(&mut rules);
    let mut names: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let words = "Rule ID must be unique. Found same ID for more than one rule";
            Err(argument(format!("{words}: {}", pair[0])))
        }
        None => Ok(rules),
    }
}

/// Assigns each unnamed rule a name that no other rule has. Generated names may be in use already, because clients send
/// them back together with new unnamed rules.
fn name_unnamed(rules: &mut [LifecycleRule]) {
    let mut names: BTreeSet<String> = rules.iter().map(|rule| rule.id.clone()).collect();
    for (at, rule) in rules.iter_mut().enumerate().filter(|(_, rule)| rule.id.is_empty()) {
        let mut free = (at + 1..).map(|number| format!("rule-{number}")).filter(|name| !names.contains(name));
        rule.id = free.next().unwrap_or_default();
        names.insert(rule.id.clone());
    }
}

/// Returns S3's XML document of `rules`.
pub fn write(rules: &[LifecycleRule]) -> String {
    let mut document = ResponseDocumentBuilder::new("LifecycleConfiguration");
    rules.iter().for_each(|rule| write_rule(&mut document, rule));
    document.finish()
}

fn write_rule(document: &mut ResponseDocumentBuilder, rule: &LifecycleRule) {
    document.open("Rule").element("ID", &rule.id);
    write_filter(document, &rule.filter);
    document.element("Status", if rule.is_enabled { "Enabled" } else { "Disabled" });
    if let Some(expiration) = rule.expiration {
        document.open("Expiration");
        match expiration {
            Expiration::Days(days) => document.element("Days", &days.to_string()),
            Expiration::Date(date) => document.element("Date", &crate::date::format_iso8601(date)),
            Expiration::DeleteMarker(is_on) => {
                document.element("ExpiredObjectDeleteMarker", if is_on { "true" } else { "false" })
            }
        };
        document.close();
    }
    if let Some(NoncurrentExpiration { days, newer }) = rule.noncurrent {
        document.open("NoncurrentVersionExpiration").element("NoncurrentDays", &days.to_string());
        document.maybe("NewerNoncurrentVersions", newer.map(|newer| newer.to_string()).as_deref()).close();
    }
    if let Some(days) = rule.abort_days {
        document.open("AbortIncompleteMultipartUpload");
        document.element("DaysAfterInitiation", &days.to_string()).close();
    }
    document.close();
}

fn write_filter(document: &mut ResponseDocumentBuilder, filter: &RuleFilter) {
    if filter.form == RuleFilterSyntax::Prefix {
        document.maybe("Prefix", filter.prefix.as_deref());
        return;
    }
    document.open("Filter");
    if filter.form == RuleFilterSyntax::And {
        document.open("And");
    }
    document.maybe("Prefix", filter.prefix.as_deref());
    for (name, value) in &filter.tags {
        document.open("Tag").element("Key", name).element("Value", value).close();
    }
    document.maybe("ObjectSizeGreaterThan", filter.larger_than.map(|size| size.to_string()).as_deref());
    document.maybe("ObjectSizeLessThan", filter.smaller_than.map(|size| size.to_string()).as_deref());
    if filter.form == RuleFilterSyntax::And {
        document.close();
    }
    document.close();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(inner: &str) -> Result<Vec<LifecycleRule>> {
        read(format!("<LifecycleConfiguration><Rule>{inner}</Rule></LifecycleConfiguration>").as_bytes())
    }

    fn at(hours: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(hours * 3600)
    }

    #[test]
    fn rules_are_written_as_they_were_read() {
        for inner in [
            "<ID>a</ID><Prefix>logs/</Prefix><Status>Enabled</Status><Expiration><Days>3</Days></Expiration>",
            "<ID>a</ID><Filter></Filter><Status>Disabled</Status><Expiration>\
             <ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>",
            "<ID>a</ID><Filter><Tag><Key>k</Key><Value>v&lt;</Value></Tag></Filter><Status>Enabled</Status>\
             <Expiration><Date>2030-01-31T00:00:00.000Z</Date></Expiration>",
            "<ID>a</ID><Filter><And><Prefix>p</Prefix><Tag><Key>a</Key><Value>1</Value></Tag><Tag><Key>b</Key>\
             <Value></Value></Tag><ObjectSizeGreaterThan>1</ObjectSizeGreaterThan><ObjectSizeLessThan>9\
             </ObjectSizeLessThan></And></Filter><Status>Enabled</Status><NoncurrentVersionExpiration>\
             <NoncurrentDays>2</NoncurrentDays><NewerNoncurrentVersions>5</NewerNoncurrentVersions>\
             </NoncurrentVersionExpiration>",
            "<ID>a</ID><Filter><ObjectSizeLessThan>9</ObjectSizeLessThan></Filter>\
             <Status>Enabled</Status><Expiration><Days>3</Days></Expiration>",
            "<ID>a</ID><Filter><Prefix></Prefix></Filter><Status>Enabled</Status>\
             <AbortIncompleteMultipartUpload><DaysAfterInitiation>7</DaysAfterInitiation>\
             </AbortIncompleteMultipartUpload>",
        ] {
            let rules = rule(inner).unwrap();
            let written = write(&rules);
            assert!(written.contains(&inner.replace("9             ", "9")), "{written}");
            assert_eq!(read(written.as_bytes()).unwrap(), rules);
        }
    }

    #[test]
    fn what_s3_refuses_is_refused() {
        let days = "<Status>Enabled</Status><Expiration><Days>1</Days></Expiration>";
        let long = "x".repeat(256);
        for (inner, code) in [
            (format!("<ID>{long}</ID><Prefix></Prefix>{days}"), "InvalidArgument"),
            (format!("<Prefix></Prefix><Filter></Filter>{days}"), "MalformedXML"),
            (days.to_owned(), "MalformedXML"),
            ("<Prefix></Prefix><Status>enabled</Status><Expiration><Days>1</Days></Expiration>".into(), "MalformedXML"),
            ("<Prefix></Prefix><Status>Enabled</Status>".into(), "InvalidRequest"),
            ("<Prefix></Prefix><Status>Enabled</Status><Expiration><Days>0</Days></Expiration>".into(), "InvalidArgument"),
            ("<Prefix></Prefix><Status>Enabled</Status><Expiration></Expiration>".into(), "MalformedXML"),
            (
                "<Prefix></Prefix><Status>Enabled</Status><Expiration><Date>2030-01-31T01:00:00Z</Date></Expiration>".into(),
                "InvalidArgument",
            ),
            (
                "<Prefix></Prefix><Status>Enabled</Status><Transition><Days>1</Days></Transition>".into(),
                "NotImplemented",
            ),
            (
                "<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter><Status>Enabled</Status>\
                 <AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>".into(),
                "InvalidRequest",
            ),
        ] {
            assert_eq!(rule(&inner).map_err(|error| error.code), Err(code), "{inner}");
        }
        let twice = format!("<ID>a</ID><Prefix></Prefix>{days}");
        let twice = format!(
            "<LifecycleConfiguration><Rule>{twice}</Rule><Rule>{twice}</Rule></LifecycleConfiguration>"
        );
        assert_eq!(read(twice.as_bytes()).unwrap_err().code, "InvalidArgument");
        assert_eq!(
            read(b"<LifecycleConfiguration></LifecycleConfiguration>").unwrap_err().code,
            "MalformedXML"
        );
        assert_eq!(read(b"<Lifecycle").unwrap_err().code, "MalformedXML");
    }

    #[test]
    fn rules_without_a_name_get_free_ones() {
        let rule = |id: &str| {
            format!(
                "<Rule>{id}<Filter/><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>"
            )
        };
        let all = ["", "<ID>rule-1</ID>", "<ID></ID>", "<ID>rule-3</ID>", ""].map(rule).concat();
        let document = format!("<LifecycleConfiguration>{all}</LifecycleConfiguration>");
        let rules = read(document.as_bytes()).unwrap();
        let names: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
        assert_eq!(names, ["rule-2", "rule-1", "rule-4", "rule-3", "rule-5"]);
    }

    #[test]
    fn a_day_ends_at_midnight() {
        for (written, days, due) in [(3, 1, 48), (0, 1, 24), (23, 1, 48), (24, 2, 72)] {
            assert_eq!(expiry(at(written), days, DAY), at(due), "hour {written}, {days} days");
        }
        let short = Duration::from_secs(10);
        assert_eq!(
            expiry(UNIX_EPOCH + Duration::from_secs(13), 2, short),
            UNIX_EPOCH + Duration::from_secs(40)
        );
    }

    #[test]
    fn noncurrent_versions_expire_beyond_those_that_are_kept() {
        let rules = rule(
            "<Prefix></Prefix><Status>Enabled</Status><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
             <NewerNoncurrentVersions>2</NewerNoncurrentVersions></NoncurrentVersionExpiration>",
        )
        .unwrap();
        assert_eq!(rules[0].noncurrent_expiry(at(0), 1, DAY), None);
        assert_eq!(rules[0].noncurrent_expiry(at(0), 2, DAY), Some(at(24)));
        assert_eq!(rules[0].current_expiry(at(0), DAY), None);
    }

    #[test]
    fn nothing_may_be_stated_twice() {
        let end = "<Status>Enabled</Status><Expiration><Days>1</Days></Expiration>";
        for twice in [
            "<Filter><Prefix>a</Prefix><Prefix>b</Prefix></Filter>",
            "<Filter><And><Prefix>a</Prefix><Prefix/></And></Filter>",
            "<Filter><Tag><Key>k</Key><Key>l</Key><Value>v</Value></Tag></Filter>",
            "<Filter><Prefix>a</Prefix></Filter><Filter/>",
            "<Prefix>a</Prefix><Prefix/>",
            "<Filter/><Status>Disabled</Status>",
            "<Filter/><Expiration><Days>2</Days></Expiration>",
            "<Filter/><ID>a</ID><ID>b</ID>",
        ] {
            assert_eq!(rule(&format!("{twice}{end}")).unwrap_err().code, "MalformedXML", "{twice}");
        }
        for days in ["<Days>3</Days><Days>1</Days>", "<Days>1</Days><Date>2020-01-01T00:00:00Z</Date>"] {
            let document = format!("<Filter/><Status>Enabled</Status><Expiration>{days}</Expiration>");
            assert_eq!(rule(&document).unwrap_err().code, "MalformedXML", "{days}");
        }
        assert!(rule(&format!("<Filter><Prefix>a</Prefix></Filter>{end}")).is_ok());
    }

    /// The conditions may be in `And`, in the filter itself as in Ceph's test suite, or in both.
    #[test]
    fn filters_need_all_their_conditions() {
        let (tag, size) =
            ("<Tag><Key>k</Key><Value>v</Value></Tag>", "<ObjectSizeGreaterThan>5</ObjectSizeGreaterThan>");
        let tags =
            |value: &str| Tags::from([("k".to_owned(), value.to_owned()), ("x".to_owned(), "y".to_owned())]);
        for conditions in [
            format!("<And><Prefix>a/</Prefix>{tag}{size}</And>"),
            format!("<Prefix>a/</Prefix>{tag}{size}"),
            format!("<Prefix>a</Prefix>{tag}<And><Prefix>a/</Prefix>{size}</And>"),
            format!("{size}<And><Prefix/>{tag}</And><Prefix>a/</Prefix>"),
        ] {
            let end = "<Status>Enabled</Status><Expiration><Days>1</Days></Expiration>";
            let rules = rule(&format!("<Filter>{conditions}</Filter>{end}")).unwrap();
            let filter = &rules[0].filter;
            assert!(filter.has_key("a/b") && !filter.has_key("b"), "{conditions}");
            assert!(filter.has_size(6) && !filter.has_size(5), "{conditions}");
            assert!(filter.has_tags(&tags("v")) && !filter.has_tags(&tags("w")), "{conditions}");
            assert!(!filter.has_tags(&Tags::new()), "{conditions}");
            assert_eq!(read(write(&rules).as_bytes()).unwrap(), rules, "{conditions}");
        }
        let apart =
            "<Filter><Prefix>a</Prefix><And><Prefix>b</Prefix></And></Filter><Status>Enabled</Status>";
        assert_eq!(rule(apart).unwrap_err().code, "MalformedXML");
    }
}
