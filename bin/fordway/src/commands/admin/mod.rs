//! `admin` shows and changes the settings of a bucket, and checks the users file of a gateway.
//!
//! A setting is a document in S3's format. Over HTTP, the document is sent unchanged, and the service checks it. Other
//! lanes store the document without a check, so this command makes the same checks as the gateway.

pub(in crate::commands) mod acl;
mod json;
mod show;
mod users;

use std::fmt;
use std::io::Read;

use fordway_command::{CommandContext, CommandExit, StorageAddress, file_error};
use fordway_serve::{checked_document, sound_document};
use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Result, Store};
use fordway_wire::s3_xml::{self, ObjectLockDocument, XmlElement};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{AdminArgs, AdminGetArgs, AdminRmArgs, AdminSetArgs, AdminSubcommand, BucketSettingArg};

/// The maximum size of a file that contains a setting. S3's largest document is 64 KiB; its JSON form may be larger.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn run(args: &AdminArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.action {
        AdminSubcommand::Get(args) => get(args, context),
        AdminSubcommand::Set(args) => set(args, context),
        AdminSubcommand::Rm(args) => rm(args, context),
        AdminSubcommand::Show(args) => show::run(args, context),
        AdminSubcommand::Acl(args) => acl::run(args, context),
        AdminSubcommand::Users(args) => users::run(args, context),
    }
}

/// A setting, with its names on the command line and in S3.
struct AdminSetting {
    arg: BucketSettingArg,
    /// The name on the command line.
    name: &'static str,
    kind: BucketDocumentKind,
    /// The root element of the XML document; empty for the policy, which is JSON.
    root: &'static str,
    /// Whether aws-cli prints the document in an object whose only member has the root's name.
    is_wrapped: bool,
}

impl AdminSetting {
    fn of(arg: BucketSettingArg) -> Self {
        let (name, kind, root, is_wrapped) = match arg {
            BucketSettingArg::Policy => ("policy", "policy", "", false),
            BucketSettingArg::PublicAccess => {
                ("public-access", "public-access-block", "PublicAccessBlockConfiguration", true)
            }
            BucketSettingArg::Ownership => ("ownership", "ownership", "OwnershipControls", true),
            BucketSettingArg::Cors => ("cors", "cors", "CORSConfiguration", false),
            BucketSettingArg::Lifecycle => ("lifecycle", "lifecycle", "LifecycleConfiguration", false),
            BucketSettingArg::Events => ("events", "notification", "NotificationConfiguration", false),
            BucketSettingArg::Lock => ("lock", "object-lock", "ObjectLockConfiguration", true),
            BucketSettingArg::Tags => ("tags", "tagging", "Tagging", false),
        };
        AdminSetting { arg, name, kind: BucketDocumentKind::known(kind), root, is_wrapped }
    }

    /// Reads the document; `None` if the bucket does not have the setting.
    fn read(&self, store: &dyn Store, bucket: &Bucket) -> Result<Option<Vec<u8>>> {
        match self.arg {
            BucketSettingArg::Lock if !is_service(store) => {
                let configuration = store.lock_configuration(bucket)?;
                Ok(configuration.map(|found| s3_xml::lock_configuration(&found).into_bytes()))
            }
            _ => store.document(bucket, &self.kind),
        }
    }

    /// Like [`AdminSetting::read`], but checks a document that no service has checked. Errors: `Corrupt`, and errors
    /// from reading.
    fn read_sound(&self, store: &dyn Store, bucket: &Bucket) -> Result<Option<Vec<u8>>> {
        match self.arg {
            BucketSettingArg::Lock => self.read(store, bucket),
            _ if is_service(store) => self.read(store, bucket),
            _ => sound_document(store, bucket, &self.kind),
        }
    }

    fn write(&self, store: &dyn Store, bucket: &Bucket, document: &[u8]) -> Result<()> {
        if is_service(store) {
            return store.set_document(bucket, &self.kind, document);
        }
        store.head_bucket(bucket)?;
        match self.arg {
            BucketSettingArg::Policy => {
                check_policy(store, bucket, document)?;
                store.set_document(bucket, &self.kind, document)
            }
            BucketSettingArg::Lock => {
                let checked = checked_document(&self.kind, document)?;
                let configuration = ObjectLockDocument::read(&checked)?.configuration();
                store.set_lock_configuration(bucket, &configuration.unwrap_or_default())
            }
            _ => store.set_document(bucket, &self.kind, &checked_document(&self.kind, document)?),
        }
    }

    /// If the endpoint does not support the setting, adds the setting's name to the error. Other errors stay unchanged,
    /// because the endpoint's message gives the reason.
    fn explained(&self, error: Error) -> Error {
        if !is_unsupported(&error) {
            return error;
        }
        let why = format!(
            "this endpoint has no {} setting; `fordway admin show` lists those that it has",
            self.name
        );
        Error::new(ErrorKind::NotImplemented, why).caused_by(error)
    }

    /// Returns the document in the JSON form of aws-cli.
    fn json(&self, document: &[u8]) -> Result<Value> {
        if self.root.is_empty() {
            return Ok(json!({ "Policy": String::from_utf8_lossy(document) }));
        }
        let wrong =
            |error: Error| Error::new(error.kind(), format!("the {} setting: {}", self.name, error.detail()));
        let content = json::object(&XmlElement::read(document).map_err(wrong)?);
        Ok(if self.is_wrapped { json!({ self.root: content }) } else { content })
    }

    /// Converts a document in S3's format or in the JSON form of aws-cli to S3's format. Errors: `InvalidArgument`.
    fn document(&self, content: Vec<u8>) -> Result<Vec<u8>> {
        let wrong = |why: String| Error::new(ErrorKind::InvalidArgument, why);
        let is_json = content.trim_ascii_start().starts_with(b"{");
        if !is_json && !self.root.is_empty() {
            let root = XmlElement::read(&content);
            let root =
                root.map_err(|_| wrong("the file holds neither XML nor a JSON object".to_owned()))?.name;
            return match root == self.root {
                true => Ok(content),
                false => Err(wrong(format!("the root of the document is {root}, not {}", self.root))),
            };
        }
        let parsed: Value = serde_json::from_slice(&content)
            .map_err(|error| wrong("the file holds no valid JSON".to_owned()).caused_by(error))?;
        let name = if self.root.is_empty() { "Policy" } else { self.root };
        let wrapped = parsed.as_object().filter(|members| members.len() == 1).and_then(|only| only.get(name));
        match (self.root, wrapped) {
            ("", Some(Value::String(policy))) => Ok(policy.clone().into_bytes()),
            ("", _) => Ok(content),
            (root, wrapped) => Ok(json::element(root, wrapped.unwrap_or(&parsed))?.write().into_bytes()),
        }
    }
}

/// Returns whether a service behind the store checks documents.
fn is_service(store: &dyn Store) -> bool {
    store.lane() == "http"
}

/// Returns whether the error means that the endpoint does not support the request.
fn is_unsupported(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotImplemented | ErrorKind::MethodNotAllowed)
}

/// Checks a policy as the gateway does, except for the names of users. Errors: `InvalidArgument`; `AccessDenied` for a
/// public policy that the bucket's public access block refuses.
fn check_policy(store: &dyn Store, bucket: &Bucket, document: &[u8]) -> Result<()> {
    let policy = super::policy::parsed(document, bucket)?;
    let block = store.document(bucket, &AdminSetting::of(BucketSettingArg::PublicAccess).kind)?;
    let block = block.map(|block| XmlElement::read(&block)).transpose()?.unwrap_or_default();
    let is_blocked = block.child("BlockPublicPolicy").is_some_and(|flag| flag.text.trim() == "true");
    match is_blocked && policy.is_public() {
        true => {
            let why = "the bucket's public access block refuses public policies; change that first";
            Err(Error::new(ErrorKind::AccessDenied, why))
        }
        false => Ok(()),
    }
}

fn get(args: &AdminGetArgs, context: &CommandContext) -> Result<CommandExit> {
    let bucket = StorageAddress::parse(&args.bucket)?.into_bucket()?;
    let setting = AdminSetting::of(args.setting);
    let name = setting.name;
    let found = setting.read_sound(&*context.store()?, &bucket);
    let Some(mut document) = found.map_err(|error| setting.explained(error))? else {
        let why = format!("s3://{bucket} has no {name} setting; `fordway admin set {name}` sets one");
        context.output.reason(&why);
        return Ok(CommandExit::NotFound);
    };
    if context.output.is_json() {
        context.output.row(&setting.json(&document)?)?;
        return Ok(CommandExit::Ok);
    }
    if !document.ends_with(b"\n") {
        document.push(b'\n');
    }
    context.output.check_open()?;
    context.output.data(&document).map(|()| CommandExit::Ok)
}

fn set(args: &AdminSetArgs, context: &CommandContext) -> Result<CommandExit> {
    let bucket = StorageAddress::parse(&args.bucket)?.into_bucket()?;
    let setting = AdminSetting::of(args.setting);
    let document = setting.document(content(args, context)?)?;
    setting.write(&*context.store()?, &bucket, &document)?;
    changed("set", &setting, &bucket, context)
}

/// Reads the file or standard input. Errors: `InvalidArgument` if the content exceeds [`FILE_BYTES_MAX`].
fn content(args: &AdminSetArgs, context: &CommandContext) -> Result<Vec<u8>> {
    let failed = |error| file_error("reading", args.file.display(), error);
    let input: Box<dyn Read> = match args.file.as_os_str() == "-" {
        true => context.take_input()?,
        false => Box::new(std::fs::File::open(&args.file).map_err(failed)?),
    };
    let mut content = Vec::new();
    input.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    match content.len() as u64 > FILE_BYTES_MAX {
        true => Err(Error::new(ErrorKind::InvalidArgument, "the file has more than 1 MiB")),
        false => Ok(content),
    }
}

fn rm(args: &AdminRmArgs, context: &CommandContext) -> Result<CommandExit> {
    let bucket = StorageAddress::parse(&args.bucket)?.into_bucket()?;
    let setting = AdminSetting::of(args.setting);
    if setting.arg == BucketSettingArg::Lock {
        let why = "object lock cannot be removed from a bucket; to remove its default retention, use `fordway \
                   admin set lock` with {\"ObjectLockEnabled\": \"Enabled\"}";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let removed = context.store()?.delete_document(&bucket, &setting.kind);
    removed.map_err(|error| setting.explained(error))?;
    changed("remove", &setting, &bucket, context)
}

/// A setting that was changed.
#[derive(Serialize)]
struct SettingChangeOutput<'c> {
    operation: &'static str,
    bucket: &'c str,
    setting: &'static str,
}

impl fmt::Display for SettingChangeOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of s3://{}", self.operation, self.setting, self.bucket)
    }
}

fn changed(
    operation: &'static str,
    setting: &AdminSetting,
    bucket: &Bucket,
    context: &CommandContext,
) -> Result<CommandExit> {
    let change = SettingChangeOutput { operation, bucket: bucket.as_str(), setting: setting.name };
    context.output.completed(&change).map(|()| CommandExit::Ok)
}
