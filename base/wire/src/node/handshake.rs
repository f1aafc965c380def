//! The first bytes of each side, and the proof that a secret is known without showing it.

use fordway_store::{Error, ErrorKind, Result};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::fields::{Input, Put, Take};

/// What both sides begin with. No request of HTTP begins so.
pub const MAGIC: [u8; 4] = [0xf0, b'w', b'a', b'y'];
/// The version of the protocol.
pub const VERSION: u16 = 4;
/// The length of a [`Hello`].
pub const HELLO_BYTES: usize = 8;
/// The length of a [`Welcome`].
pub const WELCOME_BYTES: usize = 40;
/// The length of a nonce.
pub const NONCE_BYTES: usize = 32;

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version it speaks.
    pub version: u16,
    /// Whether descriptors can be passed to it.
    pub takes_descriptors: bool,
}

/// What a gateway answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version it speaks.
    pub version: u16,
    /// Whether the client must prove that it knows a secret before it asks for anything.
    pub wants_proof: bool,
    /// Whether nothing will be answered; a frame with the reason follows.
    pub is_refusal: bool,
    /// A random number that no other connection sees.
    pub nonce: [u8; NONCE_BYTES],
}

impl Hello {
    /// As it is sent.
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let [low, high] = self.version.to_le_bytes();
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, low, high, u8::from(self.takes_descriptors), 0]
    }

    /// Reads one. Errors: `InvalidArgument` for what is none.
    pub fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Result<Self> {
        let (version, flags) = after_magic(bytes)?;
        Ok(Hello { version, takes_descriptors: flags & 1 != 0 })
    }
}

impl Welcome {
    /// As it is sent.
    pub fn to_bytes(self) -> [u8; WELCOME_BYTES] {
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6] = u8::from(self.wants_proof) | u8::from(self.is_refusal) << 1;
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Reads one. Errors: `InvalidArgument` for what is none.
    pub fn from_bytes(bytes: &[u8; WELCOME_BYTES]) -> Result<Self> {
        let (version, flags) = after_magic(bytes)?;
        let nonce = Take::take(&mut Input::new(&bytes[8..]))?;
        Ok(Welcome { version, wants_proof: flags & 1 != 0, is_refusal: flags & 2 != 0, nonce })
    }
}

/// The version and the flags. Errors: `InvalidArgument`.
fn after_magic(bytes: &[u8]) -> Result<(u16, u8)> {
    let mut input = Input::new(bytes);
    if input.bytes(4)? != MAGIC {
        let why = "the other side does not speak the protocol of the node lane";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let version = u16::take(&mut input)?;
    Ok((version, u8::take(&mut input)?))
}

/// Which side a proof is of: a proof that is overheard cannot be used by the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connected.
    Client,
    /// The gateway.
    Gateway,
}

/// HMAC-SHA256 under the secret key, of the side, both nonces and the access key.
pub struct Proof(Hmac<Sha256>);

impl Proof {
    /// The proof of `side` for one connection.
    pub fn new(
        secret_key: &str,
        side: Side,
        gateway_nonce: &[u8; NONCE_BYTES],
        client_nonce: &[u8; NONCE_BYTES],
        access_key: &str,
    ) -> Self {
        let label: &[u8] = match side {
            Side::Client => b"fordway node 1 client",
            Side::Gateway => b"fordway node 1 gateway",
        };
        let mut message = Vec::new();
        (label.len() as u32).put(&mut message);
        message.extend_from_slice(label);
        (*gateway_nonce, *client_nonce).put(&mut message);
        access_key.put(&mut message);
        let mac = Hmac::<Sha256>::new_from_slice(secret_key.as_bytes());
        Proof(mac.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")).chain_update(message))
    }

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; 32] {
        self.0.finalize().into_bytes().into()
    }

    /// Whether `sent` is it; takes as long whichever byte differs.
    pub fn is(self, sent: &[u8; 32]) -> bool {
        self.0.verify_slice(sent).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_greetings_round_trip() {
        for flag in [false, true] {
            let hello = Hello { version: 0x102, takes_descriptors: flag };
            assert_eq!(Hello::from_bytes(&hello.to_bytes()).unwrap(), hello);
            let welcome = Welcome { version: 1, wants_proof: flag, is_refusal: !flag, nonce: [7; 32] };
            assert_eq!(Welcome::from_bytes(&welcome.to_bytes()).unwrap(), welcome);
        }
        let refused = Hello::from_bytes(b"GET / HT").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_proof_holds_for_its_side_nonces_key_and_secret_only() {
        let proof = |secret, side, gateway, client, access_key| {
            Proof::new(secret, side, &[gateway; 32], &[client; 32], access_key)
        };
        let sent = proof("secret", Side::Client, 1, 2, "key").to_bytes();
        assert!(proof("secret", Side::Client, 1, 2, "key").is(&sent));
        for other in [
            proof("Secret", Side::Client, 1, 2, "key"),
            proof("secret", Side::Gateway, 1, 2, "key"),
            proof("secret", Side::Client, 3, 2, "key"),
            proof("secret", Side::Client, 1, 3, "key"),
            proof("secret", Side::Client, 1, 2, "kex"),
        ] {
            assert!(!other.is(&sent));
        }
    }
}
