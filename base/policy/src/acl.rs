//! Canned bucket ACLs (see "Access control list (ACL) overview" in the S3 user guide). An ACL permits everybody, or all
//! users with keys, to perform actions on a bucket. An ACL never denies anything.

use crate::principal::Principal;
use crate::request::AccessRequest;

/// One of S3's canned bucket ACLs. A bucket without an ACL has the ACL `Private`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CannedAcl {
    /// Only the owner has access.
    #[default]
    Private,
    /// Everybody may list the bucket.
    PublicRead,
    /// Everybody may list the bucket and create objects.
    PublicReadWrite,
    /// All users with keys may list the bucket.
    AuthenticatedRead,
}

/// The callers to whom a grant of an ACL applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclGroup {
    /// All callers, including anonymous ones.
    AllUsers,
    /// All callers with keys.
    AuthenticatedUsers,
}

/// The permission of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclPermission {
    /// Listing the bucket's objects, versions and uploads.
    Read,
    /// Creating objects.
    Write,
}

/// A grant of an ACL: a group of callers, and the permission that the group has.
pub type AclGrant = (AclGroup, AclPermission);

impl CannedAcl {
    /// All supported canned bucket ACLs.
    pub const ALL: [CannedAcl; 4] =
        [CannedAcl::Private, CannedAcl::PublicRead, CannedAcl::PublicReadWrite, CannedAcl::AuthenticatedRead];

    /// Returns the ACL with this name, such as `public-read`; `None` for any other name.
    pub fn named(name: &str) -> Option<Self> {
        CannedAcl::ALL.into_iter().find(|acl| acl.name() == name)
    }

    /// Returns the name of the ACL.
    pub fn name(self) -> &'static str {
        match self {
            CannedAcl::Private => "private",
            CannedAcl::PublicRead => "public-read",
            CannedAcl::PublicReadWrite => "public-read-write",
            CannedAcl::AuthenticatedRead => "authenticated-read",
        }
    }

    /// Returns the grants of the ACL, apart from the owner's grant.
    pub fn grants(self) -> &'static [AclGrant] {
        use AclGroup::{AllUsers, AuthenticatedUsers};
        use AclPermission::{Read, Write};
        match self {
            CannedAcl::Private => &[],
            CannedAcl::PublicRead => &[(AllUsers, Read)],
            CannedAcl::PublicReadWrite => &[(AllUsers, Read), (AllUsers, Write)],
            CannedAcl::AuthenticatedRead => &[(AuthenticatedUsers, Read)],
        }
    }

    /// Returns the ACL with exactly these grants, in any order; `None` if no canned ACL has these grants.
    pub fn with_grants(grants: &[AclGrant]) -> Option<Self> {
        let are_same =
            |of: &[AclGrant]| of.len() == grants.len() && of.iter().all(|grant| grants.contains(grant));
        CannedAcl::ALL.into_iter().find(|acl| are_same(acl.grants()))
    }

    /// Returns whether the ACL is public: whether it grants access to all callers or, as on AWS, to all users with
    /// keys.
    pub fn is_public(self) -> bool {
        !self.grants().is_empty()
    }

    /// Returns whether a grant allows the request.
    pub(crate) fn allows(self, request: &AccessRequest<'_>) -> bool {
        let name = request.action.short_name();
        self.grants()
            .iter()
            .any(|(group, permission)| group.has(request.principal) && permission.actions().contains(&name))
    }
}

impl AclGroup {
    /// All groups to which a canned ACL can grant access.
    pub const ALL: [AclGroup; 2] = [AclGroup::AllUsers, AclGroup::AuthenticatedUsers];

    /// Returns the URI that names the group in ACL documents.
    pub fn uri(self) -> &'static str {
        match self {
            AclGroup::AllUsers => "http://acs.amazonaws.com/groups/global/AllUsers",
            AclGroup::AuthenticatedUsers => "http://acs.amazonaws.com/groups/global/AuthenticatedUsers",
        }
    }

    fn has(self, principal: Principal<'_>) -> bool {
        self == AclGroup::AllUsers || principal != Principal::Anonymous
    }
}

impl AclPermission {
    /// All permissions that a canned ACL can grant.
    pub const ALL: [AclPermission; 2] = [AclPermission::Read, AclPermission::Write];

    /// Returns the name of the permission in ACL documents.
    pub fn name(self) -> &'static str {
        match self {
            AclPermission::Read => "READ",
            AclPermission::Write => "WRITE",
        }
    }

    /// Returns the actions that the permission allows on a bucket ("Mapping of ACL permissions and access policy
    /// permissions").
    fn actions(self) -> &'static [&'static str] {
        match self {
            AclPermission::Read => &["ListBucket", "ListBucketVersions", "ListBucketMultipartUploads"],
            AclPermission::Write => &["PutObject"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::request::ConditionKeyValues;

    #[test]
    fn acls_allow_what_aws_lists() {
        let actions = |acl: CannedAcl, principal| -> Vec<&str> {
            let allowed = Action::all().filter(|action| {
                let keys = ConditionKeyValues::default();
                acl.allows(&AccessRequest { principal, action: *action, bucket: "b", key: None, keys })
            });
            allowed.map(Action::short_name).collect()
        };
        let read = ["ListBucket", "ListBucketMultipartUploads", "ListBucketVersions"];
        let write = ["ListBucket", "ListBucketMultipartUploads", "ListBucketVersions", "PutObject"];
        for (acl, anonymous, user) in [
            (CannedAcl::Private, &[][..], &[][..]),
            (CannedAcl::PublicRead, &read, &read),
            (CannedAcl::PublicReadWrite, &write, &write),
            (CannedAcl::AuthenticatedRead, &[], &read),
        ] {
            assert_eq!(actions(acl, Principal::Anonymous), anonymous, "{acl:?}");
            assert_eq!(actions(acl, Principal::User("ann")), user, "{acl:?}");
            assert_eq!(actions(acl, Principal::Role { name: "r", session: None }), user, "{acl:?}");
        }
    }

    #[test]
    fn acls_are_known_by_name_and_by_grants() {
        for acl in CannedAcl::ALL {
            assert_eq!(CannedAcl::named(acl.name()), Some(acl));
            let mut grants = acl.grants().to_vec();
            grants.reverse();
            assert_eq!(CannedAcl::with_grants(&grants), Some(acl));
        }
        assert_eq!(CannedAcl::named("aws-exec-read"), None);
        let write_only = [(AclGroup::AllUsers, AclPermission::Write)];
        assert_eq!(CannedAcl::with_grants(&write_only), None);
        assert_eq!(CannedAcl::with_grants(&[write_only[0], write_only[0]]), None);
    }
}
