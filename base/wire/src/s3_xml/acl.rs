//! Access control lists.

use fordway_store::Result;

use super::for_each_element;

/// An `AccessControlPolicy`. Texts that it does not have are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclDocument {
    /// The owner's canonical id.
    pub owner_id: String,
    /// The owner's name.
    pub owner_name: String,
    /// What is granted to whom.
    pub grants: Vec<AclGrant>,
}

/// One grant: of the grantee's texts, those that its kind has are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclGrant {
    /// Of a user by e-mail address.
    pub email: String,
    /// Of a user by canonical id.
    pub id: String,
    /// Of a user by canonical id: the name.
    pub name: String,
    /// Of a group.
    pub uri: String,
    /// `READ`, `WRITE`, `READ_ACP`, `WRITE_ACP` or `FULL_CONTROL`.
    pub permission: String,
}

/// Reads an `AccessControlPolicy`. Errors: `BadResponse`.
pub fn access_control_policy(document: &[u8]) -> Result<AclDocument> {
    let mut acl = AclDocument::default();
    let mut grant = AclGrant::default();
    for_each_element(document, "AccessControlPolicy", |path, text| {
        match path {
            "Owner/ID" => acl.owner_id = text.to_owned(),
            "Owner/DisplayName" => acl.owner_name = text.to_owned(),
            "AccessControlList/Grant/Grantee/EmailAddress" => grant.email = text.to_owned(),
            "AccessControlList/Grant/Grantee/ID" => grant.id = text.to_owned(),
            "AccessControlList/Grant/Grantee/DisplayName" => grant.name = text.to_owned(),
            "AccessControlList/Grant/Grantee/URI" => grant.uri = text.to_owned(),
            "AccessControlList/Grant/Permission" => grant.permission = text.to_owned(),
            "AccessControlList/Grant" => acl.grants.push(std::mem::take(&mut grant)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(acl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_do_not_mix() {
        let document = b"<AccessControlPolicy><Owner><ID>o</ID></Owner><AccessControlList>\
            <Grant><Grantee><ID>u</ID><DisplayName>U</DisplayName></Grantee><Permission>READ</Permission></Grant>\
            <Grant><Grantee><URI>g</URI></Grantee><Permission>WRITE</Permission></Grant>\
            </AccessControlList></AccessControlPolicy>";
        let acl = access_control_policy(document).unwrap();
        assert_eq!((acl.owner_id.as_str(), acl.owner_name.as_str()), ("o", ""));
        let user =
            AclGrant { id: "u".into(), name: "U".into(), permission: "READ".into(), ..Default::default() };
        let group = AclGrant { uri: "g".into(), permission: "WRITE".into(), ..Default::default() };
        assert_eq!(acl.grants, [user, group]);
    }
}
