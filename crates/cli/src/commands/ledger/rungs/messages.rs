//! What is done to messages: frames of the node lane, heads of HTTP/1.1, signatures.

use std::borrow::Cow;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

use fordway_client::s3::{Credentials, Signer, Unsigned};
use fordway_serve::Identity;
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Result};
use fordway_wire::node::{Flags, Header, Inbox, ReadDone, Reply, Request, Sent, take_reply};
use fordway_wire::sigv4::{Authorization, SignedRequest, SigningKey, UNSIGNED_PAYLOAD};
use fordway_workload::ledger::Rung;

use super::files::name;
use crate::exit::file_error;

const REGION: &str = "us-east-1";
/// More headers than heads of ours have.
const HEADERS_MAX: usize = 32;

/// Writing and reading the frames of a read by the node lane: what both sides do but for the socket.
pub(in super::super) struct NodeFrames {
    bucket: Bucket,
    key: Key,
    options: GetOptions,
    size_bytes: u64,
    out: Vec<u8>,
    inbox: Inbox,
}

impl NodeFrames {
    pub(in super::super) fn new(bucket: &Bucket) -> Result<Self> {
        Ok(NodeFrames {
            bucket: bucket.clone(),
            key: Key::new(name(0))?,
            options: GetOptions::default(),
            size_bytes: 0,
            out: Vec::new(),
            inbox: Inbox::default(),
        })
    }

    /// The lengths of the request and of the reply without its body, in bytes.
    pub(in super::super) fn lengths(&mut self, size_bytes: u64) -> Result<(usize, usize)> {
        self.prepare(size_bytes)?;
        self.put_request();
        let request_bytes = self.out.len();
        self.put_reply();
        Ok((request_bytes, self.out.len()))
    }

    fn put_request(&mut self) {
        self.out.clear();
        let request = Request::Read {
            bucket: Cow::Borrowed(&self.bucket),
            key: Cow::Borrowed(&self.key),
            options: Cow::Borrowed(&self.options),
            is_large: false,
        };
        request.put(&mut self.out, 1, 0);
    }

    fn put_reply(&mut self) {
        self.out.clear();
        let answer = ReadDone { size: self.size_bytes, sent: Sent::Descriptor(0, self.size_bytes) };
        Reply { id: 1, flags: Flags::default(), answer: Ok(&answer), body_bytes: 0 }.put(&mut self.out);
    }

    /// What was written, as it is read.
    fn arrive(&mut self) -> Result<Header> {
        let room = self.inbox.room();
        room[..self.out.len()].copy_from_slice(&self.out);
        self.inbox.filled(self.out.len());
        self.inbox.next_header()?.ok_or_else(|| ErrorKind::Internal.into())
    }
}

impl Rung for NodeFrames {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.key = Key::new(name(size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.put_request();
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        black_box(Request::take(header.code, frame.fields)?);
        self.inbox.consume(header.frame_bytes());
        self.put_reply();
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        black_box(take_reply::<ReadDone>(&frame)?);
        self.inbox.consume(header.frame_bytes());
        Ok(())
    }
}

/// A signed request for an object, head by head.
#[derive(Clone)]
pub(in super::super) struct S3Request {
    host: String,
    identity: Identity,
    path: String,
}

impl S3Request {
    /// Of objects in `bucket` at the gateway at `host` (with its port).
    pub(in super::super) fn new(host: &str, identity: &Identity, bucket: &Bucket) -> Self {
        let path = format!("/{}/", bucket.as_str());
        S3Request { host: host.to_owned(), identity: identity.clone(), path }
    }

    fn path(&self, size_bytes: u64) -> String {
        format!("{}{}", self.path, name(size_bytes))
    }

    fn signer(&self) -> Signer {
        let Identity { access_key, secret_key } = &self.identity;
        Signer::new(Credentials::keys(access_key, secret_key, "this run"), REGION)
    }

    fn write_start(&self, head: &mut Vec<u8>, path: &str) {
        let agent = concat!("fordway/", env!("CARGO_PKG_VERSION"));
        let pieces = ["GET ", path, " HTTP/1.1\r\nhost: ", &self.host, "\r\nuser-agent: ", agent];
        pieces.iter().for_each(|piece| head.extend_from_slice(piece.as_bytes()));
        head.extend_from_slice(b"\r\nx-amz-checksum-mode: ENABLED\r\n");
    }

    fn sign(&self, signer: &Signer, path: &str, head: &mut Vec<u8>) {
        let unsigned = Unsigned {
            method: "GET",
            path,
            query: "",
            host: &self.host,
            headers: &[("x-amz-checksum-mode", "ENABLED")],
            payload_hash: UNSIGNED_PAYLOAD,
        };
        signer.sign(&unsigned, SystemTime::now(), |name, value| {
            [name, ": ", value, "\r\n"].iter().for_each(|piece| head.extend_from_slice(piece.as_bytes()));
        });
    }

    /// The heads of a request and of the answer that the gateway gives. Errors: it gives another than 200.
    pub(in super::super) fn heads(&self, size_bytes: u64) -> Result<(Vec<u8>, Vec<u8>)> {
        let (path, mut request) = (self.path(size_bytes), Vec::new());
        self.write_start(&mut request, &path);
        self.sign(&self.signer(), &path, &mut request);
        request.extend_from_slice(b"\r\n");
        let asked = TcpStream::connect(&self.host).and_then(|mut stream| {
            stream.write_all(&request)?;
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                answer.extend(byte);
            }
            Ok(answer)
        });
        let answer = asked.map_err(|error| file_error("asking", &self.host, error))?;
        match answer.starts_with(b"HTTP/1.1 200 ") {
            true => Ok((request, answer)),
            false => {
                let said = String::from_utf8_lossy(&answer);
                let line = said.lines().next().unwrap_or_default();
                Err(Error::new(ErrorKind::BadResponse, format!("the gateway answered {line:?}")))
            }
        }
    }
}

/// Signing a request.
pub(in super::super) struct Sign {
    request: S3Request,
    signer: Signer,
    path: String,
    head: Vec<u8>,
}

impl Sign {
    pub(in super::super) fn new(request: &S3Request) -> Self {
        let signer = request.signer();
        Sign { request: request.clone(), signer, path: String::new(), head: Vec::new() }
    }
}

impl Rung for Sign {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.path = self.request.path(size_bytes);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.head.clear();
        self.request.sign(&self.signer, &self.path, &mut self.head);
        black_box(&self.head);
        Ok(())
    }
}

/// Verifying a signature, with the day's key at hand.
pub(in super::super) struct Verify {
    request: S3Request,
    key: SigningKey,
    path: String,
    /// The headers that are signed, by name, and what the signature says.
    headers: Vec<(String, String)>,
    authorization: String,
}

impl Verify {
    pub(in super::super) fn new(request: &S3Request) -> Self {
        let key = SigningKey::new(&request.identity.secret_key, SystemTime::now(), REGION, "s3");
        let (path, authorization) = (String::new(), String::new());
        Verify { request: request.clone(), key, path, headers: Vec::new(), authorization }
    }

    fn is_right(&self) -> bool {
        let headers: Vec<_> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let date = headers.iter().find(|(name, _)| *name == "x-amz-date").map_or("", |(_, date)| date);
        let request = SignedRequest {
            method: "GET",
            path: &self.path,
            query: "",
            headers: &headers,
            payload_hash: UNSIGNED_PAYLOAD,
        };
        Authorization::parse(&self.authorization)
            .is_some_and(|stated| self.key.verifies(stated.signature, date, &request))
    }
}

impl Rung for Verify {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.path = self.request.path(size_bytes);
        let now = SystemTime::now();
        if !self.key.is_for(now) {
            self.key = SigningKey::new(&self.request.identity.secret_key, now, REGION, "s3");
        }
        let mut head = Vec::new();
        self.request.write_start(&mut head, &self.path);
        self.request.sign(&self.request.signer(), &self.path, &mut head);
        let text = String::from_utf8_lossy(&head);
        let fields = text.lines().filter_map(|line| line.split_once(": "));
        self.headers = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let at = self.headers.iter().position(|(name, _)| name == "authorization");
        self.authorization = at.map(|at| self.headers.remove(at).1).unwrap_or_default();
        self.headers.retain(|(name, _)| name != "user-agent");
        self.headers.sort();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        black_box(self.is_right());
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let wrong = || Error::new(ErrorKind::SignatureDoesNotMatch, "a signature of our own is not right");
        self.is_right().then_some(()).ok_or_else(wrong)
    }
}

/// Writing and reading the heads of a request and its answer, but for the signature and the sockets.
pub(in super::super) struct Http1Heads {
    request: S3Request,
    path: String,
    asked: Vec<u8>,
    answered: Vec<u8>,
    /// The answer's headers, as the gateway writes them.
    fields: Vec<(String, String)>,
    out: Vec<u8>,
}

impl Http1Heads {
    pub(in super::super) fn new(request: &S3Request) -> Self {
        Http1Heads {
            request: request.clone(),
            path: String::new(),
            asked: Vec::new(),
            answered: Vec::new(),
            fields: Vec::new(),
            out: Vec::new(),
        }
    }

    fn read_answer(&self) -> Result<usize> {
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut answer = httparse::Response::new(&mut room);
        answer.parse(&self.answered).map_err(bad)?;
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
        let path = self.request.path(size_bytes);
        if self.path != path {
            (self.asked, self.answered) = self.request.heads(size_bytes)?;
            self.path = path;
            let text = String::from_utf8_lossy(&self.answered);
            let fields = text.lines().filter_map(|line| line.split_once(": "));
            self.fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.out.clear();
        self.request.write_start(&mut self.out, &self.path);
        black_box(&self.out);
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut asked = httparse::Request::new(&mut room);
        asked.parse(black_box(&self.asked)).map_err(bad)?;
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
