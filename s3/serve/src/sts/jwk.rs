//! Public keys of an OIDC provider (JWK, RFC 7517), and the signatures that they verify (RFC 7518, RFC 8037).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

/// The maximum number of keys of a provider.
const KEYS_MAX: usize = 100;

/// A signature algorithm. Only algorithms with public keys are supported. If algorithms with a shared secret (`HS256`)
/// were supported, anyone could use a public key as the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignatureAlgorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl SignatureAlgorithm {
    /// Returns the algorithm with this name (JWA), if it is supported.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(SignatureAlgorithm::Rs256),
            "ES256" => Some(SignatureAlgorithm::Es256),
            "EdDSA" | "Ed25519" => Some(SignatureAlgorithm::EdDsa),
            _ => None,
        }
    }
}

/// A public key for one algorithm.
#[derive(Debug)]
pub(super) struct PublicKey {
    id: Option<String>,
    material: KeyMaterial,
}

#[derive(Debug)]
enum KeyMaterial {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key in a provider's document. Unknown members are ignored, as the RFC requires.
#[derive(Deserialize)]
struct KeyDocument {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// Reads a set of keys. Leaves out keys that are malformed or for other purposes. Returns `None` if the document is not
/// a set of keys.
pub(super) fn read_keys(document: &[u8]) -> Option<Vec<PublicKey>> {
    #[derive(Deserialize)]
    struct KeySet {
        keys: Vec<serde_json::Value>,
    }
    let set: KeySet = serde_json::from_slice(document).ok()?;
    let keys = set.keys.into_iter().take(KEYS_MAX);
    Some(keys.filter_map(|key| PublicKey::read(serde_json::from_value(key).ok()?)).collect())
}

impl PublicKey {
    fn read(key: KeyDocument) -> Option<Self> {
        if key.purpose.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        let coordinate = |text| bytes(text).filter(|bytes| bytes.len() == 32);
        let material = match (key.kty.as_str(), key.crv.as_deref()) {
            ("RSA", _) => {
                let whole = |text| bytes(text).map(without_leading_zeros).filter(|bytes| !bytes.is_empty());
                KeyMaterial::Rsa { modulus: whole(key.n)?, exponent: whole(key.e)? }
            }
            ("EC", Some("P-256")) => {
                KeyMaterial::P256([vec![4], coordinate(key.x)?, coordinate(key.y)?].concat())
            }
            ("OKP", Some("Ed25519")) => KeyMaterial::Ed25519(coordinate(key.x)?),
            _ => return None,
        };
        let read = PublicKey { id: key.kid, material };
        let is_stated = |name: String| SignatureAlgorithm::named(&name) == Some(read.algorithm());
        key.alg.is_none_or(is_stated).then_some(read)
    }

    /// Returns the only algorithm with which the key may be used.
    fn algorithm(&self) -> SignatureAlgorithm {
        match self.material {
            KeyMaterial::Rsa { .. } => SignatureAlgorithm::Rs256,
            KeyMaterial::P256(_) => SignatureAlgorithm::Es256,
            KeyMaterial::Ed25519(_) => SignatureAlgorithm::EdDsa,
        }
    }

    /// Returns whether this key may verify a signature with `algorithm` and the key ID `id`.
    pub(super) fn is_for(&self, algorithm: SignatureAlgorithm, id: Option<&str>) -> bool {
        self.algorithm() == algorithm && id.is_none_or(|id| self.id.as_deref() == Some(id))
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.material {
            KeyMaterial::Rsa { modulus: n, exponent: e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            KeyMaterial::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            KeyMaterial::Ed25519(point) => UnparsedPublicKey::new(&ED25519, point).verify(message, signature),
        };
        verified.is_ok()
    }
}

fn without_leading_zeros(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().skip_while(|byte| *byte == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the signed text of RFC 8037, appendix A.
    const ED25519_KEY: &str =
        r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
    const ED25519_TEXT: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    const ED25519_SIGNATURE: &str =
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

    fn read(keys: &str) -> Vec<PublicKey> {
        read_keys(format!("{{\"keys\":[{keys}]}}").as_bytes()).unwrap()
    }

    #[test]
    fn the_example_of_rfc_8037_is_verified() {
        let keys = read(ED25519_KEY);
        let signature = URL_SAFE_NO_PAD.decode(ED25519_SIGNATURE).unwrap();
        assert!(keys[0].verifies(ED25519_TEXT.as_bytes(), &signature));
        assert!(!keys[0].verifies(b"another text", &signature));
        assert!(keys[0].is_for(SignatureAlgorithm::EdDsa, None));
        assert!(!keys[0].is_for(SignatureAlgorithm::EdDsa, Some("a")));
        assert!(!keys[0].is_for(SignatureAlgorithm::Rs256, None));
    }

    #[test]
    fn keys_of_no_use_are_left_out() {
        for key in [
            "1",
            "{}",
            r#"{"kty":"oct","k":"AAAA","alg":"HS256"}"#,
            r#"{"kty":"RSA","n":"AAAA","e":"AQAB"}"#,
            r#"{"kty":"RSA","n":"!","e":"AQAB"}"#,
            r#"{"kty":"EC","crv":"P-384","x":"AAAA","y":"AAAA"}"#,
            r#"{"kty":"EC","crv":"P-256","x":"AAAA","y":"AAAA"}"#,
            &ED25519_KEY.replace("{", r#"{"use":"enc","#),
            &ED25519_KEY.replace("{", r#"{"alg":"ES256","#),
        ] {
            assert!(read(key).is_empty(), "{key}");
        }
        assert_eq!(read(&format!("{{}},{ED25519_KEY}")).len(), 1);
        assert!(read_keys(b"[]").is_none() && read_keys(b"<html>").is_none());
    }

    #[test]
    fn only_algorithms_with_public_keys_have_names() {
        for name in ["none", "None", "HS256", "HS512", "RS512", "PS256", "ES384", "", "rs256"] {
            assert_eq!(SignatureAlgorithm::named(name), None, "{name}");
        }
    }
}
