//! `admin show`: shows all settings of a bucket, each in a few words.

use std::collections::BTreeSet;
use std::fmt;

use clap::ValueEnum;
use fordway_command::{CommandContext, CommandExit, StorageAddress, shown_name};
use fordway_policy::Policy;
use fordway_store::{Bucket, Error, ErrorKind, Result, VersioningState};
use fordway_wire::s3_xml::XmlElement;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{AdminSetting, is_unsupported};
use crate::args::{AdminShowArgs, BucketSettingArg};
use crate::commands::report;

pub(super) fn run(args: &AdminShowArgs, context: &CommandContext) -> Result<CommandExit> {
    let bucket = StorageAddress::parse(&args.bucket)?.into_bucket()?;
    let store = context.store()?;
    let mut shown = RenderedSettings::default();
    shown.values.insert("bucket".to_owned(), bucket.as_str().into());
    let versioning = store.versioning(&bucket).map(|state| Some(of_versioning(state)));
    let mut first_failure = shown.add("versioning", versioning, context)?;
    for arg in BucketSettingArg::value_variants() {
        context.interrupt.check()?;
        let setting = AdminSetting::of(*arg);
        let found = setting.read_sound(&*store, &bucket);
        let found = found.and_then(|found| found.map(|it| of_document(&setting, &bucket, &it)).transpose());
        let exit = shown.add(setting.name, found, context)?;
        first_failure = if first_failure == CommandExit::Ok { exit } else { first_failure };
    }
    let acl = super::acl::read(&*store, &bucket).map(|acl| Some((acl.name().to_owned(), acl.name().into())));
    let exit = shown.add("acl", acl, context)?;
    first_failure = if first_failure == CommandExit::Ok { exit } else { first_failure };
    context.output.record(&shown)?;
    Ok(first_failure)
}

/// A setting in a few words, and as JSON.
type RenderedSetting = (String, Value);

/// The settings of a bucket. JSON output contains the values, and text output contains the words.
#[derive(Default, Serialize)]
#[serde(transparent)]
struct RenderedSettings {
    /// The values by the names of the settings, with underscores instead of hyphens.
    values: Map<String, Value>,
    #[serde(skip)]
    rows: Vec<(&'static str, String)>,
    /// The causes of the refusals that have already been reported.
    #[serde(skip)]
    denials: BTreeSet<String>,
}

impl RenderedSettings {
    /// Adds a setting. If the user is not allowed to read a setting, or the setting is damaged, the other settings are
    /// still shown. Errors: failures that concern the whole bucket or endpoint.
    fn add(
        &mut self,
        name: &'static str,
        found: Result<Option<RenderedSetting>>,
        context: &CommandContext,
    ) -> Result<CommandExit> {
        let mut exit = CommandExit::Ok;
        let words = match found {
            Ok(found) => {
                let (words, value) = found.unwrap_or_else(|| ("none".to_owned(), Value::Null));
                self.values.insert(name.replace('-', "_"), value);
                words
            }
            Err(error) if is_unsupported(&error) => "not supported by the endpoint".to_owned(),
            Err(error) if error.kind() == ErrorKind::AccessDenied => {
                exit = self.report_denial(error, context)?;
                "not permitted".to_owned()
            }
            Err(error) if error.kind() == ErrorKind::BadResponse => {
                exit = report(context, error)?;
                "unknown".to_owned()
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                exit = report(context, error)?;
                "damaged".to_owned()
            }
            Err(error) => return Err(error),
        };
        self.rows.push((name, words));
        Ok(exit)
    }

    /// Reports a refusal, unless a refusal with the same cause has already been reported. A service refuses all
    /// settings of a forbidden bucket, and each message contains a different request ID.
    fn report_denial(&mut self, error: Error, context: &CommandContext) -> Result<CommandExit> {
        let cause = error.s3_code().unwrap_or_else(|| error.detail()).to_owned();
        let exit = CommandExit::of(&error);
        match self.denials.insert(cause) {
            true => report(context, error),
            false => Ok(exit),
        }
    }
}

impl fmt::Display for RenderedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let rows: Vec<_> =
            self.rows.iter().map(|(name, words)| format!("{name:width$}  {}", shown_name(words))).collect();
        f.write_str(&rows.join("\n"))
    }
}

fn of_versioning(state: VersioningState) -> RenderedSetting {
    let words = match state {
        VersioningState::Unversioned => "unversioned",
        VersioningState::Enabled => "enabled",
        VersioningState::Suspended => "suspended",
    };
    (words.to_owned(), words.into())
}

fn of_document(setting: &AdminSetting, bucket: &Bucket, document: &[u8]) -> Result<RenderedSetting> {
    let value = setting.json(document)?;
    if setting.arg == BucketSettingArg::Policy {
        return Ok((of_policy(bucket, document), value));
    }
    let root = XmlElement::read(document)?;
    let words = match setting.arg {
        BucketSettingArg::Policy | BucketSettingArg::Ownership => text(&root, "Rule/ObjectOwnership"),
        BucketSettingArg::PublicAccess => of_block(&root),
        BucketSettingArg::Cors => rules(root.children.len(), 0),
        BucketSettingArg::Lifecycle => of_lifecycle(&root),
        BucketSettingArg::Events => rules(root.children.len(), 0),
        BucketSettingArg::Lock => of_lock(&root),
        BucketSettingArg::Tags => of_tags(&root),
    };
    Ok((words, value))
}

/// Describes a policy. A policy may contain elements that this version does not support.
fn of_policy(bucket: &Bucket, document: &[u8]) -> String {
    let Ok(policy) = Policy::parse(document, bucket.as_str()) else {
        return "set; this version does not understand it".to_owned();
    };
    let count = policy.statements.len();
    let public = if policy.is_public() { ", public" } else { "" };
    format!("{}{public}", counted(count, "statement"))
}

fn of_block(root: &XmlElement) -> String {
    let on = root.children.iter().filter(|flag| flag.text.trim() == "true");
    let on: Vec<_> = on.map(|flag| &*flag.name).collect();
    if on.is_empty() { "nothing is blocked".to_owned() } else { on.join(", ") }
}

fn of_lifecycle(root: &XmlElement) -> String {
    let all: Vec<_> = root.children.iter().filter(|child| child.name == "Rule").collect();
    rules(all.len(), all.iter().filter(|rule| text(rule, "Status") == "Disabled").count())
}

fn of_lock(root: &XmlElement) -> String {
    let of_default = |name: &str| text(root, &format!("Rule/DefaultRetention/{name}"));
    let mode = of_default("Mode");
    match (&*of_default("Days"), &*of_default("Years")) {
        ("", "") => "enabled".to_owned(),
        (days, "") => format!("enabled; by default {mode} for {days} days"),
        (_, years) => format!("enabled; by default {mode} for {years} years"),
    }
}

fn of_tags(root: &XmlElement) -> String {
    let tags = root.child("TagSet").map(|tags| &tags.children[..]).unwrap_or_default();
    let tags: Vec<_> =
        tags.iter().map(|tag| format!("{}={}", text(tag, "Key"), text(tag, "Value"))).collect();
    if tags.is_empty() { "no tags".to_owned() } else { tags.join(", ") }
}

fn rules(count: usize, disabled: usize) -> String {
    let counted = counted(count, "rule");
    if disabled > 0 { format!("{counted}, {disabled} disabled") } else { counted }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the text of the element at this path, or an empty string.
fn text(element: &XmlElement, path: &str) -> String {
    let found = path.split('/').try_fold(element, |element, name| element.child(name));
    found.map(|found| found.text.clone()).unwrap_or_default()
}
