//! Web identity tokens: JWTs (RFC 7519) with one signature (RFC 7515).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::sts::jwk::{PublicKey, SignatureAlgorithm};

/// The maximum length of a token in characters (AWS's limit).
const TOKEN_CHARS_MAX: usize = 20_000;
/// The permitted difference between the clocks of the provider and the gateway, in seconds.
const LEEWAY_S: f64 = 60.0;

/// A token that has not been verified yet.
pub(super) struct UnverifiedWebIdentityToken<'t> {
    /// The encoded header and claims, which the signature covers.
    signed: &'t str,
    signature: Vec<u8>,
    pub(super) algorithm: SignatureAlgorithm,
    pub(super) key_id: Option<String>,
    pub(super) claims: Map<String, Value>,
}

/// The reason why the claims of a token are refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimFault {
    Expired,
    Invalid(&'static str),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a recipient must understand; none is supported.
    crit: Option<Value>,
}

impl<'t> UnverifiedWebIdentityToken<'t> {
    /// Parses a token. Errors: the reason why the token is malformed.
    pub(super) fn read(text: &'t str) -> Result<Self, &'static str> {
        if text.len() > TOKEN_CHARS_MAX {
            return Err("it is too long");
        }
        let (signed, signature) = text.rsplit_once('.').ok_or("it is not a JWT")?;
        let (header, claims) = signed.split_once('.').ok_or("it is not a JWT")?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "it is not a JWT in base64url");
        let header: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| "its header is not valid")?;
        if header.crit.is_some() {
            return Err("its header has critical extensions, which are not supported");
        }
        let algorithm =
            SignatureAlgorithm::named(&header.alg).ok_or("its algorithm is not RS256, ES256 or EdDSA")?;
        let claims = serde_json::from_slice(&decode(claims)?).map_err(|_| "its claims are not an object")?;
        Ok(UnverifiedWebIdentityToken {
            signed,
            signature: decode(signature)?,
            algorithm,
            key_id: header.kid,
            claims,
        })
    }

    pub(super) fn text(&self, claim: &str) -> Option<&str> {
        self.claims.get(claim)?.as_str()
    }

    /// Returns whether the token's signature is valid for one of the keys.
    pub(super) fn is_signed_by(&self, keys: &[PublicKey]) -> bool {
        let mut keys = keys.iter().filter(|key| key.is_for(self.algorithm, self.key_id.as_deref()));
        keys.any(|key| key.verifies(self.signed.as_bytes(), &self.signature))
    }

    /// Returns the first audience in `permitted` that the token names.
    pub(super) fn audience<'a>(&self, permitted: &'a [String]) -> Option<&'a str> {
        let is_stated = |audience: &&String| match self.claims.get("aud") {
            Some(Value::String(stated)) => stated == *audience,
            Some(Value::Array(all)) => all.iter().any(|stated| stated.as_str() == Some(audience)),
            _ => false,
        };
        permitted.iter().find(is_stated).map(String::as_str)
    }

    /// Checks the subject and the times of the token. Errors: the token has no subject or no expiry, has expired, or is
    /// not valid yet.
    pub(super) fn check_claims(&self, now_s: u64) -> Result<(), ClaimFault> {
        let now = now_s as f64;
        let seconds = |claim: &str| match self.claims.get(claim) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(ClaimFault::Invalid("a time is not a number")),
        };
        if self.text("sub").is_none_or(str::is_empty) {
            return Err(ClaimFault::Invalid("it has no subject"));
        }
        let expires = seconds("exp")?.ok_or(ClaimFault::Invalid("it has no expiry"))?;
        if now >= expires + LEEWAY_S {
            return Err(ClaimFault::Expired);
        }
        let is_later = |time: Option<f64>| time.is_some_and(|time| time > now + LEEWAY_S);
        if is_later(seconds("nbf")?) || is_later(seconds("iat")?) {
            return Err(ClaimFault::Invalid("it is not valid yet; compare the clocks"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, claims: &str) -> String {
        format!("{}.{}.AAAA", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn malformed_tokens_are_refused() {
        let good = token(r#"{"alg":"ES256","kid":"k"}"#, r#"{"iss":"i"}"#);
        let read = UnverifiedWebIdentityToken::read(&good).unwrap();
        assert_eq!((read.key_id.as_deref(), read.text("iss")), (Some("k"), Some("i")));
        for (header, claims) in [
            (r#"{"alg":"none"}"#, "{}"),
            (r#"{"alg":"HS256"}"#, "{}"),
            (r#"{"alg":["ES256"]}"#, "{}"),
            (r#"{"kid":"k"}"#, "{}"),
            (r#"{"alg":"ES256","crit":["b64"]}"#, "{}"),
            (r#"{"alg":"ES256"}"#, "[]"),
            (r#"{"alg":"ES256"}"#, "{"),
            ("", ""),
        ] {
            assert!(UnverifiedWebIdentityToken::read(&token(header, claims)).is_err(), "{header} {claims}");
        }
        let long = "a".repeat(20_001);
        for bad in ["", ".", "..", "a.b", "a.b.c.d", &good.replace('.', "=."), &good[..9], &long] {
            assert!(UnverifiedWebIdentityToken::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_a_leeway_of_a_minute() {
        let check = |claims: &str| {
            let text = token(r#"{"alg":"ES256"}"#, claims);
            UnverifiedWebIdentityToken::read(&text).unwrap().check_claims(1000)
        };
        assert_eq!(check(r#"{"sub":"s","exp":941,"nbf":1060,"iat":1060.0}"#), Ok(()));
        assert_eq!(check(r#"{"sub":"s","exp":940}"#), Err(ClaimFault::Expired));
        for bad in [
            r#"{"sub":"s"}"#,
            r#"{"exp":2000}"#,
            r#"{"sub":"","exp":2000}"#,
            r#"{"sub":1,"exp":2000}"#,
            r#"{"sub":"s","exp":"2000"}"#,
            r#"{"sub":"s","exp":null}"#,
            r#"{"sub":"s","exp":2000,"nbf":1061}"#,
            r#"{"sub":"s","exp":2000,"iat":1061}"#,
            r#"{"sub":"s","exp":2000,"nbf":"x"}"#,
        ] {
            assert!(matches!(check(bad), Err(ClaimFault::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn one_audience_is_enough() {
        let of = |claims: &str| {
            let text = token(r#"{"alg":"ES256"}"#, claims);
            let permitted = ["a".to_owned(), "b".to_owned()];
            UnverifiedWebIdentityToken::read(&text).unwrap().audience(&permitted).map(str::to_owned)
        };
        assert_eq!(of(r#"{"aud":"b"}"#).as_deref(), Some("b"));
        assert_eq!(of(r#"{"aud":["x","a"]}"#).as_deref(), Some("a"));
        for other in [r#"{}"#, r#"{"aud":"ab"}"#, r#"{"aud":[]}"#, r#"{"aud":[["a"]]}"#, r#"{"aud":1}"#] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
