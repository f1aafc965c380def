//! The callers to whom a statement applies. Each user of the gateway is a separate account with the user's name.

use crate::json::Json;

/// The caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal<'r> {
    /// The request is not signed.
    Anonymous,
    /// The request is signed by the user with this name.
    User(&'r str),
    /// The request is signed in a session of a role.
    Role {
        /// The name of the role.
        name: &'r str,
        /// The name of the session; `None` if the name is unknown. A policy then cannot name the session.
        session: Option<&'r str>,
    },
}

impl Principal<'_> {
    /// Returns the ARN of the session; `None` for a caller that is not a session of a role.
    pub(crate) fn session_arn(&self) -> Option<String> {
        match *self {
            Principal::Role { name, session } => session.map(|session| session_arn(name, session)),
            Principal::Anonymous | Principal::User(_) => None,
        }
    }
}

/// Returns the ARN of a session of a role. The account field of the ARN is empty, because a gateway has no account
/// number.
pub fn session_arn(role: &str, session: &str) -> String {
    format!("arn:aws:sts:::assumed-role/{role}/{session}")
}

/// The callers named in a `Principal` or `NotPrincipal` element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrincipalSet {
    /// Whether the set contains all callers, including anonymous ones.
    pub(crate) is_everybody: bool,
    pub(crate) users: Vec<NamedPrincipal>,
}

/// A user, a role or a session of a role, as a document names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPrincipal {
    pub(crate) name: String,
    /// Whether the document contains only the bare name, without an ARN. A user with a bare name must exist.
    pub(crate) is_bare: bool,
    pub(crate) kind: NamedKind,
}

/// The kind of caller that a document names. A role and a user with the same name are different callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NamedKind {
    User,
    /// A role; the name refers to all sessions of the role.
    Role,
    /// A session of the role; the value is the name of the session.
    Session(String),
}

impl PrincipalSet {
    pub(crate) fn has(&self, principal: Principal<'_>) -> bool {
        self.is_everybody || self.users.iter().any(|user| user.is(principal))
    }

    /// Reads `"*"`, a name, a list of names, or an object with `AWS` or `CanonicalUser`. Errors: the reason why the
    /// value is invalid.
    pub(crate) fn read(element: &Json) -> Result<Self, String> {
        let mut set = PrincipalSet { is_everybody: false, users: Vec::new() };
        match element {
            Json::Object(members) if !members.is_empty() => {
                for (kind, names) in members {
                    if !["AWS", "CanonicalUser"].contains(&kind.as_str()) {
                        return Err(format!("principals of type {kind} are not supported; name users"));
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
                _ => Err("a principal must be a string".to_owned()),
            }),
            _ => Err("name at least one principal".to_owned()),
        }
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        if text == "*" {
            self.is_everybody = true;
            return Ok(());
        }
        let user = NamedPrincipal::read(text).ok_or_else(|| format!("{text:?} does not name a user"))?;
        self.users.push(user);
        Ok(())
    }
}

impl NamedPrincipal {
    /// Returns whether this name refers to the caller.
    fn is(&self, principal: Principal<'_>) -> bool {
        match (principal, &self.kind) {
            (Principal::User(name), NamedKind::User) => self.name == name,
            (Principal::Role { name, .. }, NamedKind::Role) => self.name == name,
            (Principal::Role { name, session }, NamedKind::Session(named)) => {
                self.name == name && session == Some(named)
            }
            _ => false,
        }
    }

    /// Reads the bare name of a user, or the ARN of an account's root, a user, a role or a session. The account of an
    /// ARN is ignored, except in the ARN of an account's root.
    fn read(text: &str) -> Option<Self> {
        let Some(arn) = text.strip_prefix("arn:") else {
            let name = text.to_owned();
            return is_name(text).then_some(NamedPrincipal { name, is_bare: true, kind: NamedKind::User });
        };
        let mut parts = arn.splitn(5, ':');
        let [partition, service, region, account, resource] =
            std::array::from_fn(|_| parts.next().unwrap_or(""));
        if partition != "aws" || !region.is_empty() {
            return None;
        }
        let (name, kind) = match service {
            "iam" => NamedPrincipal::of_iam(account, resource)?,
            "sts" => NamedPrincipal::of_session(resource)?,
            _ => return None,
        };
        is_name(name).then(|| NamedPrincipal { name: name.to_owned(), is_bare: false, kind })
    }

    /// Reads the last part of the ARN of an account's root, a user or a role.
    fn of_iam<'t>(account: &'t str, resource: &'t str) -> Option<(&'t str, NamedKind)> {
        let (path, kind) = match resource.split_once('/') {
            Some(("user", path)) => (path, NamedKind::User),
            Some(("role", path)) => (path, NamedKind::Role),
            None if resource == "root" => return Some((account, NamedKind::User)),
            _ => return None,
        };
        // A path before the name is ignored.
        path.rsplit('/').next().map(|name| (name, kind))
    }

    /// Reads the last part of the ARN of a session: `assumed-role/ROLE/SESSION`.
    fn of_session(resource: &str) -> Option<(&str, NamedKind)> {
        let (role, session) = resource.strip_prefix("assumed-role/")?.split_once('/')?;
        let is_session = is_name(session) && !session.contains('/');
        is_session.then(|| (role, NamedKind::Session(session.to_owned())))
    }
}

/// Returns whether a string can be a name. Names have no wildcards.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['*', '?'])
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
        let session = |session| Principal::Role { name: "readers", session };
        assert!(role.has(session(None)) && !role.has(Principal::User("readers")));
        assert!(role.has(session(Some("night-run"))));
        let user = read("{\"AWS\": \"arn:aws:iam:::user/readers\"}").unwrap();
        assert!(user.has(Principal::User("readers")) && !user.has(session(None)));
        assert!(read("\"*\"").unwrap().has(session(None)));
    }

    #[test]
    fn a_session_is_named_by_its_role_and_its_own_name() {
        let of = |name, session| Principal::Role { name, session };
        for account in ["", "123456789012"] {
            let arn = format!("{{\"AWS\": \"arn:aws:sts::{account}:assumed-role/readers/night-run\"}}");
            let named = read(&arn).unwrap();
            assert!(named.has(of("readers", Some("night-run"))), "{arn}");
            for other in [
                of("readers", Some("day-run")),
                of("readers", None),
                of("writers", Some("night-run")),
                Principal::User("readers"),
                Principal::Anonymous,
            ] {
                assert!(!named.has(other), "{arn} {other:?}");
            }
        }
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
            "{\"AWS\": \"arn:aws:sts:::assumed-role/readers\"}",
            "{\"AWS\": \"arn:aws:sts:::assumed-role/readers/\"}",
            "{\"AWS\": \"arn:aws:sts:::assumed-role//night-run\"}",
            "{\"AWS\": \"arn:aws:sts:::assumed-role/readers/*\"}",
            "{\"AWS\": \"arn:aws:sts:::assumed-role/path/readers/night-run\"}",
            "{\"AWS\": \"arn:aws:sts:eu:1:assumed-role/readers/night-run\"}",
            "{\"AWS\": \"arn:aws:iam:::assumed-role/readers/night-run\"}",
            "{\"AWS\": \"arn:aws:sts:::federated-user/ann\"}",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
