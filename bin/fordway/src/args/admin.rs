//! Options of `admin`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use fordway_policy::CannedAcl;

/// Options of `admin`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway admin show s3://data
  fordway admin get cors s3://data > cors.xml
  fordway admin set cors s3://data --file cors.xml
  fordway admin rm cors s3://data
  fordway admin acl s3://data public-read")]
pub struct AdminArgs {
    /// The action to perform.
    #[command(subcommand)]
    pub action: AdminSubcommand,
}

/// The actions of `admin`.
#[derive(Debug, Subcommand)]
pub enum AdminSubcommand {
    /// Print one setting of a bucket
    Get(AdminGetArgs),
    /// Replace one setting of a bucket
    Set(AdminSetArgs),
    /// Remove one setting of a bucket
    Rm(AdminRmArgs),
    /// Show all settings of a bucket
    Show(AdminShowArgs),
    /// Show or set the ACL of a bucket
    Acl(AdminBucketAclArgs),
    /// Check a users file, and list its users and roles
    Users(AdminUsersArgs),
}

/// A setting of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BucketSettingArg {
    /// Access rights to the bucket and its objects
    Policy,
    /// Whether policies may grant access to everybody
    PublicAccess,
    /// The owner of new objects
    Ownership,
    /// Which web pages may use the bucket
    Cors,
    /// When objects expire
    Lifecycle,
    /// Which changes are reported to which webhook
    Events,
    /// Object lock, and how long new versions are locked
    Lock,
    /// The tags of the bucket
    Tags,
}

/// Options of `admin get`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway admin get policy s3://data
  fordway admin get cors s3://data > cors.xml
  fordway admin get lifecycle s3://data --json

The command prints the S3 document of the setting: JSON for the policy, XML for all other settings. With --json, \
the command prints the same JSON as `aws s3api get-...`, in which a policy is a string. The exit code is 3 if the \
bucket does not have the setting.")]
pub struct AdminGetArgs {
    /// Setting to print
    #[arg(value_enum, value_name = "SETTING")]
    pub setting: BucketSettingArg,
    /// s3://BUCKET
    pub bucket: String,
}

/// Options of `admin set`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway admin set policy s3://data --file policy.json
  fordway admin set cors s3://data --file cors.xml
  fordway admin get tags s3://data --json | fordway admin set tags s3://copy --file -

FILE holds an S3 document in XML, or in the JSON form that `aws s3api` reads and prints. A policy is always JSON. The \
document replaces the whole setting. An S3 service checks the document. With other endpoints, this command makes the \
same checks as the gateway.")]
pub struct AdminSetArgs {
    /// Setting to replace
    #[arg(value_enum, value_name = "SETTING")]
    pub setting: BucketSettingArg,
    /// s3://BUCKET
    pub bucket: String,
    /// File with the document; - is standard input
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
}

/// Options of `admin rm`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway admin rm policy s3://data
  fordway admin rm lifecycle s3://data

Removing a setting that the bucket does not have succeeds. Object lock cannot be removed.")]
pub struct AdminRmArgs {
    /// Setting to remove
    #[arg(value_enum, value_name = "SETTING")]
    pub setting: BucketSettingArg,
    /// s3://BUCKET
    pub bucket: String,
}

/// Options of `admin show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway admin show s3://data
  fordway admin show s3://data --json

The table also shows the versioning state of the bucket, which `fordway versioning` changes. With --json, each setting \
has the form that `fordway admin get --json` prints. A setting that the bucket does not have is null. The JSON omits \
settings that the endpoint does not support, that you are not allowed to read, or that are damaged.")]
pub struct AdminShowArgs {
    /// s3://BUCKET
    pub bucket: String,
}

/// Options of `admin acl`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway admin acl s3://data
  fordway admin acl s3://data public-read
  fordway admin acl s3://data --json

The ACL permits everybody (public-read) or all users with keys (authenticated-read) to list the bucket. \
public-read-write also permits everybody to create objects. A bucket ACL cannot permit anyone to read objects; use a \
policy for that. \
A bucket can have an ACL only if its ownership setting is BucketOwnerPreferred or ObjectWriter.")]
pub struct AdminBucketAclArgs {
    /// s3://BUCKET
    pub bucket: String,
    /// New ACL: private, public-read, public-read-write or authenticated-read
    #[arg(value_name = "ACL", value_parser = canned_acl)]
    pub name: Option<CannedAcl>,
}

/// Options of `admin users`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway admin users users.toml
  sudo -u fordway fordway admin users /etc/fordway/users.toml --json

The command checks the file in the same way as `fordway serve --credentials FILE`. Run it as the user who runs the \
gateway, because this user decides which uids are possible. For each user, role and OIDC provider, the command prints a \
line without the secret key. It warns about roles that nobody may assume, and about providers that no role trusts. The \
exit code is 2 if the file is invalid.")]
pub struct AdminUsersArgs {
    /// Users file
    pub file: PathBuf,
}

fn canned_acl(name: &str) -> Result<CannedAcl, String> {
    let known = CannedAcl::ALL.map(CannedAcl::name).join(", ");
    CannedAcl::named(name).ok_or_else(|| format!("use one of {known}"))
}
