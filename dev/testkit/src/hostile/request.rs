//! What a client asks for.

use std::io::{self, BufRead};

/// A request as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The connection it came on, from 0.
    pub connection: usize,
    /// `GET`, `HEAD` or whatever was sent.
    pub method: String,
    /// The target as it was sent.
    pub target: String,
    /// Names in small letters, and values, in the order they came.
    pub headers: Vec<(String, String)>,
    /// Bytes of the head, with its line ends.
    pub head_bytes: usize,
}

/// One range of a `Range` header, its end included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl Request {
    /// Reads one head; `None` at the end of the connection. A body must not follow.
    pub(super) fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut request = Request::default();
        let mut line = String::new();
        loop {
            line.clear();
            request.head_bytes += reader.read_line(&mut line)?;
            if line.is_empty() {
                return Ok(None);
            }
            let text = line.trim_end_matches(['\r', '\n']);
            if request.method.is_empty() {
                let mut words = text.split(' ').map(str::to_owned);
                (request.method, request.target) =
                    (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            } else if let Some((name, value)) = text.split_once(':') {
                request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            } else {
                return Ok(Some(request));
            }
        }
    }

    /// The value of a header, whose name is given in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(has, _)| has == name).map(|(_, value)| value.as_str())
    }

    /// How many ranges are asked for; 0 without a `Range` header that can be read.
    pub fn ranges(&self) -> usize {
        self.asked().map_or(0, |asked| asked.len())
    }

    /// The ranges; `None` where the whole is asked for, or the header makes no sense.
    pub(super) fn asked(&self) -> Option<Vec<Asked>> {
        let list = self.header("range")?.strip_prefix("bytes=")?;
        list.split(',').map(|range| Asked::parse(range.trim())).collect()
    }
}

impl Asked {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Some(Asked::Between(first, last)),
            (Ok(first), Err(_)) if last.is_empty() => Some(Asked::From(first)),
            (Err(_), Ok(last)) if first.is_empty() => Some(Asked::Last(last)),
            _ => None,
        }
    }

    /// The bytes of a file of `size` bytes that are meant, end excluded; `None` where there are none.
    pub(super) fn within(self, size: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            Asked::Between(first, last) => (first, size.min(last.saturating_add(1))),
            Asked::From(first) => (first, size),
            Asked::Last(count) => (size.saturating_sub(count), size),
        };
        (start < end).then_some((start, end))
    }
}
