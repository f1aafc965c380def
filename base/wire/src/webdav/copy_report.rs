//! What a server says of a third-party copy while that goes on: performance markers, and at the end a
//! line that says how it went (WLCG's HTTP-TPC, after the markers of GridFTP).
//!
//! ```text
//! Perf Marker
//! Timestamp: 1795311802
//! Stripe Index: 0
//! Stripe Bytes Transferred: 1048576
//! Total Stripe Count: 1
//! End
//! success: Created
//! ```

use std::collections::BTreeMap;

use fordway_store::{Error, ErrorKind, Result};

/// More in one line is no report.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// More is no copy.
const STRIPES_MAX: usize = 4096;
/// What is shown of a server's reason.
const REASON_CHARS_MAX: usize = 400;

/// How a copy ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server says that all was copied.
    Success,
    /// It was not; the server's reason, in one line of printable text.
    Failure(String),
}

/// Reads a report in pieces as they come. Holds a line and a number for each stripe.
#[derive(Clone, Debug, Default)]
pub struct CopyReport {
    line: Vec<u8>,
    /// The stripe of the marker that is open, and its bytes.
    stripe: u64,
    bytes: Option<u64>,
    /// Bytes by stripe: each counts from its own start.
    stripes: BTreeMap<u64, u64>,
    outcome: Option<Outcome>,
}

impl CopyReport {
    /// Takes what came next; whether a marker ended in it. Errors: `BadResponse` for what is longer
    /// than any report.
    pub fn push(&mut self, piece: &[u8]) -> Result<bool> {
        let mut has_marker = false;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > LINE_BYTES_MAX {
                return Err(bad("a line of the report is too long"));
            }
            if part.ends_with(b"\n") {
                has_marker |= self.end_line()?;
            }
        }
        Ok(has_marker)
    }

    /// Bytes that were copied so far, of all stripes.
    pub fn bytes(&self) -> u64 {
        self.stripes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// How the copy ended; `None` if the report does not say so, and was cut off. The last line need
    /// not be ended. Errors: as [`CopyReport::push`].
    pub fn finish(mut self) -> Result<Option<Outcome>> {
        self.end_line()?;
        Ok(self.outcome)
    }

    fn end_line(&mut self) -> Result<bool> {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        let number = || crate::range::digits(value.trim());
        let is_end = match name.trim().to_ascii_lowercase().as_str() {
            "perf marker" => {
                (self.stripe, self.bytes) = (0, None);
                false
            }
            "stripe index" => {
                self.stripe = number().unwrap_or(0);
                false
            }
            "stripe bytes transferred" => {
                self.bytes = number();
                false
            }
            "end" => self.end_marker()?,
            // The first such line counts.
            "success" => self.ended(Outcome::Success),
            "failure" | "failed" | "error" | "aborted" => self.ended(Outcome::Failure(shown(value))),
            _ => false,
        };
        Ok(is_end)
    }

    fn end_marker(&mut self) -> Result<bool> {
        let Some(bytes) = self.bytes.take() else { return Ok(false) };
        if self.stripes.len() >= STRIPES_MAX && !self.stripes.contains_key(&self.stripe) {
            return Err(bad("the report has too many stripes"));
        }
        self.stripes.insert(self.stripe, bytes);
        Ok(true)
    }

    fn ended(&mut self, outcome: Outcome) -> bool {
        self.outcome.get_or_insert(outcome);
        false
    }
}

/// A server's sentence as it may be shown: in one line, of bounded length.
fn shown(reason: &str) -> String {
    let printable = reason.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(REASON_CHARS_MAX).collect()
}

fn bad(detail: &str) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marker(stripe: u64, bytes: u64) -> String {
        format!(
            "Perf Marker\nTimestamp: 1\nStripe Index: {stripe}\nStripe Bytes Transferred: {bytes}\n\
             Total Stripe Count: 2\r\nRemoteConnections: tcp:[::1]:80\nEnd\n"
        )
    }

    fn outcome(text: &str) -> Option<Outcome> {
        let mut report = CopyReport::default();
        report.push(text.as_bytes()).unwrap();
        report.finish().unwrap()
    }

    #[test]
    fn bytes_of_stripes_add_up() {
        let mut report = CopyReport::default();
        assert!(report.push(marker(0, 5).as_bytes()).unwrap());
        assert!(report.push(marker(1, 7).as_bytes()).unwrap());
        assert!(report.push(marker(0, 6).as_bytes()).unwrap());
        assert!(!report.push(b"Perf Marker\nEnd\nStripe Bytes Transferred: 9\n").unwrap());
        assert_eq!(report.bytes(), 13);
        report.push(b"success: Created").unwrap();
        assert_eq!(report.finish().unwrap(), Some(Outcome::Success));
    }

    #[test]
    fn the_end_is_said_or_it_is_not() {
        assert_eq!(outcome("Success"), Some(Outcome::Success));
        assert_eq!(outcome("failure: a\tb\nsuccess: c\n"), Some(Outcome::Failure("a b".into())));
        assert_eq!(outcome("ERROR: x"), Some(Outcome::Failure("x".into())));
        assert_eq!(outcome("Stripe: success\nsuccessful: x\n"), None);
        assert_eq!(outcome(&marker(0, 1)), None);
        assert_eq!(
            outcome(&format!("failure: {}", "x".repeat(5000))),
            Some(Outcome::Failure("x".repeat(400)))
        );
    }

    #[test]
    fn endless_reports_are_refused() {
        let mut report = CopyReport::default();
        let refused = (0..10).find_map(|_| report.push(&[b'x'; 1024]).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::BadResponse));
        let mut report = CopyReport::default();
        let refused = (0..10_000).find_map(|stripe| report.push(marker(stripe, 1).as_bytes()).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::BadResponse));
    }

    proptest! {
        #[test]
        fn how_it_is_cut_makes_no_difference(
            counts in prop::collection::vec((0_u64..4, any::<u64>()), 0..8),
            size in 1_usize..50,
        ) {
            let text: String = counts.iter().map(|(stripe, bytes)| marker(*stripe, *bytes)).collect();
            let (mut whole, mut pieces) = (CopyReport::default(), CopyReport::default());
            whole.push(text.as_bytes()).unwrap();
            for piece in text.as_bytes().chunks(size) {
                pieces.push(piece).unwrap();
            }
            prop_assert_eq!(whole.bytes(), pieces.bytes());
        }

        #[test]
        fn no_bytes_make_it_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..9)) {
            let mut report = CopyReport::default();
            for piece in &pieces {
                let _result = report.push(piece);
            }
            let _result = report.finish();
        }
    }
}
