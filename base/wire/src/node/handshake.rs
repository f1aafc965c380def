//! The first bytes that each side sends, and how a side proves that it knows a secret without revealing the secret.

use fordway_store::{Error, ErrorKind, Result};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::fields::{MessageCursor, ReadField, WriteField};

/// The first bytes that both sides send. No HTTP request begins with these bytes.
pub const MAGIC: [u8; 4] = [0xf0, b'w', b'a', b'y'];
/// The version of the protocol.
pub const VERSION: u16 = 5;
/// The length of a [`NodeClientHello`].
pub const CLIENT_HELLO_BYTES: usize = 8;
/// The length of a [`NodeGatewayHello`].
pub const GATEWAY_HELLO_BYTES: usize = 40;
/// The length of a nonce.
pub const NONCE_BYTES: usize = 32;

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeClientHello {
    /// The client's version of the protocol.
    pub version: u16,
    /// Whether the gateway can pass descriptors to the client.
    pub takes_descriptors: bool,
}

/// The gateway's response to a [`NodeClientHello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGatewayHello {
    /// The gateway's version of the protocol.
    pub version: u16,
    /// Whether the client must prove that it knows a secret before its first request.
    pub wants_proof: bool,
    /// Whether the gateway refuses the connection; a frame with the reason follows.
    pub is_refusal: bool,
    /// A random number that is used for this connection only.
    pub nonce: [u8; NONCE_BYTES],
}

impl NodeClientHello {
    /// Returns the bytes to send.
    pub fn to_bytes(self) -> [u8; CLIENT_HELLO_BYTES] {
        let [low, high] = self.version.to_le_bytes();
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, low, high, u8::from(self.takes_descriptors), 0]
    }

    /// Parses a received hello. Errors: `InvalidArgument` if it is not valid.
    pub fn from_bytes(bytes: &[u8; CLIENT_HELLO_BYTES]) -> Result<Self> {
        let (version, flags) = after_magic(bytes)?;
        Ok(NodeClientHello { version, takes_descriptors: flags & 1 != 0 })
    }
}

impl NodeGatewayHello {
    /// Returns the bytes to send.
    pub fn to_bytes(self) -> [u8; GATEWAY_HELLO_BYTES] {
        let mut bytes = [0; GATEWAY_HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6] = u8::from(self.wants_proof) | u8::from(self.is_refusal) << 1;
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Parses the received bytes. Errors: `InvalidArgument` if it is not valid.
    pub fn from_bytes(bytes: &[u8; GATEWAY_HELLO_BYTES]) -> Result<Self> {
        let (version, flags) = after_magic(bytes)?;
        let nonce = ReadField::take(&mut MessageCursor::new(&bytes[8..]))?;
        Ok(NodeGatewayHello { version, wants_proof: flags & 1 != 0, is_refusal: flags & 2 != 0, nonce })
    }
}

/// Checks the magic bytes; returns the version and the flags after them. Errors: `InvalidArgument`.
fn after_magic(bytes: &[u8]) -> Result<(u16, u8)> {
    let mut input = MessageCursor::new(bytes);
    if input.bytes(4)? != MAGIC {
        let why = "the peer does not use the protocol of the node lane";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let version = u16::take(&mut input)?;
    Ok((version, u8::take(&mut input)?))
}

/// The side that computes a proof. The side is part of the proof, so that neither side can send back a proof that it
/// has received from the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeSide {
    /// The client, which opened the connection.
    Client,
    /// The gateway.
    Gateway,
}

/// A proof: the HMAC-SHA256 of the side, both nonces and the access key, keyed with the secret key.
pub struct HandshakeProof(Hmac<Sha256>);

impl HandshakeProof {
    /// Computes the proof of `side` for one connection.
    pub fn new(
        secret_key: &str,
        side: HandshakeSide,
        gateway_nonce: &[u8; NONCE_BYTES],
        client_nonce: &[u8; NONCE_BYTES],
        access_key: &str,
    ) -> Self {
        let label: &[u8] = match side {
            HandshakeSide::Client => b"fordway node 1 client",
            HandshakeSide::Gateway => b"fordway node 1 gateway",
        };
        let mut message = Vec::new();
        (label.len() as u32).put(&mut message);
        message.extend_from_slice(label);
        (*gateway_nonce, *client_nonce).put(&mut message);
        access_key.put(&mut message);
        let mac = Hmac::<Sha256>::new_from_slice(secret_key.as_bytes());
        HandshakeProof(
            mac.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")).chain_update(message),
        )
    }

    /// Returns the bytes to send.
    pub fn to_bytes(self) -> [u8; 32] {
        self.0.finalize().into_bytes().into()
    }

    /// Returns whether `sent` equals this proof. Compares in constant time.
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
            let hello = NodeClientHello { version: 0x102, takes_descriptors: flag };
            assert_eq!(NodeClientHello::from_bytes(&hello.to_bytes()).unwrap(), hello);
            let welcome =
                NodeGatewayHello { version: 1, wants_proof: flag, is_refusal: !flag, nonce: [7; 32] };
            assert_eq!(NodeGatewayHello::from_bytes(&welcome.to_bytes()).unwrap(), welcome);
        }
        let refused = NodeClientHello::from_bytes(b"GET / HT").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_proof_holds_for_its_side_nonces_key_and_secret_only() {
        let proof = |secret, side, gateway, client, access_key| {
            HandshakeProof::new(secret, side, &[gateway; 32], &[client; 32], access_key)
        };
        let sent = proof("secret", HandshakeSide::Client, 1, 2, "key").to_bytes();
        assert!(proof("secret", HandshakeSide::Client, 1, 2, "key").is(&sent));
        for other in [
            proof("Secret", HandshakeSide::Client, 1, 2, "key"),
            proof("secret", HandshakeSide::Gateway, 1, 2, "key"),
            proof("secret", HandshakeSide::Client, 3, 2, "key"),
            proof("secret", HandshakeSide::Client, 1, 3, "key"),
            proof("secret", HandshakeSide::Client, 1, 2, "kex"),
        ] {
            assert!(!other.is(&sent));
        }
    }
}
