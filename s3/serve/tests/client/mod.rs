//! A minimal client that can also send requests that a correct client would never send.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part of it")]

#[cfg(feature = "http3")]
pub mod frames;
pub mod http2;
#[cfg(feature = "http3")]
pub mod http3;
pub mod slow;
pub mod tls;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use fordway_serve::{AccessKeyPair, AnonymousUser, Gateway, GatewayConfig, RunningGateway, Users};
use fordway_store::{Bucket, Key, MemoryStore, Objects, Store};
use hmac::{Hmac, KeyInit as _, Mac};
use sha2::{Digest as _, Sha256};

pub const BUCKET: &str = "My_Bucket.1";

/// A gateway over an in-memory store that has one bucket.
pub struct Fixture {
    pub store: MemoryStore,
    pub client: Client,
    pub gateway: RunningGateway,
}

pub fn serve() -> Fixture {
    serve_with(|_| ())
}

pub fn serve_with(change: impl FnOnce(&mut GatewayConfig)) -> Fixture {
    serve_through(|store| Arc::new(store), change)
}

/// Starts a gateway over a store that wraps the in-memory store.
pub fn serve_through(
    wrap: impl FnOnce(MemoryStore) -> Arc<dyn Store>,
    change: impl FnOnce(&mut GatewayConfig),
) -> Fixture {
    let store = MemoryStore::default();
    store.create_bucket(&bucket()).unwrap();
    let identity = AccessKeyPair::generate().unwrap();
    let mut config = GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.threads = 2;
    change(&mut config);
    let gateway =
        Gateway::bind(Users::one(identity.clone(), wrap(store.clone())), config).unwrap().spawn().unwrap();
    let client = Client { address: gateway.local_addr(), identity, clock_offset_s: 0, dates_by_date: false };
    Fixture { store, client, gateway }
}

/// Starts a gateway that serves anonymous requests if the rules of the bucket permit them.
pub fn serve_openly(change: impl FnOnce(&mut GatewayConfig)) -> Fixture {
    let store = MemoryStore::default();
    store.create_bucket(&bucket()).unwrap();
    let identity = AccessKeyPair::generate().unwrap();
    let users = Users::one(identity.clone(), Arc::new(store.clone()));
    let users = users.with_anonymous(AnonymousUser { name: "nobody".to_owned(), acts_as: None }).unwrap();
    let mut config =
        GatewayConfig { threads: 1, ..GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
    change(&mut config);
    let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
    let client = Client { address: gateway.local_addr(), identity, clock_offset_s: 0, dates_by_date: false };
    Fixture { store, client, gateway }
}

pub fn bucket() -> Bucket {
    Bucket::new(BUCKET).unwrap()
}

pub fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

#[derive(Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub identity: AccessKeyPair,
    pub clock_offset_s: i64,
    /// Whether requests contain the time in `Date` instead of in Amazon's header.
    pub dates_by_date: bool,
}

/// A request. `path` and `query` are sent unchanged.
pub struct Call<'a> {
    pub method: &'a str,
    pub path: String,
    pub query: &'a str,
    pub headers: Vec<(&'a str, String)>,
    pub body: Vec<u8>,
    /// The value of `x-amz-content-sha256`; `None` for the SHA-256 of the body.
    pub payload: Option<String>,
}

impl<'a> Call<'a> {
    pub fn new(method: &'a str, path: impl Into<String>) -> Self {
        Call { method, path: path.into(), query: "", headers: Vec::new(), body: Vec::new(), payload: None }
    }

    pub fn on(method: &'a str, key: &str) -> Self {
        Call::new(method, format!("/{BUCKET}/{key}"))
    }

    pub fn query(mut self, query: &'a str) -> Self {
        self.query = query;
        self
    }

    pub fn header(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub fn payload(mut self, hash: &str) -> Self {
        self.payload = Some(hash.to_owned());
        self
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the text of the first element with that name.
    pub fn element(&self, name: &str) -> Option<String> {
        self.elements(name).into_iter().next()
    }

    pub fn elements(&self, name: &str) -> Vec<String> {
        let text = self.text();
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        text.split(&open).skip(1).filter_map(|rest| Some(rest.split_once(&close)?.0.to_owned())).collect()
    }

    /// Returns the status and the `Code` of an error document.
    pub fn error(&self) -> (u16, String) {
        assert!(self.status >= 300, "expected an error, got {}: {}", self.status, self.text());
        (self.status, self.element("Code").unwrap_or_default())
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.text());
        self
    }
}

impl Client {
    pub fn send(&self, call: &Call<'_>) -> Answer {
        let mut stream = self.connect();
        stream.write_all(&self.head(call)).unwrap();
        // An error is ignored, because a server that refuses a body may close the connection before it has read the
        // whole body.
        let _ = stream.write_all(&call.body);
        read_answer(&mut stream, call.method)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Returns the head of a signed request that makes the server close the connection after its response.
    pub fn head(&self, call: &Call<'_>) -> Vec<u8> {
        let (day, moment) = self.now();
        let hash = call.payload.clone().unwrap_or_else(|| hex(&Sha256::digest(&call.body)));
        let mut headers = call.headers.clone();
        if !headers.iter().any(|(name, _)| *name == "host") {
            headers.push(("host", self.address.to_string()));
        }
        headers.push(("x-amz-content-sha256", hash.clone()));
        match self.dates_by_date {
            true => headers.push(("date", fordway_wire::date::format_http(SystemTime::now()))),
            false => headers.push(("x-amz-date", moment.clone())),
        }
        headers.sort();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let query = canonical_query(call.query);
        let canonical = format!("{}\n{}\n{query}\n{lines}\n{names}\n{hash}", call.method, call.path);
        let scope = format!("{day}/us-east-1/s3/aws4_request");
        let signature = self.sign(&day, &moment, &canonical);
        let mut head = format!("{} {}", call.method, call.path);
        if !call.query.is_empty() {
            head += &format!("?{}", call.query);
        }
        head += " HTTP/1.1\r\nconnection: close\r\n";
        for (name, value) in &headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !call.headers.iter().any(|(name, _)| *name == "content-length") {
            head += &format!("content-length: {}\r\n", call.body.len());
        }
        let access_key = &self.identity.access_key;
        head += &format!(
            "authorization: AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\r\n"
        );
        head.into_bytes()
    }

    /// Returns the query of a presigned URL that is valid for `expires_s` seconds.
    pub fn presigned(&self, method: &str, path: &str, expires_s: u32) -> String {
        let (day, moment) = self.now();
        let credential = format!("{}%2F{day}%2Fus-east-1%2Fs3%2Faws4_request", self.identity.access_key);
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={moment}&X-Amz-Expires={expires_s}&X-Amz-SignedHeaders=host"
        );
        let canonical = format!("{method}\n{path}\n{query}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD", self.address);
        format!("{query}&X-Amz-Signature={}", self.sign(&day, &moment, &canonical))
    }

    /// Sends a request unchanged.
    pub fn send_raw(&self, method: &str, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        read_answer(&mut stream, method)
    }

    fn sign(&self, day: &str, moment: &str, canonical: &str) -> String {
        let scope = format!("{day}/us-east-1/s3/aws4_request");
        let hash = hex(&Sha256::digest(canonical));
        self.sign_text(day, &format!("AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hash}"))
    }

    /// Returns the fields of a form with `policy`, signed at the current time.
    pub fn form_fields(&self, policy: &str) -> Vec<(&'static str, String)> {
        let (day, moment) = self.now();
        let encoded = base64::engine::general_purpose::STANDARD.encode(policy);
        let signature = self.sign_text(&day, &encoded);
        vec![
            ("x-amz-algorithm", "AWS4-HMAC-SHA256".to_owned()),
            ("x-amz-credential", format!("{}/{day}/us-east-1/s3/aws4_request", self.identity.access_key)),
            ("x-amz-date", moment),
            ("x-amz-signature", signature),
            ("policy", encoded),
        ]
    }

    fn sign_text(&self, day: &str, text: &str) -> String {
        let secret = format!("AWS4{}", self.identity.secret_key).into_bytes();
        let key =
            [day, "us-east-1", "s3", "aws4_request"].into_iter().fold(secret, |key, part| mac(&key, part));
        hex(&mac(&key, text))
    }

    /// Returns an `aws-chunked` body with one signed chunk and the empty last chunk. `head` is the head of the request,
    /// whose signature determines the signatures of the chunks.
    pub fn signed_chunks(&self, head: &[u8], data: &[u8]) -> Vec<u8> {
        let head = String::from_utf8_lossy(head);
        let previous = head.split("Signature=").nth(1).unwrap()[..64].to_owned();
        let moment = head.split("x-amz-date: ").nth(1).unwrap()[..16].to_owned();
        let day = &moment[..8];
        let empty = hex(&Sha256::digest(b""));
        let sign = |previous: &str, data: &[u8]| {
            let (scope, hash) = (format!("{day}/us-east-1/s3/aws4_request"), hex(&Sha256::digest(data)));
            self.sign_text(
                day,
                &format!("AWS4-HMAC-SHA256-PAYLOAD\n{moment}\n{scope}\n{previous}\n{empty}\n{hash}"),
            )
        };
        let first = sign(&previous, data);
        let last = sign(&first, b"");
        let mut body = format!("{:x};chunk-signature={first}\r\n", data.len()).into_bytes();
        body.extend_from_slice(data);
        body.extend_from_slice(format!("\r\n0;chunk-signature={last}\r\n\r\n").as_bytes());
        body
    }

    fn now(&self) -> (String, String) {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + self.clock_offset_s;
        let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let day = format!("{year:04}{month:02}{day:02}");
        let moment = format!("{day}T{:02}{:02}{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60);
        (day, moment)
    }
}

pub fn read_answer(stream: &mut TcpStream, method: &str) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no response: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let split = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()));
    let headers = lines.filter_map(split).collect();
    let answer = Answer { status, headers, body: bytes[end + 4..].to_vec() };
    let announced = answer.header("content-length").and_then(|length| length.parse().ok());
    if method != "HEAD" && status != 304 {
        assert_eq!(answer.body.len(), announced.unwrap_or(0), "{head}");
    }
    answer
}

/// Returns the head of a request that keeps the connection open.
pub fn lasting(client: &Client, call: &Call<'_>) -> Vec<u8> {
    let head = String::from_utf8(client.head(call)).unwrap();
    head.replace("connection: close\r\n", "").into_bytes()
}

/// Reads one response from a connection that remains open. Returns the head, and the body, whose length is
/// `content-length`.
pub fn next_answer(stream: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let got = stream.read(&mut byte).unwrap();
        assert_eq!(got, 1, "the connection ended: {:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect();
    pairs.sort();
    pairs.join("&")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the year, month and day that are `days` days after 1970-01-01.
fn civil(mut days: i64) -> (i64, usize, i64) {
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let mut year = 1970;
    while days >= 365 + i64::from(leap(year)) {
        days -= 365 + i64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month + 1, days + 1)
}
