//! Bearer tokens (RFC 6750), found as WLCG's bearer token discovery says.

use std::path::Path;

use fordway_store::{Error, ErrorKind, Result};

use super::private::Place;

/// Where a token comes from.
#[derive(Clone)]
pub(super) enum Bearer {
    Token(String),
    File(Place),
}

/// The places of tokens, the nearest first: what the environment names ends the search.
pub(super) fn discover(get: &dyn Fn(&str) -> Option<String>, user: u32) -> Vec<Bearer> {
    if let Some(token) = get("BEARER_TOKEN") {
        return vec![Bearer::Token(token)];
    }
    if let Some(path) = get("BEARER_TOKEN_FILE") {
        return vec![Bearer::File(Place::Named(path.into()))];
    }
    let directories = get("XDG_RUNTIME_DIR").into_iter().chain(["/tmp".to_owned()]);
    let usual = |directory: String| Place::Usual(Path::new(&directory).join(format!("bt_u{user}")));
    directories.map(|directory| Bearer::File(usual(directory))).collect()
}

impl Bearer {
    /// The token, if it is there. Errors: as [`Place::read_text`]; `InvalidArgument` for what is no token.
    pub(super) fn token(&self) -> Result<Option<String>> {
        let (token, from) = match self {
            Bearer::Token(token) => (token.clone(), "the bearer token".to_owned()),
            Bearer::File(place) => match place.read_text()? {
                Some(text) => (text, place.path().display().to_string()),
                None => return Ok(None),
            },
        };
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let detail = format!("{from} is no token; it has to be one word of ASCII characters");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        Ok(Some(token.to_owned()))
    }
}
