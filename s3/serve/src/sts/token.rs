//! Session tokens: documents that the gateway authenticates with its session key (HMAC-SHA256). The secret key of a
//! session is derived from the session key, the token and the secret key of the user who started the session (if any).
//! The gateway therefore stores nothing, and a session ends when its user gets a new secret key.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fordway_store::{Error, ErrorKind, Result};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::users::read_private;

/// The maximum length of a token in characters.
const TOKEN_CHARS_MAX: usize = 4096;
/// The number of bytes of the tag that authenticates a token.
const TAG_BYTES: usize = 32;
/// The minimum length of a key in a file, in characters.
const KEY_CHARS_MIN: usize = 32;
/// The number of bytes of a secret key. As on AWS, a secret key has 40 characters.
const SECRET_BYTES: usize = 30;
/// The alphabet of generated access keys.
const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The keys that authenticate session tokens. Gateways that have the same keys accept each other's tokens.
#[derive(Clone)]
pub struct SessionTokenKeys {
    /// The first key authenticates new tokens. Tokens that were authenticated with any of these keys are accepted.
    keys: Vec<Vec<u8>>,
}

/// Omits the keys, so that they never appear in a log.
impl fmt::Debug for SessionTokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionTokenKeys").field("keys", &self.keys.len()).finish()
    }
}

/// The content of a session token.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionToken {
    /// The temporary access key.
    pub(super) access_key: String,
    /// The user or issuer for whom the session was started.
    pub(super) parent: SessionStarter,
    /// The role that the user has assumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<RoleInToken>,
    /// The time at which the token was issued, in seconds since 1970.
    pub(super) issued_s: u64,
    /// The time at which the token expires, in seconds since 1970.
    pub(super) expires_s: u64,
}

/// The user or issuer for whom a session was started.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SessionStarter {
    /// The user with this access key.
    User(String),
    /// A caller with a web identity token from this issuer.
    Issuer(String),
}

/// The role that a session has assumed, as stored in the session's token.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleInToken {
    pub(super) name: String,
    /// The name that the caller has given to the session.
    pub(super) session: String,
    /// The uid and the gid from the claims of a web identity, if the role takes them from the claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ids: Option<(u32, u32)>,
}

impl SessionTokenKeys {
    /// Reads keys from a file, one per line. The first key authenticates new tokens. Tokens that were authenticated
    /// with any of the keys are accepted. Errors: `AccessDenied` for a file that others may read; `InvalidArgument` for
    /// a file without a key, or with a key of fewer than 32 characters.
    pub fn load(path: &Path) -> Result<Self> {
        let text = read_private(path)?;
        let wrong = |why: &str| Error::new(ErrorKind::InvalidArgument, format!("{}: {why}", path.display()));
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys: Vec<Vec<u8>> = lines.map(|line| line.as_bytes().to_vec()).collect();
        if keys.is_empty() {
            return Err(wrong("it has no key; `openssl rand -base64 32` generates one"));
        }
        if keys.iter().any(|key| key.len() < KEY_CHARS_MIN) {
            return Err(wrong("a key has fewer than 32 characters; `openssl rand -base64 32` generates one"));
        }
        Ok(SessionTokenKeys { keys })
    }

    /// Returns a secret that is derived from the first key.
    #[cfg(feature = "http3")]
    pub(crate) fn secret(&self) -> crate::tls::GatewaySecret {
        crate::tls::GatewaySecret::of(&self.keys[0])
    }

    /// Generates a single key of 32 random bytes. Errors: `Io`.
    pub(super) fn random() -> Result<Self> {
        Ok(SessionTokenKeys { keys: vec![random::<32>()?.to_vec()] })
    }

    /// Returns an encoded token: a tag and a JSON document, in base64. The tag is computed with the first key.
    pub(super) fn seal(&self, token: &SessionToken) -> String {
        // The document has only strings and numbers, which can always be serialized.
        let document = serde_json::to_vec(token).unwrap_or_default();
        let mut bytes = mac(&self.keys[0], TOKEN, &[&document]).finalize().into_bytes().to_vec();
        bytes.extend_from_slice(&document);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the content of a token, and the key from which the secret key of the token's session is derived. Returns
    /// `None` if none of the keys authenticates the token. Does not check whether the token has expired.
    pub(super) fn open(&self, text: &str) -> Option<(SessionToken, &[u8])> {
        if text.len() > TOKEN_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (tag, document) = bytes.split_at_checked(TAG_BYTES)?;
        // `verify_slice` compares in constant time.
        let is_of = |key: &&Vec<u8>| mac(key, TOKEN, &[document]).verify_slice(tag).is_ok();
        let key = self.keys.iter().find(is_of)?;
        Some((serde_json::from_slice(document).ok()?, key))
    }

    /// Returns the secret key of the session with `token`, a new token.
    pub(super) fn secret_of_new(&self, token: &str, parent_secret: &str) -> String {
        secret(&self.keys[0], token, parent_secret)
    }
}

const TOKEN: &[u8] = b"fordway session token 1";
const SECRET: &[u8] = b"fordway session secret 1";

/// Returns the secret key of the session with this token, derived from `key`.
pub(super) fn secret(key: &[u8], token: &str, parent_secret: &str) -> String {
    let secret = mac(key, SECRET, &[token.as_bytes(), b"\0", parent_secret.as_bytes()]);
    URL_SAFE_NO_PAD.encode(&secret.finalize().into_bytes()[..SECRET_BYTES])
}

/// Returns an HMAC of `parts` for one purpose. Different purposes use different keys, which are derived from `key`.
fn mac(key: &[u8], purpose: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let new = |key: &[u8]| Hmac::<Sha256>::new_from_slice(key).expect("an HMAC key may have any length");
    let derived = new(key).chain_update(purpose).finalize().into_bytes();
    parts.iter().fold(new(&derived), |mac, part| mac.chain_update(part))
}

/// Generates an access key for temporary credentials, with the same first letters as on AWS. Errors: `Io`.
pub(super) fn new_access_key() -> Result<String> {
    let letters = random::<16>()?.map(|byte| char::from(LETTERS[usize::from(byte & 31)]));
    Ok(format!("ASIA{}", String::from_iter(letters)))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, "no random bytes for a session").caused_by(error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn token() -> SessionToken {
        SessionToken {
            access_key: new_access_key().unwrap(),
            parent: SessionStarter::User("ALICE".to_owned()),
            role: None,
            issued_s: 1_000,
            expires_s: 4_600,
        }
    }

    #[test]
    fn only_the_key_that_made_a_token_opens_it() {
        let (one, other) = (SessionTokenKeys::random().unwrap(), SessionTokenKeys::random().unwrap());
        let text = one.seal(&token());
        let (opened, key) = one.open(&text).unwrap();
        assert_eq!(opened.parent, SessionStarter::User("ALICE".to_owned()));
        assert!(opened.access_key.starts_with("ASIA") && opened.access_key.len() == 20);
        assert_eq!(secret(key, &text, "s"), one.secret_of_new(&text, "s"));
        assert_eq!(secret(key, &text, "s").len(), 40);
        assert_ne!(secret(key, &text, "s"), secret(key, &text, "t"));
        assert!(other.open(&text).is_none());
        let both = SessionTokenKeys { keys: [other.keys, one.keys].concat() };
        assert_eq!(both.open(&text).unwrap().0, opened);
    }

    #[test]
    fn a_changed_token_is_refused() {
        let key = SessionTokenKeys::random().unwrap();
        let text = key.seal(&token());
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(key.open(&changed).is_none(), "{at}");
        }
        for bad in ["", "A", "!", &text[1..], &text[..text.len() - 1], &"A".repeat(5000)] {
            assert!(key.open(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_key_file_is_private_and_has_long_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let load = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            SessionTokenKeys::load(&path)
        };
        let long = "k".repeat(32);
        assert_eq!(load(&long, 0o640).unwrap_err().kind(), ErrorKind::AccessDenied);
        assert_eq!(load("", 0o600).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(load("short\n", 0o600).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(load(&format!("{long}\n\n{long}x\n"), 0o600).unwrap().keys.len(), 2);
        assert!(!format!("{:?}", load(&long, 0o600).unwrap()).contains("kkk"));
    }
}
