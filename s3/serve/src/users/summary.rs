//! The content of a credentials file for administrators, without secrets.

use std::path::Path;

use fordway_policy::Action;
use fordway_store::{Bucket, Result};
use serde::Serialize;

use super::confined::AccessLimits;
use super::file::{self, RoleEntry, UserEntry};
use crate::sts::IdentityProviderEntry;

/// A user, a role or an OIDC provider of a credentials file, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsersFileEntry {
    /// `user`, `role` or `oidc`.
    pub kind: &'static str,
    /// The name of a user or a role, or the issuer of an OIDC provider.
    pub name: String,
    /// The access key of a user.
    pub access_key: Option<String>,
    /// The uid that accesses files; `None` for the gateway's own uid, or if claims contain the uid.
    pub uid: Option<u32>,
    /// The gid that accesses files; `None` for the gateway's own gid, or if claims contain the gid.
    pub gid: Option<u32>,
    /// The additional groups.
    pub groups: Vec<u32>,
    /// The permitted buckets; `None` if all buckets are permitted.
    pub buckets: Option<Vec<String>>,
    /// The permitted prefixes of keys; `None` if all keys are permitted.
    pub prefixes: Option<Vec<String>>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The users who may assume a role.
    pub assumed_by: Vec<String>,
    /// The issuers whose identities may assume a role.
    pub issuers: Vec<String>,
}

impl UsersFileEntry {
    /// Checks whether `buckets`, `prefixes` and `read_only` permit an action, as a gateway does. `start` is the key of
    /// an object, or the prefix of a listing. Errors: `AccessDenied`, with the reason.
    pub fn admit(&self, action: Action, bucket: &Bucket, start: &str) -> Result<()> {
        let (buckets, prefixes) = (self.buckets.clone(), self.prefixes.clone());
        let limits = AccessLimits { buckets, prefixes, read_only: self.read_only };
        let name = action.short_name();
        let is_read = name.starts_with("Get") || name.starts_with("List");
        limits.admit(bucket)?;
        if action.is_of_objects() || LISTINGS.contains(&name) {
            limits.admit_keys(start)?;
        }
        if !is_read {
            limits.admit_change()?;
        }
        // A retention may be bypassed only by users who may change the settings of the bucket.
        match name == "BypassGovernanceRetention" || !is_read && !action.is_of_objects() {
            true => limits.admit_whole(),
            false => Ok(()),
        }
    }
}

/// The actions that list keys of a bucket.
const LISTINGS: [&str; 3] = ["ListBucket", "ListBucketVersions", "ListBucketMultipartUploads"];

/// Reads and checks a credentials file like a gateway that runs as the calling user. Returns the users, then the roles
/// and then the OIDC providers, each in the order of the file. Errors: `InvalidArgument` with the line or the entry
/// that is wrong; `AccessDenied` if other users can read the file.
pub fn read_users_file(path: &Path) -> Result<Vec<UsersFileEntry>> {
    let document = file::read(path)?;
    let users = document.user.iter().map(|user| of_user("user", user));
    let roles = document.role.iter().map(of_role);
    Ok(users.chain(roles).chain(document.oidc.iter().map(of_provider)).collect())
}

fn of_user(kind: &'static str, user: &UserEntry) -> UsersFileEntry {
    UsersFileEntry {
        kind,
        name: user.name.clone(),
        access_key: Some(user.access_key.clone()),
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        buckets: user.buckets.clone(),
        prefixes: user.prefixes.clone(),
        read_only: user.read_only,
        assumed_by: Vec::new(),
        issuers: Vec::new(),
    }
}

fn of_role(role: &RoleEntry) -> UsersFileEntry {
    let mut issuers: Vec<_> = role.oidc.iter().map(|trust| trust.issuer.clone()).collect();
    issuers.dedup();
    UsersFileEntry {
        access_key: None,
        assumed_by: role.assumed_by.clone(),
        issuers,
        ..of_user("role", &role.as_user())
    }
}

fn of_provider(provider: &IdentityProviderEntry) -> UsersFileEntry {
    UsersFileEntry {
        kind: "oidc",
        name: provider.issuer.clone(),
        access_key: None,
        uid: None,
        gid: None,
        groups: Vec::new(),
        buckets: None,
        prefixes: None,
        read_only: false,
        assumed_by: Vec::new(),
        issuers: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_limits_the_actions_that_it_limits_in_a_gateway() {
        let document = |fields: &str| {
            let text = format!("[[user]]\nname='a'\naccess_key='A'\nsecret_key='s'\n{fields}");
            toml::from_str::<file::UsersDocument>(&text).unwrap()
        };
        for (fields, action, start, expected) in [
            ("", "DeleteBucket", "", ""),
            ("buckets=['data']", "GetObject", "k", ""),
            ("buckets=['other-*']", "GetObject", "k", "may not access the bucket data"),
            ("read_only=true", "GetObject", "k", ""),
            ("read_only=true", "ListBucket", "", ""),
            ("read_only=true", "PutObject", "k", "is read-only"),
            ("read_only=true", "AbortMultipartUpload", "k", "is read-only"),
            ("read_only=true", "PutBucketPolicy", "", "is read-only"),
            ("prefixes=['a/']", "PutObject", "a/k", ""),
            ("prefixes=['a/']", "GetObject", "b/k", "does not start with a prefix"),
            ("prefixes=['a/']", "ListBucket", "a/", ""),
            ("prefixes=['a/']", "ListBucketVersions", "", "does not start with a prefix"),
            ("prefixes=['a/']", "GetBucketPolicy", "", ""),
            ("prefixes=['a/']", "CreateBucket", "", "but not buckets"),
            ("prefixes=['a/']", "BypassGovernanceRetention", "a/k", "but not buckets"),
        ] {
            let entry = of_user("user", &document(fields).user[0]);
            let action = Action::new(action).unwrap();
            let found = entry.admit(action, &Bucket::new("data").unwrap(), start);
            let found = found.err().map(|error| error.detail().to_owned()).unwrap_or_default();
            assert!(
                found.contains(expected) && found.is_empty() == expected.is_empty(),
                "{fields} {action}: {found}"
            );
        }
    }
}
