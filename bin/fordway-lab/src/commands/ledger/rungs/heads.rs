//! Heads of HTTP/1.1.

use std::hint::black_box;

use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::ledger::Rung;

use super::request::{Asked, Heads, S3Request, fields};

/// More headers than heads of ours have.
const HEADERS_MAX: usize = 32;

/// Writing and reading the heads of a request and its answer, but for the signature and the sockets.
pub(in super::super) struct Http1Heads {
    request: S3Request,
    asked: Asked,
    heads: Heads,
    /// The answer's headers, as the gateway writes them.
    fields: Vec<(String, String)>,
    out: Vec<u8>,
}

impl Http1Heads {
    pub(in super::super) fn new(request: &S3Request) -> Self {
        let (asked, heads) = (request.asked(0), Heads { asked: Vec::new(), answered: Vec::new() });
        Http1Heads { request: request.clone(), asked, heads, fields: Vec::new(), out: Vec::new() }
    }

    fn read_answer(&self) -> Result<usize> {
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut answer = httparse::Response::new(&mut room);
        answer.parse(&self.heads.answered).map_err(bad)?;
        let length = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
        length.ok_or_else(|| bad("an answer without a length"))
    }
}

fn bad(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::BadResponse, "reading a head").caused_by(error)
}

impl Rung for Http1Heads {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.asked = self.request.asked(size_bytes);
        self.heads = self.request.heads(size_bytes)?;
        self.fields = fields(&self.heads.answered);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.out.clear();
        self.request.write_start(&mut self.out, &self.asked);
        black_box(&self.out);
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut asked = httparse::Request::new(&mut room);
        asked.parse(black_box(&self.heads.asked)).map_err(bad)?;
        black_box(&asked);
        self.out.clear();
        self.out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        for (name, value) in &self.fields {
            for piece in [name, ": ", value, "\r\n"] {
                self.out.extend_from_slice(piece.as_bytes());
            }
        }
        black_box(&self.out);
        black_box(self.read_answer()?);
        Ok(())
    }
}
