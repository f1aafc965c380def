//! The credentials file: the users and roles of a gateway, with their keys, uids and buckets.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{Errno, PeerCredentials, get_xattr, group_id, is_in_group, user_id};
use fordway_wire::size_text::parse_bytes;
use serde::Deserialize;

use crate::AccessKeyPair;
use crate::limits::{UserLimitOverrides, WEIGHT_MAX};
use crate::sts::{IdentityProviderEntry, RoleTrust};

/// The maximum size of a credentials file in bytes, enough for about 10,000 users.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// One user's entry in the file.
#[derive(Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct UserEntry {
    pub(super) name: String,
    pub(super) access_key: String,
    secret_key: String,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    #[serde(default)]
    pub(super) groups: Vec<u32>,
    /// Names and name patterns of buckets; `None` allows all buckets.
    pub(super) buckets: Option<Vec<String>>,
    /// The prefixes of the keys that the user may read and write; `None` allows all keys.
    pub(super) prefixes: Option<Vec<String>>,
    #[serde(default)]
    pub(super) read_only: bool,
    /// The maximum number of requests in flight.
    requests: Option<u32>,
    /// The maximum number of bytes per second, such as `"200MB"`.
    rate: Option<String>,
    /// The share of a busy thread, relative to other users.
    weight: Option<u32>,
}

/// One role's entry in the file. A role is an identity without keys, which users can assume.
#[derive(Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleEntry {
    pub(super) name: String,
    uid: Option<u32>,
    gid: Option<u32>,
    #[serde(default)]
    groups: Vec<u32>,
    buckets: Option<Vec<String>>,
    prefixes: Option<Vec<String>>,
    #[serde(default)]
    read_only: bool,
    requests: Option<u32>,
    rate: Option<String>,
    weight: Option<u32>,
    /// The names of the users who may assume the role; `*` means all users.
    #[serde(default)]
    pub(super) assumed_by: Vec<String>,
    /// The claims of a web identity that contain the uid and the gid, instead of `uid` and `gid`.
    uid_claim: Option<String>,
    gid_claim: Option<String>,
    /// The minimum uid and gid that a claim may contain.
    id_min: Option<u32>,
    /// The web identities that may assume the role.
    #[serde(default)]
    pub(super) oidc: Vec<RoleTrust>,
    /// The maximum lifetime of a session, in seconds.
    max_duration_s: Option<u64>,
}

/// The content of the file.
#[derive(Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct UsersDocument {
    #[serde(default)]
    pub(super) user: Vec<UserEntry>,
    #[serde(default)]
    pub(super) role: Vec<RoleEntry>,
    #[serde(default)]
    pub(super) oidc: Vec<IdentityProviderEntry>,
}

/// The allowed values of `max_duration_s` (AWS's limits on a role).
const ROLE_DURATION_S: std::ops::RangeInclusive<u64> = 900..=43_200;
const ROLE_DURATION_DEFAULT_S: u64 = 3600;

impl RoleEntry {
    /// Returns the entry as a user entry with placeholder keys.
    pub(super) fn as_user(&self) -> UserEntry {
        UserEntry {
            name: self.name.clone(),
            access_key: "-".to_owned(),
            secret_key: "-".to_owned(),
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            buckets: self.buckets.clone(),
            prefixes: self.prefixes.clone(),
            read_only: self.read_only,
            requests: self.requests,
            rate: self.rate.clone(),
            weight: self.weight,
        }
    }

    /// Returns the names of the claims that contain the uid and gid of the role; `None` if claims do not contain them.
    pub(super) fn id_claims(&self) -> Option<UidGidClaimNames> {
        let (uid, gid) = self.uid_claim.clone().zip(self.gid_claim.clone())?;
        Some(UidGidClaimNames { uid, gid, min: self.id_min.unwrap_or(ID_MIN_DEFAULT) })
    }

    /// Checks the fields about claims that contain a uid and a gid. Errors: the reason why a field is invalid.
    fn check_id_claims(&self, own_uid: u32) -> std::result::Result<(), &'static str> {
        let has_fixed = self.uid.or(self.gid).is_some() || !self.groups.is_empty();
        match (&self.uid_claim, &self.gid_claim) {
            (None, None) if self.id_min.is_some() => Err("id_min needs uid_claim and gid_claim"),
            (None, None) => Ok(()),
            (None, _) | (_, None) => Err("uid_claim and gid_claim need each other"),
            _ if has_fixed => Err("claims replace uid, gid and groups; remove these"),
            _ if !self.assumed_by.is_empty() => Err("users have no claims; remove assumed_by"),
            _ if self.id_min == Some(0) => Err("id_min must be at least 1: no claim makes anyone root"),
            _ if own_uid != 0 => Err("only a gateway that root runs can act as the uid in a claim"),
            _ => Ok(()),
        }
    }

    pub(super) fn max_duration_s(&self) -> u64 {
        self.max_duration_s.unwrap_or(ROLE_DURATION_DEFAULT_S)
    }

    /// Checks the entry, and its references to other entries of the file. `users` are the names of the users, and
    /// `issuers` are the issuers of the identity providers. Errors: `InvalidArgument`.
    fn check(&self, own_uid: u32, users: &HashSet<&str>, issuers: &HashSet<&str>) -> Result<()> {
        let wrong =
            |why: String| Err(Error::new(ErrorKind::InvalidArgument, format!("role {:?}: {why}", self.name)));
        let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(is_of_names) {
            return wrong("a name has 1 to 64 letters, digits and characters of _+=,.@-".to_owned());
        }
        if let Err(why) = self.check_id_claims(own_uid) {
            return wrong(why.to_owned());
        }
        let acted_as = self.id_claims().map(|claims| (claims.min, claims.min));
        self.as_user().acting_as(acted_as).check(own_uid, "role")?;
        let is_user = |name: &String| users.contains(name.as_str());
        if is_user(&self.name) {
            return wrong("a user has the same name; choose another".to_owned());
        }
        if let Some(name) = self.assumed_by.iter().find(|name| *name != "*" && !is_user(name)) {
            return wrong(format!("assumed_by names {name:?}, but there is no such user"));
        }
        if let Some(why) = self.oidc.iter().find_map(|trust| trust.check(issuers).err()) {
            return wrong(why);
        }
        match ROLE_DURATION_S.contains(&self.max_duration_s()) {
            true => Ok(()),
            false => wrong("max_duration_s must be 900 to 43200".to_owned()),
        }
    }
}

/// The properties of a file that change if the file is changed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileFingerprint {
    inode: u64,
    modified_ns: i128,
    size: u64,
}

impl FileFingerprint {
    /// Returns the properties of a file; `None` if the file does not exist.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        let modified_ns = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
        Some(FileFingerprint { inode: found.ino(), modified_ns, size: found.len() })
    }
}

/// The names of the claims that contain the uid and gid of a role.
#[derive(Clone, Debug)]
pub(crate) struct UidGidClaimNames {
    pub(crate) uid: String,
    pub(crate) gid: String,
    /// The minimum value of the uid and of the gid.
    pub(crate) min: u32,
}

/// The first uid of ordinary users on most systems.
const ID_MIN_DEFAULT: u32 = 1000;

impl UserEntry {
    /// Returns the entry with this uid and gid, and without further groups. If `ids` is `None`, returns the entry
    /// unchanged.
    pub(super) fn acting_as(self, ids: Option<(u32, u32)>) -> Self {
        match ids {
            None => self,
            Some((uid, gid)) => UserEntry { uid: Some(uid), gid: Some(gid), groups: Vec::new(), ..self },
        }
    }

    pub(super) fn keys(&self) -> AccessKeyPair {
        AccessKeyPair { access_key: self.access_key.clone(), secret_key: self.secret_key.clone() }
    }

    /// Returns the limits from the entry.
    pub(super) fn limits(&self) -> UserLimitOverrides {
        let rate = self.rate.as_deref().and_then(|text| parse_bytes(text).ok());
        UserLimitOverrides {
            requests_max: self.requests,
            bytes_per_s_max: rate.and_then(NonZeroU64::new),
            weight: self.weight,
        }
    }

    /// Checks the patterns of buckets and the prefixes. Errors: the reason why a pattern or prefix would match nothing.
    fn check_names(&self) -> std::result::Result<(), String> {
        if let Some(name) = self.buckets.iter().flatten().find(|name| name.contains('/')) {
            return Err(format!(
                "the bucket {name:?} matches nothing, because names of buckets have no slash"
            ));
        }
        self.prefixes.iter().flatten().try_for_each(|prefix| check_prefix(prefix))
    }

    /// Checks the limits. Errors: the reason why a limit is invalid.
    fn check_limits(&self) -> std::result::Result<(), String> {
        if self.requests == Some(0) {
            return Err("requests must be at least 1".to_owned());
        }
        if self.weight.is_some_and(|weight| !(1..=WEIGHT_MAX).contains(&weight)) {
            return Err(format!("weight must be 1 to {WEIGHT_MAX}"));
        }
        match self.rate.as_deref().map(parse_bytes) {
            None => Ok(()),
            Some(Ok(0)) => Err("rate must be at least 1 byte per second".to_owned()),
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(format!("rate is not a number of bytes per second: {error}")),
        }
    }

    /// Returns the uid and groups that access files for the user; `None` for the gateway's own uid and groups.
    pub(super) fn acts_as(&self) -> Option<PeerCredentials> {
        let (uid, gid) = (self.uid?, self.gid.unwrap_or_else(group_id));
        let is_own = uid == user_id() && gid == group_id() && self.groups.is_empty();
        let mut groups = self.groups.clone();
        groups.sort_unstable();
        (!is_own).then_some(PeerCredentials { uid, gid, groups })
    }

    /// Checks the entry. `what` is the kind of entry, `user` or `role`. Errors: `InvalidArgument`.
    fn check(&self, own_uid: u32, what: &str) -> Result<()> {
        let wrong = |why: String| {
            Err(Error::new(ErrorKind::InvalidArgument, format!("{what} {:?}: {why}", self.name)))
        };
        if self.name.is_empty() || self.access_key.is_empty() || self.secret_key.is_empty() {
            return wrong("name, access_key and secret_key must not be empty".to_owned());
        }
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if !printable(&self.access_key) || self.name.chars().any(char::is_control) {
            return wrong(
                "the access key must be printable ASCII without a slash, and the name must not have a line break".to_owned(),
            );
        }
        if let Err(why) = self.check_names().and_then(|()| self.check_limits()) {
            return wrong(why);
        }
        match (own_uid, self.uid) {
            (0, None) => wrong(format!("the gateway runs as root, so state the {what}'s uid and gid")),
            (0, Some(uid)) if uid != 0 && self.gid.is_none() => wrong("a uid needs a gid".to_owned()),
            (0, _) => Ok(()),
            (own, Some(uid)) if uid != own => wrong(format!(
                "its uid is {uid}, and the gateway, which runs as {own}, cannot act as another user; run it as root, or \
                 start a gateway as that user"
            )),
            (..) if self.gid.is_some_and(|gid| gid != group_id()) || !self.groups.is_empty() => wrong(
                "a gateway that does not run as root keeps its own groups; remove gid and groups".to_owned(),
            ),
            (..) => Ok(()),
        }
    }
}

/// Checks a prefix of keys. Keys may begin with a slash and may contain `*`. A prefix of this form, however, is
/// probably meant as a path or a pattern, and would match nothing. Errors: the reason, and what to write instead.
fn check_prefix(prefix: &str) -> std::result::Result<(), String> {
    let meant = prefix.trim_start_matches('/').trim_end_matches('*');
    let instead = match meant {
        "" if prefix.is_empty() => {
            return Err("a prefix must not be empty; omit prefixes to allow all keys".to_owned());
        }
        "" => "omit prefixes to allow all keys".to_owned(),
        meant if meant.contains('*') => "prefixes have no wildcards; list each prefix".to_owned(),
        meant => format!("write {meant:?}"),
    };
    if prefix.contains("://") {
        Err(format!(
            "the prefix {prefix:?} is a URL, but a prefix names no bucket; write `buckets` for the bucket"
        ))
    } else if prefix.starts_with('/') {
        Err(format!("the prefix {prefix:?} matches only keys that start with a slash; {instead}"))
    } else if prefix.contains('*') {
        Err(format!("the prefix {prefix:?} matches only keys that contain `*`; {instead}"))
    } else {
        Ok(())
    }
}

/// Reads and checks the credentials file. Errors: as for [`crate::users::Users::from_file`].
pub(super) fn read(path: &Path) -> Result<UsersDocument> {
    let text = read_private(path)?;
    let wrong = |why: String| Error::new(ErrorKind::InvalidArgument, format!("{}: {why}", path.display()));
    let document: UsersDocument = toml::from_str(&text).map_err(|error| {
        // The parser's complete message would quote the line, which may contain a secret.
        let line = error.span().map_or(0, |span| 1 + text[..span.start].matches('\n').count());
        // If a value has the wrong type, the message quotes the value, which may be a secret that was written without
        // quotes.
        let why = match error.message().split_once(", expected ") {
            Some((found, expected)) if found.starts_with("invalid ") => format!("expected {expected}"),
            _ => error.message().to_owned(),
        };
        wrong(format!("line {line}: {why}"))
    })?;
    check(&document, user_id()).map_err(|error| wrong(error.detail().to_owned()))?;
    Ok(document)
}

fn check(document: &UsersDocument, own_uid: u32) -> Result<()> {
    let UsersDocument { user: entries, role: roles, oidc: providers } = document;
    let wrong = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
    if entries.is_empty() {
        return wrong("it contains no [[user]]".to_owned());
    }
    // The file may have thousands of entries, so names are looked up in sets.
    let (mut users, mut access_keys) = (HashSet::new(), HashSet::new());
    for entry in entries {
        entry.check(own_uid, "user")?;
        if !users.insert(entry.name.as_str()) {
            return wrong(format!("the user {:?} appears twice", entry.name));
        }
        if !access_keys.insert(entry.access_key.as_str()) {
            return wrong(format!("the access key of {:?} also belongs to another user", entry.name));
        }
    }
    let mut issuers = HashSet::new();
    for provider in providers {
        if let Err(why) = provider.check() {
            return wrong(format!("oidc {:?}: {why}", provider.issuer));
        }
        if !issuers.insert(provider.issuer.as_str()) {
            return wrong(format!("the issuer {:?} appears twice", provider.issuer));
        }
    }
    let mut names = HashSet::new();
    for role in roles {
        role.check(own_uid, &users, &issuers)?;
        if !names.insert(role.name.as_str()) {
            return wrong(format!("the role {:?} appears twice", role.name));
        }
    }
    Ok(())
}

/// Reads a file that contains secrets. Errors: `AccessDenied` if other users may read or write the file;
/// `InvalidArgument`.
pub(crate) fn read_private(path: &Path) -> Result<String> {
    let failed = |error: std::io::Error| {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "does not exist; correct the path, or create the file with mode 600"
            }
            std::io::ErrorKind::PermissionDenied => {
                "cannot be read; make the gateway's user its owner with `chown`"
            }
            _ => "cannot be read",
        };
        Error::new(ErrorKind::InvalidArgument, format!("{} {why}", path.display())).caused_by(error)
    };
    let file = File::open(path).map_err(failed)?;
    // The metadata is read from the open file, so nobody can replace the file between the check and the read.
    let found = file.metadata().map_err(failed)?;
    let mode = found.mode() & 0o777;
    let checked = check_private(found.uid(), mode, user_id()).and_then(|()| match mode & GROUP_MAY_READ {
        0 => Ok(()),
        _ => check_group(is_in_group(found.gid()), has_acl(&file)),
    });
    checked.map_err(|why| Error::new(ErrorKind::AccessDenied, format!("{} {why}", path.display())))?;
    let mut text = String::new();
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    // A file that exceeds the limit is refused rather than truncated, because the beginning of the file could be a
    // valid file with fewer users.
    match bytes as u64 > FILE_BYTES_MAX {
        true => {
            let why = format!("{} is larger than {FILE_BYTES_MAX} bytes", path.display());
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        false => Ok(text),
    }
}

/// The bit of a mode that permits the file's group to read the file.
const GROUP_MAY_READ: u32 = 0o040;

/// Checks that only the gateway's user and root may read or write a file that contains secrets. A file of root may also
/// be readable by its group, so that a gateway that does not run as root can read the file. Kubernetes creates the
/// files of a Secret with this owner and mode. [`check_group`] checks the group. Errors: the reason.
fn check_private(owner: u32, mode: u32, own_uid: u32) -> std::result::Result<(), String> {
    if owner != own_uid && owner != 0 {
        return Err("belongs to another user, who could add anyone to it; chown it".to_owned());
    }
    let (refused, permitted) = if owner == 0 && own_uid != 0 { (0o037, "640") } else { (0o077, "600") };
    match mode & refused {
        0 => Ok(()),
        _ => Err(format!(
            "holds secrets and may be read or written by others (mode {mode:o}); run `chmod {permitted}` on it"
        )),
    }
}

/// Checks a file that its group may read. The gateway must be in this group, and the file must have no ACL, because an
/// ACL can permit other users to read the file. Errors: the reason why the file is refused.
fn check_group(is_of_gateway: bool, has_acl: bool) -> std::result::Result<(), String> {
    if !is_of_gateway {
        return Err("holds secrets and may be read by a group that the gateway does not belong to; run `chmod 600` on \
                    it, or make a group of the gateway its group with `chgrp`"
            .to_owned());
    }
    // If a file has an ACL, the group bits of its mode are the mask of the ACL, which also covers other users.
    if has_acl {
        return Err(
            "holds secrets and may be read by those whom its ACL names; run `setfacl -b` on it".to_owned()
        );
    }
    Ok(())
}

/// Returns whether a file has a POSIX ACL. Also returns true if the attribute with the ACL cannot be read.
fn has_acl(file: &File) -> bool {
    !matches!(get_xattr(file, c"system.posix_acl_access", &mut [0; 64]), Ok(None) | Err(Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn parsed(text: &str, own_uid: u32) -> std::result::Result<Vec<UserEntry>, String> {
        let document: UsersDocument = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        check(&document, own_uid).map_err(|error| error.detail().to_owned())?;
        Ok(document.user)
    }

    const IDS: &str = "uid_claim='u'\ngid_claim='g'\n";
    const OIDC: &str = "[[oidc]]\nissuer='https://i.example'\naudience=['a']\n";
    const TRUST: &str = "[[role.oidc]]\nissuer='https://i.example'\n[role.oidc.claims]\nsub=['s']\n";
    const ALICE: &str = "[[user]]\nname='alice'\naccess_key='A'\nsecret_key='s'\n";

    /// Checks that each file is refused for the given reason, if the gateway's user has the given uid.
    fn refused(files: &[(&str, u32, &str)]) {
        for (text, own_uid, why) in files {
            let said = parsed(text, *own_uid).err().unwrap_or_default();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_user_is_said() {
        refused(&[
            ("", 0, "no [[user]]"),
            (ALICE, 0, "state the user's uid"),
            (&format!("{ALICE}uid=7"), 0, "a uid needs a gid"),
            (&format!("{ALICE}uid=7\ngid=7"), 1000, "cannot act as another"),
            (&format!("{ALICE}groups=[7]"), 1000, "keeps its own groups"),
            (&format!("{ALICE}uid=7\ngid=7\nreadonly=true"), 0, "unknown field"),
            (&format!("{ALICE}{ALICE}"), 1000, "appears twice"),
            (&format!("{ALICE}{}", ALICE.replace("alice", "bob")), 1000, "also belongs to another user"),
            (&ALICE.replace("'A'", "'a/b'"), 1000, "without a slash"),
            (&format!("{ALICE}requests=0"), 1000, "requests must be"),
            (&format!("{ALICE}weight=1001"), 1000, "weight must be 1 to 1000"),
            (&format!("{ALICE}rate='fast'"), 1000, "rate is not a number of bytes"),
        ]);
    }

    #[test]
    fn what_is_wrong_with_names_is_said() {
        refused(&[
            (&format!("{ALICE}prefixes=['']"), 1000, "a prefix must not be empty"),
            (
                &format!("{ALICE}prefixes=['home/alice/*']"),
                1000,
                "the prefix \"home/alice/*\" matches only keys that contain `*`; write \"home/alice/\"",
            ),
            (&format!("{ALICE}prefixes=['a/', '*']"), 1000, "omit prefixes to allow all keys"),
            (&format!("{ALICE}prefixes=['**']"), 1000, "omit prefixes to allow all keys"),
            (
                &format!("{ALICE}prefixes=['home/*/data']"),
                1000,
                "prefixes have no wildcards; list each prefix",
            ),
            (&format!("{ALICE}prefixes=['/home/alice/']"), 1000, "start with a slash; write \"home/alice/\""),
            (&format!("{ALICE}prefixes=['/']"), 1000, "omit prefixes to allow all keys"),
            (&format!("{ALICE}prefixes=['//home/*']"), 1000, "start with a slash; write \"home/\""),
            (&format!("{ALICE}prefixes=['/home/*/x']"), 1000, "prefixes have no wildcards"),
            (&format!("{ALICE}prefixes=['s3://lab/home/']"), 1000, "names no bucket"),
            (&format!("{ALICE}buckets=['lab/home']"), 1000, "names of buckets have no slash"),
            (&format!("{ALICE}buckets=['s3://lab']"), 1000, "names of buckets have no slash"),
        ]);
    }

    #[test]
    fn what_is_wrong_with_a_role_is_said() {
        refused(&[
            (&format!("{ALICE}[[role]]\nname='r'\nprefixes=['/a']"), 1000, "role \"r\": the prefix \"/a\""),
            (&format!("{ALICE}uid=7\ngid=7\n[[role]]\nname='r'"), 0, "state the role's uid"),
            (&format!("{ALICE}[[role]]\nname='r\u{fc}'"), 1000, "a name has 1 to 64"),
            (&format!("{ALICE}[[role]]\nname='alice'"), 1000, "a user has the same name"),
            (&format!("{ALICE}[[role]]\nname='r'\n[[role]]\nname='r'"), 1000, "\"r\" appears twice"),
            (&format!("{ALICE}[[role]]\nname='r'\nassumed_by=['bob']"), 1000, "no such user"),
            (&format!("{ALICE}[[role]]\nname='r'\nmax_duration_s=899"), 1000, "must be 900 to 43200"),
            (&format!("{ALICE}[[role]]\nname='r'\nsecret_key='s'"), 1000, "unknown field"),
            (&format!("{ALICE}[[role]]\nname='r'\n{TRUST}"), 1000, "there is no [[oidc]] with the issuer"),
            (
                &format!("{ALICE}[[role]]\nname='r'\n{TRUST}{OIDC}").replace("sub=['s']", ""),
                1000,
                "at least one claim",
            ),
            (&format!("{ALICE}[[role]]\nname='r'\nuid_claim='u'"), 1000, "need each other"),
            (&format!("{ALICE}[[role]]\nname='r'\nid_min=5"), 1000, "id_min needs"),
            (&format!("{ALICE}[[role]]\nname='r'\n{IDS}"), 1000, "only a gateway that root runs"),
            (&format!("{ALICE}[[role]]\nname='r'\n{IDS}uid=7"), 1000, "claims replace"),
            (&format!("{ALICE}[[role]]\nname='r'\n{IDS}assumed_by=['alice']"), 1000, "users have no claims"),
            (&format!("{ALICE}[[role]]\nname='r'\n{IDS}id_min=0"), 1000, "id_min must be"),
            (&format!("{ALICE}{OIDC}{OIDC}"), 1000, "appears twice"),
            (&format!("{ALICE}{OIDC}").replace("https", "http"), 1000, "must be https"),
        ]);
    }

    #[test]
    fn a_user_acts_as_its_uid_and_groups() {
        let uid = user_id();
        assert_eq!(parsed(&format!("{ALICE}uid={uid}\ngid={}", group_id()), uid).unwrap()[0].acts_as(), None);
        let other = parsed(&format!("{ALICE}uid=7\ngid=8\ngroups=[10, 9]"), 0).unwrap()[0].acts_as();
        assert_eq!(other, Some(PeerCredentials { uid: 7, gid: 8, groups: vec![9, 10] }));
    }

    #[test]
    fn the_last_of_many_entries_is_compared_with_all() {
        const MANY: usize = 10_000;
        let user = |at: usize| format!("[[user]]\nname='u{at}'\naccess_key='A{at}'\nsecret_key='s'\n");
        let role = |at: usize| format!("[[role]]\nname='r{at}'\nassumed_by=['u{}']\n", MANY - 1 - at);
        let users: String = (0..MANY).map(user).collect();
        let roles: String = (0..MANY).map(role).collect();
        assert_eq!(parsed(&format!("{users}{roles}"), 1000).map(|users| users.len()), Ok(MANY));
        for (more, why) in [
            (user(0), "the user \"u0\" appears twice"),
            (
                user(0).replace('u', "v").replace("vser", "user"),
                "the access key of \"v0\" also belongs to another user",
            ),
            (format!("{roles}{}", role(0)), "the role \"r0\" appears twice"),
            ("[[role]]\nname='u9'\n".to_owned(), "role \"u9\": a user has the same name"),
        ] {
            let said = parsed(&format!("{users}{more}"), 1000).err().unwrap_or_default();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn only_a_file_of_root_may_be_readable_by_its_group() {
        for (owner, mode, own_uid) in
            [(7, 0o600, 7), (0, 0o600, 0), (0, 0o400, 0), (0, 0o440, 7), (0, 0o640, 7)]
        {
            assert_eq!(check_private(owner, mode, own_uid), Ok(()), "{owner} {mode:o} {own_uid}");
        }
        for (owner, mode, own_uid) in
            [(7, 0o440, 7), (0, 0o440, 0), (0, 0o660, 7), (0, 0o444, 7), (0, 0o604, 7), (8, 0o600, 7)]
        {
            assert!(check_private(owner, mode, own_uid).is_err(), "{owner} {mode:o} {own_uid}");
        }
    }

    #[test]
    fn a_group_that_reads_is_one_of_the_gateway() {
        assert_eq!(check_group(true, false), Ok(()));
        assert!(check_group(false, false).unwrap_err().contains("chgrp"));
        assert!(check_group(true, true).unwrap_err().contains("setfacl -b"));
        let group = group_id();
        assert_eq!((is_in_group(group), is_in_group(group + 12_345)), (true, false));
    }

    #[test]
    fn an_acl_is_found() {
        let file = tempfile::tempfile().unwrap();
        assert!(!has_acl(&file));
        // The entries of an ACL (the tag, the permissions and the ID) in the format of the kernel: the owner, a user,
        // the group, the mask and others.
        let entries =
            [(1, 6, u32::MAX), (2, 4, user_id()), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            acl.extend_from_slice(&u16::to_le_bytes(tag));
            acl.extend_from_slice(&u16::to_le_bytes(permissions));
            acl.extend_from_slice(&u32::to_le_bytes(id));
        }
        match fordway_sys::set_xattr(&file, c"system.posix_acl_access", &acl) {
            Ok(()) => {
                assert_eq!(
                    file.metadata().unwrap().mode() & 0o777,
                    0o640,
                    "the mask is in place of the group"
                );
                assert!(has_acl(&file));
            }
            Err(error) => assert_eq!(error, Errno::OPNOTSUPP),
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_and_no_secret_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials.toml");
        let set = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path).err().unwrap()
        };
        assert_eq!(set(ALICE, 0o640).kind(), ErrorKind::AccessDenied);
        let broken = set("[[user]]\nname='a'\nsecret_key='hidden\n", 0o600);
        assert!(broken.detail().contains("line 3") && !broken.to_string().contains("hidden"), "{broken}");
        let number = set(&ALICE.replace("'s'", "271828182845"), 0o600);
        assert!(number.detail().ends_with("line 4: expected a string"), "{number}");
        let unknown = set(&format!("{ALICE}of_the_future = 1\n"), 0o600);
        assert!(unknown.detail().contains("unknown field `of_the_future`"), "{unknown}");
        let long = format!("{ALICE}#{}", "x".repeat(FILE_BYTES_MAX as usize));
        assert!(set(&long, 0o600).detail().contains("is larger than"));
    }
}
