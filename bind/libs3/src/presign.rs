//! URLs that carry their own signature.

use std::time::Duration;

use fordway_store::Key;

use crate::abi::MAX_QUERY_STRING_BYTES;
use crate::failure::{Failure, Outcome};
use crate::lane::Target;
use crate::status::Status;

/// The longest life of a URL: seven days, by the rules of its signature.
const MAX_LIFETIME_S: i64 = 7 * 86_400;

/// A URL for `method` (`None` is GET) that lives `lifetime_s` seconds; what is out of range lives as
/// long as can be.
/// Errors: a lane without URLs, a method or subresource that cannot be signed, no keys.
pub(crate) fn url(
    target: &Target,
    key: &Key,
    lifetime_s: i64,
    subresource: Option<&str>,
    method: Option<&str>,
) -> Outcome<String> {
    let Some(presigner) = &target.lane.presigner else {
        let why = format!("the {} lane has no URLs; use the address of a gateway", target.lane.store.lane());
        return Err(Failure::refused(Status::NotSupported, why));
    };
    if let Some(subresource) = subresource {
        let why = format!("a URL for {subresource:?} cannot be signed here; leave the resource NULL");
        return Err(Failure::refused(Status::NotSupported, why));
    }
    let lifetime_s = if (1..=MAX_LIFETIME_S).contains(&lifetime_s) { lifetime_s } else { MAX_LIFETIME_S };
    let method = known_method(method.unwrap_or("GET"))?;
    let url = presigner.presign(method, &target.bucket, key, Duration::from_secs(lifetime_s as u64))?;
    match url.len() < MAX_QUERY_STRING_BYTES {
        true => Ok(url),
        false => {
            let why = format!(
                "the URL has {} bytes, more than a caller has room for; use a shorter key",
                url.len()
            );
            Err(Failure::refused(Status::UriTooLong, why))
        }
    }
}

fn known_method(method: &str) -> Outcome<&'static str> {
    const METHODS: [&str; 4] = ["GET", "HEAD", "PUT", "DELETE"];
    METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(method)).ok_or_else(|| {
        let why = format!("a URL cannot be signed for {method}; use one of {}", METHODS.join(", "));
        Failure::refused(Status::ErrorInvalidArgument, why)
    })
}
