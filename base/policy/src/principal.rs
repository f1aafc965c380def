//! The callers to whom a statement applies. Each user of the gateway is a separate account with the user's name.

use crate::json::Json;

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal<'r> {
    /// The request is not signed.
    Anonymous,
    /// The request is signed by the user with this name.
    User(&'r str),
    /// The request is signed in a session of the role with this name.
    Role(&'r str),
}

/// The callers named in a `Principal` or `NotPrincipal` element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrincipalSet {
    /// Whether the set contains all callers, including anonymous ones.
    pub(crate) is_everybody: bool,
    pub(crate) users: Vec<NamedUser>,
}

/// A user or a role, as named in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedUser {
    pub(crate) name: String,
    /// Whether the document gives only the bare name, without an ARN. A user with a bare name must exist.
    pub(crate) is_bare: bool,
    /// Whether this is the name of a role. A role and a user with the same name are different callers.
    pub(crate) is_role: bool,
}

impl PrincipalSet {
    pub(crate) fn has(&self, principal: Principal<'_>) -> bool {
        let names = |wanted: &str, is_role| {
            self.users.iter().any(|user| user.name == wanted && user.is_role == is_role)
        };
        self.is_everybody
            || match principal {
                Principal::Anonymous => false,
                Principal::User(name) => names(name, false),
                Principal::Role(name) => names(name, true),
            }
    }

    /// Reads `"*"`, a name, a list of names, or an object with `AWS` or `CanonicalUser`. Errors: the reason why the
    /// value is invalid.
    pub(crate) fn read(element: &Json) -> Result<Self, String> {
        let mut set = PrincipalSet { is_everybody: false, users: Vec::new() };
        match element {
            Json::Object(members) if !members.is_empty() => {
                for (kind, names) in members {
                    if !["AWS", "CanonicalUser"].contains(&kind.as_str()) {
                        return Err(format!("principals of the kind {kind} are not supported; name users"));
                    }
                    set.add_all(names)?;
                }
            }
            names => set.add_all(names)?,
        }
        match set.is_everybody && !set.users.is_empty() {
            true => Err("\"*\" must be the only principal; remove the names".to_owned()),
            false => Ok(set),
        }
    }

    fn add_all(&mut self, names: &Json) -> Result<(), String> {
        match names {
            Json::Text(name) => self.add(name),
            Json::List(names) if !names.is_empty() => names.iter().try_for_each(|name| match name {
                Json::Text(name) => self.add(name),
                _ => Err("a principal is a text".to_owned()),
            }),
            _ => Err("name at least one principal".to_owned()),
        }
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        if text == "*" {
            self.is_everybody = true;
            return Ok(());
        }
        let user = NamedUser::read(text).ok_or_else(|| format!("{text:?} does not name a user"))?;
        self.users.push(user);
        Ok(())
    }
}

impl NamedUser {
    /// Reads a bare name of a user, or an ARN of an account's root, of a user or of a role.
    fn read(text: &str) -> Option<Self> {
        let Some(arn) = text.strip_prefix("arn:") else {
            let is_name = !text.is_empty() && !text.contains(['*', '?']);
            return is_name.then(|| NamedUser { name: text.to_owned(), is_bare: true, is_role: false });
        };
        let mut parts = arn.splitn(5, ':');
        let [partition, service, region, account, resource] =
            std::array::from_fn(|_| parts.next().unwrap_or(""));
        let path = resource.strip_prefix("user/").or_else(|| resource.strip_prefix("role/"));
        let name = match path {
            // A path before the name is ignored.
            Some(path) => path.rsplit('/').next()?,
            None if resource == "root" => account,
            None => return None,
        };
        let is_role = resource.starts_with("role/");
        let is_whole = partition == "aws" && service == "iam" && region.is_empty();
        let is_name = !name.is_empty() && !name.contains(['*', '?']);
        (is_whole && is_name).then(|| NamedUser { name: name.to_owned(), is_bare: false, is_role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PrincipalSet, String> {
        PrincipalSet::read(&crate::json::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn users_have_three_spellings() {
        for text in [
            "\"alice\"",
            "[\"bob\", \"alice\"]",
            "{\"AWS\": \"alice\"}",
            "{\"AWS\": [\"arn:aws:iam::alice:root\"]}",
            "{\"AWS\": \"arn:aws:iam:::user/physics/alice\"}",
            "{\"AWS\": \"arn:aws:iam::123456789012:user/alice\"}",
            "{\"CanonicalUser\": \"alice\"}",
            "\"*\"",
            "{\"AWS\": [\"*\"]}",
        ] {
            assert!(read(text).unwrap().has(Principal::User("alice")), "{text}");
            assert!(text.contains('*') == read(text).unwrap().has(Principal::Anonymous), "{text}");
        }
        assert!(!read("\"alice\"").unwrap().has(Principal::User("alic")));
    }

    #[test]
    fn a_role_is_not_the_user_of_its_name() {
        let role = read("{\"AWS\": \"arn:aws:iam::123456789012:role/physics/readers\"}").unwrap();
        assert!(role.has(Principal::Role("readers")) && !role.has(Principal::User("readers")));
        let user = read("{\"AWS\": \"arn:aws:iam:::user/readers\"}").unwrap();
        assert!(user.has(Principal::User("readers")) && !user.has(Principal::Role("readers")));
        assert!(read("\"*\"").unwrap().has(Principal::Role("readers")));
    }

    #[test]
    fn other_principals_are_refused() {
        for text in [
            "\"\"",
            "[]",
            "{}",
            "{\"AWS\": \"\"}",
            "{\"AWS\": []}",
            "[\"*\", \"a\"]",
            "3",
            "[3]",
            "\"al*\"",
            "{\"Service\": \"logging.s3.amazonaws.com\"}",
            "{\"AWS\": \"arn:aws:iam::1:group/x\"}",
            "{\"AWS\": \"arn:aws:s3:::x\"}",
            "{\"AWS\": \"arn:aws:iam:::root\"}",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
