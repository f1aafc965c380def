//! Grants, between S3's XML and C's structures.

use std::ffi::{CStr, c_char, c_int};

use fordway_wire::s3_xml::{self, AclDocument};

use crate::abi::{AclGrant, MAX_GRANTS, MAX_OWNER_BYTES, PERMISSION_FULL_CONTROL};
use crate::failure::{Failure, Outcome};
use crate::status::Status;

/// The groups that S3 has, with their `S3GranteeType`.
const GROUPS: &[(&str, c_int)] = &[
    ("http://acs.amazonaws.com/groups/global/AuthenticatedUsers", 2),
    ("http://acs.amazonaws.com/groups/global/AllUsers", 3),
    ("http://acs.amazonaws.com/groups/s3/LogDelivery", 4),
];
/// Names of permissions, in the order of `S3Permission`.
const PERMISSIONS: [&str; PERMISSION_FULL_CONTROL as usize + 1] =
    ["READ", "WRITE", "READ_ACP", "WRITE_ACP", "FULL_CONTROL"];

/// Who is granted something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grantee {
    /// By e-mail address.
    Email(String),
    /// By canonical id.
    User { id: String, name: String },
    /// By `S3GranteeType`.
    Group(c_int),
}

/// One grant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) grantee: Grantee,
    /// `S3Permission`.
    pub(crate) permission: c_int,
}

/// An access control list, as `S3_convert_acl` tells it.
#[derive(Debug)]
pub(crate) struct Acl {
    pub(crate) owner_id: String,
    pub(crate) owner_name: String,
    pub(crate) grants: Vec<AclGrant>,
}

impl Acl {
    /// Reads S3's document. Errors: what is none, or does not fit in C's structures.
    pub(crate) fn read(document: &[u8]) -> Outcome<Acl> {
        let read = s3_xml::access_control_policy(document);
        let AclDocument { owner_id, owner_name, grants } = read.map_err(|error| {
            Failure::refused(Status::XmlParseFailure, format!("the access control list: {}", error.detail()))
        })?;
        if grants.len() > MAX_GRANTS {
            let why = format!("there are {} grants; {MAX_GRANTS} fit", grants.len());
            return Err(Failure::refused(Status::TooManyGrants, why));
        }
        fits(&owner_id, Status::UserIdTooLong)?;
        fits(&owner_name, Status::UserDisplayNameTooLong)?;
        let grants = grants.into_iter().map(|grant| Grant::read(grant)?.to_c()).collect::<Outcome<_>>()?;
        Ok(Acl { owner_id, owner_name, grants })
    }
}

impl Grant {
    fn read(grant: s3_xml::AclGrant) -> Outcome<Grant> {
        let s3_xml::AclGrant { email, id, name, uri, permission } = grant;
        let group = GROUPS.iter().find(|(name, _)| *name == uri).map(|(_, number)| *number);
        let grantee = match (email.is_empty(), id.is_empty(), group) {
            (false, ..) => Grantee::Email(email),
            (true, false, _) => Grantee::User { id, name },
            (true, true, Some(group)) => Grantee::Group(group),
            (true, true, None) => {
                let why = format!("the group {uri:?} is not one of S3's");
                return Err(Failure::refused(Status::BadGrantee, why));
            }
        };
        let number = PERMISSIONS.iter().position(|known| *known == permission).ok_or_else(|| {
            Failure::refused(
                Status::BadPermission,
                format!("the permission {permission:?} is not one of S3's"),
            )
        })?;
        Ok(Grant { grantee, permission: number as c_int })
    }

    /// Errors: a text that is longer than its field.
    pub(crate) fn to_c(&self) -> Outcome<AclGrant> {
        let (grantee_type, first, second) = match &self.grantee {
            Grantee::Email(address) => (0, fits(address, Status::EmailAddressTooLong)?, [0; MAX_OWNER_BYTES]),
            Grantee::User { id, name } => {
                (1, fits(id, Status::UserIdTooLong)?, fits(name, Status::UserDisplayNameTooLong)?)
            }
            Grantee::Group(number) => (*number, [0; MAX_OWNER_BYTES], [0; MAX_OWNER_BYTES]),
        };
        Ok(AclGrant { grantee_type, grantee: [first, second], permission: self.permission })
    }
}

impl Grantee {
    pub(crate) fn of_c(grant: &AclGrant) -> Grantee {
        let [first, second] = &grant.grantee;
        match grant.grantee_type {
            0 => Grantee::Email(field(first)),
            1 => Grantee::User { id: field(first), name: field(second) },
            group => Grantee::Group(group),
        }
    }
}

/// `text` in a field, with its NUL. Errors: `too_long`.
fn fits(text: &str, too_long: Status) -> Outcome<[c_char; MAX_OWNER_BYTES]> {
    let mut field = [0; MAX_OWNER_BYTES];
    if text.len() >= MAX_OWNER_BYTES {
        return Err(Failure::refused(too_long, format!("{text:?} has over {} bytes", MAX_OWNER_BYTES - 1)));
    }
    for (to, byte) in field.iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    Ok(field)
}

/// The text in a field, up to its NUL.
fn field(bytes: &[c_char; MAX_OWNER_BYTES]) -> String {
    let bytes = bytes.map(|byte| byte as u8);
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(grants: &str) -> String {
        format!(
            "<AccessControlPolicy><Owner><ID>me</ID><DisplayName>Me</DisplayName></Owner>\
             <AccessControlList>{grants}</AccessControlList></AccessControlPolicy>"
        )
    }

    fn grant(grantee: &str, permission: &str) -> String {
        format!("<Grant><Grantee>{grantee}</Grantee><Permission>{permission}</Permission></Grant>")
    }

    #[test]
    fn every_grantee_and_permission_survives() {
        let grantees = [
            ("<EmailAddress>a@b</EmailAddress>", Grantee::Email("a@b".into())),
            ("<ID>x</ID><DisplayName>X</DisplayName>", Grantee::User { id: "x".into(), name: "X".into() }),
            (&format!("<URI>{}</URI>", GROUPS[0].0), Grantee::Group(2)),
            (&format!("<URI>{}</URI>", GROUPS[1].0), Grantee::Group(3)),
            (&format!("<URI>{}</URI>", GROUPS[2].0), Grantee::Group(4)),
        ];
        let grants: String =
            grantees.iter().zip(PERMISSIONS).map(|((xml, _), permission)| grant(xml, permission)).collect();
        let acl = Acl::read(document(&grants).as_bytes()).unwrap();
        assert_eq!((acl.owner_id.as_str(), acl.owner_name.as_str()), ("me", "Me"));
        for (index, (found, (_, wanted))) in acl.grants.iter().zip(&grantees).enumerate() {
            assert_eq!((&Grantee::of_c(found), found.permission), (wanted, index as c_int));
        }
        assert_eq!(acl.grants.len(), grantees.len());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = "x".repeat(MAX_OWNER_BYTES);
        let user = "<ID>x</ID><DisplayName>X</DisplayName>";
        for (grants, status) in [
            (grant(&format!("<EmailAddress>{long}</EmailAddress>"), "READ"), Status::EmailAddressTooLong),
            (grant(&format!("<ID>{long}</ID>"), "READ"), Status::UserIdTooLong),
            (grant("<URI>http://elsewhere</URI>", "READ"), Status::BadGrantee),
            (grant(user, "DANCE"), Status::BadPermission),
            (grant(user, "READ").repeat(MAX_GRANTS + 1), Status::TooManyGrants),
            ("<Grant>".to_owned(), Status::XmlParseFailure),
        ] {
            let failure = Acl::read(document(&grants).as_bytes()).expect_err("it does not fit");
            assert_eq!(failure.number(crate::abi::Abi::V4_1), status as i32);
        }
    }
}
