//! Whether a plain read is signed, by whom it must be, now, and over all that matters.

use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use fordway_wire::date::parse_amz_date;
use fordway_wire::sigv4::{Authorization, SignedRequest, SigningKey, UNSIGNED_PAYLOAD};

use crate::Identity;
use crate::http1::fast_lane::Signature;
use crate::http1::head::Head;
use crate::identity::{CLOCK_SKEW_MAX, is_region};

/// SHA-256 of nothing.
const EMPTY_HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// Keys kept: one for each day and region that a valid signature was made for.
const KEYS_MAX: usize = 16;
/// The most headers that may be signed.
const SIGNED_MAX: usize = 24;

pub(crate) struct Verifier {
    identity: Identity,
    keys: RwLock<Vec<Known>>,
}

struct Known {
    day: String,
    region: String,
    key: SigningKey,
}

impl Verifier {
    pub(crate) fn new(identity: Identity) -> Self {
        Verifier { identity, keys: RwLock::new(Vec::new()) }
    }

    /// Whether the signature is right and the common way would find nothing else wrong with it either.
    pub(super) fn has_signed(
        &self,
        head: &Head<'_>,
        stated: Signature<'_>,
        authorization: &Authorization<'_>,
    ) -> bool {
        let is_for_us = authorization.access_key == self.identity.access_key
            && authorization.service == "s3"
            && is_region(authorization.region);
        let is_body_covered = stated.payload_hash == UNSIGNED_PAYLOAD || stated.payload_hash == EMPTY_HASH;
        if !is_for_us || !is_body_covered || !is_now(stated.amz_date, authorization.day) {
            return false;
        }
        let mut room = [("", ""); SIGNED_MAX];
        let Some(headers) = signed_headers(head, authorization.signed_headers, &mut room) else {
            return false;
        };
        self.verifies(
            authorization,
            stated.amz_date,
            &SignedRequest {
                method: head.method,
                path: head.target,
                query: "",
                headers,
                payload_hash: stated.payload_hash,
            },
        )
    }

    fn verifies(
        &self,
        authorization: &Authorization<'_>,
        amz_date: &str,
        request: &SignedRequest<'_>,
    ) -> bool {
        let Authorization { day, region, service, signature, .. } = *authorization;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.iter().find(|known| known.day == day && known.region == region) {
            return known.key.verifies(signature, amz_date, request);
        }
        drop(keys);
        let key = SigningKey::for_day(&self.identity.secret_key, day, region, service);
        let is_right = key.verifies(signature, amz_date, request);
        if is_right {
            let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            if keys.len() >= KEYS_MAX {
                keys.clear();
            }
            keys.push(Known { day: day.to_owned(), region: region.to_owned(), key });
        }
        is_right
    }
}

fn is_now(amz_date: &str, day: &str) -> bool {
    let Some(signed) = parse_amz_date(amz_date) else { return false };
    let now = SystemTime::now();
    let apart = now.duration_since(signed).unwrap_or_else(|ahead| ahead.duration());
    amz_date.starts_with(day) && day.len() == 8 && apart < CLOCK_SKEW_MAX
}

/// The headers named, with their values; `None` unless they are in order, each is there once and
/// plainly written, and `host` and all of Amazon's own are among them.
fn signed_headers<'h, 'r>(
    head: &Head<'h>,
    names: &'h str,
    room: &'r mut [(&'h str, &'h str); SIGNED_MAX],
) -> Option<&'r [(&'h str, &'h str)]> {
    let mut count = 0;
    for name in names.split(';') {
        let is_in_order = count == 0 || room[count - 1].0 < name;
        let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        if !is_in_order || !is_lower || count == SIGNED_MAX {
            return None;
        }
        room[count] = (name, value_of(head, name)?);
        count += 1;
    }
    let signed = &room[..count];
    let must_be_signed = |name: &str| {
        name.eq_ignore_ascii_case("host")
            || name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"))
    };
    let is_signed = |name: &str| signed.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    head.headers.iter().all(|header| !must_be_signed(header.name) || is_signed(header.name)).then_some(signed)
}

/// The value of a header that is there once, in printable ASCII: of those there is one normal form.
fn value_of<'h>(head: &Head<'h>, name: &str) -> Option<&'h str> {
    let mut found = head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
    let (header, another) = (found.next()?, found.next());
    let is_plain = another.is_none() && header.value.iter().all(|byte| (b' '..=b'~').contains(byte));
    is_plain.then(|| std::str::from_utf8(header.value).ok()).flatten()
}
