//! The components of an S3 request: its HTTP/1.1 head as the client writes it, its signature, and its handling by the
//! gateway's S3 layer. The S3 layer parses the request, checks its signature, and writes the head of the response.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use fordway_client::s3::{RequestSigner, S3Credentials, UnsignedRequest};
use fordway_command::file_error;
use fordway_serve::{AccessKeyPair, S3Responder, Users};
use fordway_store::{
    Bucket, Checksum, ChecksumAlgorithm, ETagPolicy, Error, ErrorKind, Key, MemoryStore, Objects, PutOptions,
    Result,
};
use fordway_wire::sigv4::{AuthorizationHeader, CanonicalRequest, SigningKey, UNSIGNED_PAYLOAD};
use fordway_workload::ledger::LedgerComponent;
use http::{Request, Response};
use tokio::runtime::{Builder, Runtime};

use super::{NonrepeatingContent, ObjectOperation, failed};

pub(in super::super) const REGION: &str = "us-east-1";

/// The HTTP/1.1 heads of a request and its response.
#[derive(Clone)]
pub(in super::super) struct HttpMessageHeads {
    pub(in super::super) asked: Vec<u8>,
    pub(in super::super) answered: Vec<u8>,
}

/// A signed request for an object. Clones share the heads of the gateway's responses.
#[derive(Clone)]
pub(in super::super) struct S3RequestTemplate {
    host: String,
    identity: AccessKeyPair,
    bucket: Bucket,
    operation: ObjectOperation,
    contents: NonrepeatingContent,
    heads: Rc<RefCell<HashMap<u64, HttpMessageHeads>>>,
}

/// The part of a request that depends on the object.
pub(super) struct ObjectRequest {
    pub(super) path: String,
    /// The signed headers, without the header that carries the signature.
    headers: Vec<(&'static str, String)>,
    /// The length of the body, as a header value.
    length: Option<String>,
}

impl S3RequestTemplate {
    /// Creates a request for objects in `bucket` on the gateway at `host`, which includes the port.
    pub(in super::super) fn new(
        operation: ObjectOperation,
        host: &str,
        identity: &AccessKeyPair,
        bucket: &Bucket,
        contents: &NonrepeatingContent,
    ) -> Self {
        let (host, identity, contents) = (host.to_owned(), identity.clone(), contents.clone());
        S3RequestTemplate {
            host,
            identity,
            bucket: bucket.clone(),
            operation,
            contents,
            heads: Rc::default(),
        }
    }

    pub(super) fn asked(&self, size_bytes: u64) -> ObjectRequest {
        let path = format!("/{}/{}", self.bucket.as_str(), self.operation.name(size_bytes));
        let (header, length) = match self.operation {
            ObjectOperation::Get => (("x-amz-checksum-mode", "ENABLED".to_owned()), None),
            ObjectOperation::Put => {
                let content = self.contents.of(size_bytes);
                let checksum = Checksum::of(ChecksumAlgorithm::Crc64Nvme, content).to_base64();
                (("x-amz-checksum-crc64nvme", checksum), Some(size_bytes.to_string()))
            }
        };
        ObjectRequest { path, headers: vec![header], length }
    }

    #[cfg(feature = "http3")]
    pub(in crate::commands::ledger) fn operation(&self) -> ObjectOperation {
        self.operation
    }

    pub(super) fn method(&self) -> &'static str {
        match self.operation {
            ObjectOperation::Get => "GET",
            ObjectOperation::Put => "PUT",
        }
    }

    fn signer(&self) -> RequestSigner {
        let AccessKeyPair { access_key, secret_key } = &self.identity;
        RequestSigner::new(S3Credentials::keys(access_key, secret_key, "this run"), REGION)
    }

    /// Writes the head without its signature.
    pub(super) fn write_start(&self, head: &mut Vec<u8>, asked: &ObjectRequest) {
        let agent = concat!("fordway/", env!("CARGO_PKG_VERSION"));
        let start =
            [self.method(), " ", &asked.path, " HTTP/1.1\r\nhost: ", &self.host, "\r\nuser-agent: ", agent];
        push_all(head, &start);
        head.extend_from_slice(b"\r\n");
        for (name, value) in &asked.headers {
            push_all(head, &[name, ": ", value, "\r\n"]);
        }
        if let Some(length) = &asked.length {
            push_all(head, &["content-length: ", length, "\r\n"]);
        }
    }

    fn sign(&self, signer: &RequestSigner, asked: &ObjectRequest, head: &mut Vec<u8>) {
        let headers: Vec<_> = asked.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let unsigned = UnsignedRequest {
            method: self.method(),
            path: &asked.path,
            query: "",
            host: &self.host,
            headers: &headers,
            payload_hash: UNSIGNED_PAYLOAD,
        };
        signer.sign(&unsigned, SystemTime::now(), |name, value| {
            push_all(head, &[name, ": ", value, "\r\n"]);
        });
    }

    /// Returns a complete head, signed at the current time.
    pub(super) fn head(&self, size_bytes: u64) -> Vec<u8> {
        let (asked, mut head) = (self.asked(size_bytes), Vec::new());
        self.write_start(&mut head, &asked);
        self.sign(&self.signer(), &asked, &mut head);
        head.extend_from_slice(b"\r\n");
        head
    }

    /// Returns the heads of a request and of the gateway's response. Fails if the status is not 200.
    pub(in super::super) fn heads(&self, size_bytes: u64) -> Result<HttpMessageHeads> {
        if let Some(known) = self.heads.borrow().get(&size_bytes) {
            return Ok(known.clone());
        }
        let asked = self.head(size_bytes);
        let answered =
            self.ask(&asked, size_bytes).map_err(|error| file_error("asking", &self.host, error))?;
        if !answered.starts_with(b"HTTP/1.1 200 ") {
            let said = String::from_utf8_lossy(&answered);
            let line = said.lines().next().unwrap_or_default();
            return Err(Error::new(ErrorKind::BadResponse, format!("the gateway responded {line:?}")));
        }
        let heads = HttpMessageHeads { asked, answered };
        self.heads.borrow_mut().insert(size_bytes, heads.clone());
        Ok(heads)
    }

    fn ask(&self, head: &[u8], size_bytes: u64) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.host)?;
        stream.write_all(head)?;
        if self.operation == ObjectOperation::Put {
            stream.write_all(self.contents.of(size_bytes))?;
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            answer.extend(byte);
        }
        Ok(answer)
    }
}

fn push_all(head: &mut Vec<u8>, pieces: &[&str]) {
    pieces.iter().for_each(|piece| head.extend_from_slice(piece.as_bytes()));
}

/// Returns the names and values of the headers in a head.
pub(in crate::commands::ledger) fn fields(head: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(head);
    let fields = text.lines().filter_map(|line| line.split_once(": "));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Signs a request.
pub(in super::super) struct RequestSigningComponent {
    request: S3RequestTemplate,
    signer: RequestSigner,
    asked: ObjectRequest,
    head: Vec<u8>,
}

impl RequestSigningComponent {
    pub(in super::super) fn new(request: &S3RequestTemplate) -> Self {
        let (signer, asked) = (request.signer(), request.asked(0));
        RequestSigningComponent { request: request.clone(), signer, asked, head: Vec::new() }
    }
}

impl LedgerComponent for RequestSigningComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.asked = self.request.asked(size_bytes);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.head.clear();
        self.request.sign(&self.signer, &self.asked, &mut self.head);
        black_box(&self.head);
        Ok(())
    }
}

/// Verifies a signature. The signing key for the day has already been derived.
pub(in super::super) struct SignatureCheckComponent {
    request: S3RequestTemplate,
    key: SigningKey,
    path: String,
    /// The signed headers by name, and the value of the `authorization` header.
    headers: Vec<(String, String)>,
    authorization: String,
}

impl SignatureCheckComponent {
    pub(in super::super) fn new(request: &S3RequestTemplate) -> Self {
        let key = SigningKey::new(&request.identity.secret_key, SystemTime::now(), REGION, "s3");
        let (path, authorization) = (String::new(), String::new());
        SignatureCheckComponent { request: request.clone(), key, path, headers: Vec::new(), authorization }
    }

    fn is_right(&self) -> bool {
        let headers: Vec<_> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let date = headers.iter().find(|(name, _)| *name == "x-amz-date").map_or("", |(_, date)| date);
        let request = CanonicalRequest {
            method: self.request.method(),
            path: &self.path,
            query: "",
            headers: &headers,
            payload_hash: UNSIGNED_PAYLOAD,
        };
        AuthorizationHeader::parse(&self.authorization)
            .is_some_and(|stated| self.key.verifies(stated.signature, date, &request))
    }
}

impl LedgerComponent for SignatureCheckComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.path = self.request.asked(size_bytes).path;
        let now = SystemTime::now();
        if !self.key.is_for(now) {
            self.key = SigningKey::new(&self.request.identity.secret_key, now, REGION, "s3");
        }
        self.headers = fields(&self.request.head(size_bytes));
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
        let wrong = || Error::new(ErrorKind::SignatureDoesNotMatch, "our own signature does not verify");
        self.is_right().then_some(()).ok_or_else(wrong)
    }
}

/// The maximum number of headers in a head. The heads of these requests and responses have fewer headers.
const HEADERS_MAX: usize = 32;

/// Writes and reads the heads of a request and its response, without the signature and the sockets.
pub(in crate::commands::ledger) struct Http1HeadComponent {
    request: S3RequestTemplate,
    asked: ObjectRequest,
    heads: HttpMessageHeads,
    /// The response's headers, as the gateway writes them.
    fields: Vec<(String, String)>,
    out: Vec<u8>,
}

impl Http1HeadComponent {
    pub(in crate::commands::ledger) fn new(request: &S3RequestTemplate) -> Self {
        let (asked, heads) = (request.asked(0), HttpMessageHeads { asked: Vec::new(), answered: Vec::new() });
        Http1HeadComponent { request: request.clone(), asked, heads, fields: Vec::new(), out: Vec::new() }
    }

    fn read_answer(&self) -> Result<usize> {
        let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut answer = httparse::Response::new(&mut room);
        answer.parse(&self.heads.answered).map_err(bad)?;
        let length = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
        length.ok_or_else(|| bad("the response has no length"))
    }
}

fn bad(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::BadResponse, "reading a head").caused_by(error)
}

impl LedgerComponent for Http1HeadComponent {
    fn moves_content(&self) -> bool {
        false
    }

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

/// A request without content, which the S3 layer handles in memory. The store is also in memory, and contains one empty
/// object.
pub(in crate::commands::ledger) struct S3LayerComponent {
    layer: S3Responder,
    runtime: Runtime,
    request: S3RequestTemplate,
    signed: Request<()>,
    /// The request of the next operation, and the response to the previous operation.
    next: Option<Request<()>>,
    answered: Response<()>,
}

impl S3LayerComponent {
    pub(in crate::commands::ledger) fn new(
        operation: ObjectOperation,
        bucket: &Bucket,
        contents: &NonrepeatingContent,
    ) -> Result<Self> {
        let identity = AccessKeyPair::generate()?;
        let store = MemoryStore::new(ETagPolicy::Fast);
        store.create_bucket(bucket)?;
        store.put(bucket, &Key::new(operation.name(0))?, &[], &PutOptions::default())?;
        let layer = S3Responder::new(Users::one(identity.clone(), Arc::new(store)));
        let request = S3RequestTemplate::new(operation, "127.0.0.1:9000", &identity, bucket, contents);
        let runtime = Builder::new_current_thread().build().map_err(failed)?;
        let (signed, answered) = (Request::default(), Response::default());
        Ok(S3LayerComponent { layer, runtime, request, signed, next: None, answered })
    }
}

impl LedgerComponent for S3LayerComponent {
    /// Ignores the content size, because the request has no content.
    fn prepare(&mut self, _: u64) -> Result<()> {
        let mut request = Request::builder().method(self.request.method()).uri(self.request.asked(0).path);
        for (name, value) in fields(&self.request.head(0)) {
            request = request.header(name, value);
        }
        self.signed = request.body(()).map_err(failed)?;
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        self.next = Some(self.signed.clone());
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let request = self.next.take().unwrap_or_else(|| self.signed.clone());
        self.answered = self.runtime.block_on(self.layer.answer(request));
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.answered.status().is_success() {
            true => Ok(()),
            false => {
                let detail = format!("the S3 layer responded {}", self.answered.status());
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
        }
    }
}
