//! The protection of QUIC packets (RFC 9001 section 5), in memory. One side encrypts each packet and masks its header.
//! The peer unmasks the header and decrypts the packet.

use fordway_store::Result;
use fordway_workload::ledger::LedgerComponent;
use rustls::Side;
use rustls::quic::{Keys, Version};

use super::{NonrepeatingContent, failed, same};
use crate::commands::ledger::echo::datagrams::{DATAGRAM_BYTES, PACKET_OVERHEAD_BYTES};

/// The size of a packet's header: flags, a connection ID of 8 bytes, and a packet number of 2 bytes.
const HEAD_BYTES: usize = 11;
const NUMBER_AT: usize = 9;
const TAG_BYTES: usize = 16;
/// The size of the STREAM frame's header before the content.
const FRAME_HEAD_BYTES: usize = PACKET_OVERHEAD_BYTES - HEAD_BYTES - TAG_BYTES;
/// The distance from the start of the packet number to the sample, from which the mask of the header is computed.
const SAMPLE_AFTER_BYTES: usize = 4;

/// Protects content in packets of the usual size, and removes the protection.
pub(in crate::commands::ledger) struct PacketProtectionComponent {
    server: Keys,
    client: Keys,
    contents: NonrepeatingContent,
    /// A packet: its header, a STREAM frame, and the tag of the encryption.
    packet: Vec<u8>,
    opened: Vec<u8>,
    number: u64,
}

impl PacketProtectionComponent {
    /// Uses the first TLS 1.3 cipher suite that client and gateway offer, because they agree on that suite.
    pub(in crate::commands::ledger) fn new(contents: &NonrepeatingContent) -> Result<Self> {
        let provider = rustls::crypto::ring::default_provider();
        let suite = provider.cipher_suites.iter().find_map(|suite| suite.tls13()?.quic_suite());
        let suite = suite.ok_or_else(|| failed("there is no cipher suite for QUIC"))?;
        // Any secret is sufficient, because the time does not depend on the keys.
        let keys = |side| suite.keys(b"fordway", side, Version::V1);
        let (server, client) = (keys(Side::Server), keys(Side::Client));
        let contents = contents.clone();
        let (packet, opened) = (Vec::new(), Vec::new());
        Ok(PacketProtectionComponent { server, client, contents, packet, opened, number: 0 })
    }

    fn protect(&mut self, content: &[u8]) -> Result<(), rustls::Error> {
        let PacketProtectionComponent { server, packet, number, .. } = self;
        packet.clear();
        packet.resize(HEAD_BYTES, 0x40);
        packet[NUMBER_AT..HEAD_BYTES].copy_from_slice(&(*number as u16).to_be_bytes());
        packet.resize(HEAD_BYTES + FRAME_HEAD_BYTES, 0);
        packet.extend_from_slice(content);
        let (head, payload) = packet.split_at_mut(HEAD_BYTES);
        let tag = server.local.packet.encrypt_in_place(*number, head, payload)?;
        packet.extend_from_slice(tag.as_ref());
        let (head, sample) = masked(packet, server.local.header.sample_len());
        let (first, rest) = head.split_at_mut(1);
        server.local.header.encrypt_in_place(sample, &mut first[0], &mut rest[NUMBER_AT - 1..])
    }

    fn open(&mut self) -> Result<(), rustls::Error> {
        let PacketProtectionComponent { client, packet, opened, number, .. } = self;
        let (head, sample) = masked(packet, client.remote.header.sample_len());
        let (first, rest) = head.split_at_mut(1);
        client.remote.header.decrypt_in_place(sample, &mut first[0], &mut rest[NUMBER_AT - 1..])?;
        let (head, payload) = packet.split_at_mut(HEAD_BYTES);
        let frame = client.remote.packet.decrypt_in_place(*number, head, payload)?;
        opened.extend_from_slice(&frame[FRAME_HEAD_BYTES..]);
        *number += 1;
        Ok(())
    }
}

/// Returns the header of a packet, and the sample from which the mask of the header is computed.
fn masked(packet: &mut [u8], sample_bytes: usize) -> (&mut [u8], &[u8]) {
    let (head, payload) = packet.split_at_mut(HEAD_BYTES);
    let from = NUMBER_AT + SAMPLE_AFTER_BYTES - HEAD_BYTES;
    (head, &payload[from..from + sample_bytes])
}

impl LedgerComponent for PacketProtectionComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.opened.resize(size_bytes as usize, 0);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let content = self.contents.share(self.opened.len() as u64);
        self.opened.clear();
        for piece in content.chunks(DATAGRAM_BYTES - PACKET_OVERHEAD_BYTES) {
            self.protect(piece).map_err(failed)?;
            self.open().map_err(failed)?;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.opened, self.contents.of(self.opened.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_any_size_is_opened_again() {
        let contents = NonrepeatingContent::new(100_000);
        let mut protection = PacketProtectionComponent::new(&contents).unwrap();
        for size_bytes in [1, 1416, 1417, 100_000] {
            protection.prepare(size_bytes).unwrap();
            protection.run().unwrap();
            protection.check().unwrap();
            assert_eq!(protection.opened.len(), size_bytes as usize);
        }
        protection.protect(b"a packet").unwrap();
        let last = protection.packet.len() - 1;
        protection.packet[last] ^= 1;
        assert!(protection.open().is_err(), "a changed packet");
    }
}
