//! Checks that every request is either performed or refused, and has no other effect. Requests with all kinds of
//! parameters, sub-resources and headers must leave the directory unchanged, unless they are operations that change it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig, RunningNodeGateway};
use fordway_store::{ETagPolicy, Store};

/// The operations of S3, one per line.
const OPERATIONS: &str = include_str!("../../../s3/serve/src/gate/operations.txt");
const OBJECT: &str = "/bucket/dir/k";

/// A gateway for a directory with two buckets, one of which is empty, and a connection to the gateway.
struct Ground {
    dir: tempfile::TempDir,
    connection: BufReader<UnixStream>,
    _gateway: RunningNodeGateway,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("bucket")).unwrap();
        std::fs::create_dir_all(root.join("empty")).unwrap();
        let config = PosixConfig { etag_policy: ETagPolicy::Md5, ..PosixConfig::default() };
        let open = {
            let root = root.clone();
            move || Ok(Arc::new(PosixStore::open(&root, config.clone())?) as Arc<dyn Store>)
        };
        let socket = dir.path().join("socket");
        let gateway =
            NodeGateway::bind(Arc::new(open), NodeGatewayConfig::new(&socket)).unwrap().spawn().unwrap();
        let connection = BufReader::new(UnixStream::connect(socket).unwrap());
        let mut ground = Ground { dir, connection, _gateway: gateway };
        let described = "x-amz-meta-colour: red\r\nx-amz-tagging: a=b\r\n";
        assert_eq!(ground.send("PUT", OBJECT, described, "precious").0, 200);
        ground
    }

    /// Sends a request. Returns the status and body of the response.
    fn send(&mut self, method: &str, target: &str, headers: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        self.connection.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.connection.read_line(&mut line).unwrap();
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().unwrap();
            }
            if let Some(value) = line.strip_prefix("content-length: ").filter(|_| method != "HEAD") {
                length = value.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.connection.read_exact(&mut body).unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Returns all names below the root, with their mode, time, attributes and content.
    fn snapshot(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        note(&self.dir.path().join("root"), &mut found);
        found
    }
}

fn note(path: &Path, found: &mut BTreeMap<String, String>) {
    let metadata = std::fs::symlink_metadata(path).unwrap();
    let mut names = [0_u8; 4096];
    let length = rustix::fs::listxattr(path, &mut names[..]).unwrap_or(0);
    let attributes = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(|name| {
        let mut value = vec![0; 65_536];
        let length = rustix::fs::getxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    });
    let attributes: Vec<_> = attributes.collect();
    let (mode, time) = (metadata.mode(), (metadata.mtime(), metadata.mtime_nsec()));
    let content = metadata.is_file().then(|| std::fs::read(path).unwrap());
    let text = format!("{mode:o} {time:?} {attributes:?} {content:?}");
    found.insert(path.to_string_lossy().into_owned(), text);
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            note(&entry.unwrap().path(), found);
        }
    }
}

struct Row {
    is_offered: bool,
    method: &'static str,
    resource: &'static str,
    name: &'static str,
    parameters: Vec<&'static str>,
    headers: Vec<&'static str>,
    /// The optional parameters of the operation.
    further: Vec<&'static str>,
}

fn rows() -> Vec<Row> {
    let lines = OPERATIONS.lines().filter(|line| line.starts_with("done ") || line.starts_with("refused "));
    lines.map(row).collect()
}

fn row(line: &'static str) -> Row {
    let columns: Vec<&str> = line.split('|').collect();
    let words: Vec<&str> = columns[0].split_ascii_whitespace().collect();
    let [verdict, method, resource, name, selector] = words[..] else { panic!("{line}") };
    let (mut parameters, mut headers) = (Vec::new(), Vec::new());
    let mut rest = selector;
    while let Some(at) = rest.rfind(['?', '!']) {
        if rest[at..].starts_with('?') { &mut parameters } else { &mut headers }.push(&rest[at + 1..]);
        rest = &rest[..at];
    }
    let further = columns[1].split_ascii_whitespace().filter(|word| !word.starts_with('@')).collect();
    Row { is_offered: verdict == "done", method, resource, name, parameters, headers, further }
}

fn target(row: &Row) -> String {
    let path = match row.resource {
        "service" => "/",
        "bucket" => "/empty",
        _ => OBJECT,
    };
    let value = |name: &&str| match *name {
        name if name.contains('=') => name.to_owned(),
        "partNumber" => "partNumber=1".to_owned(),
        "uploadId" => "uploadId=nonesuch".to_owned(),
        name if ["id", "annotationName", "max-directory-buckets"].contains(&name) => format!("{name}=1"),
        name => name.to_owned(),
    };
    let query: Vec<String> = row.parameters.iter().map(value).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

fn headers(row: &Row) -> String {
    let line = |name: &&str| match *name {
        name if name.ends_with("-source") => format!("{name}: {OBJECT}\r\n"),
        name => format!("{name}: something\r\n"),
    };
    let attributes = if row.name == "GetObjectAttributes" { "x-amz-object-attributes: ETag\r\n" } else { "" };
    row.headers.iter().map(line).collect::<String>() + attributes
}

fn body(row: &Row) -> &'static str {
    match row.name {
        "DeleteObjects" => "<Delete><Object><Key>nobody</Key></Object></Delete>",
        "PutBucketVersioning" => {
            "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>"
        }
        "PutObjectTagging" => "<Tagging><TagSet><Tag><Key>a</Key><Value>c</Value></Tag></TagSet></Tagging>",
        _ if row.method == "PUT" && !row.is_offered => "<Anything/>",
        _ => "",
    }
}

/// Each operation must be performed or rejected, as specified in the table. A rejected operation must change nothing.
#[test]
fn all_operations_of_the_model() {
    let mut ground = Ground::new();
    let rows = rows();
    assert!(rows.len() > 100, "{} operations", rows.len());
    let before = ground.snapshot();
    for row in rows.iter().filter(|row| !row.is_offered) {
        let (status, answer) = ground.send(row.method, &target(row), &headers(row), body(row));
        assert_eq!(status, 501, "{}: {answer}", row.name);
        assert!(answer.contains("<Code>NotImplemented</Code>"), "{}: {answer}", row.name);
    }
    // For an access control list in a header, the gateway returns the same error as AWS. For a list in a document, the
    // gateway returns `NotImplemented`, so that s3cmd can copy objects.
    let (status, answer) = ground.send("PUT", &format!("{OBJECT}?acl"), "x-amz-acl: public-read\r\n", "");
    assert!(
        status == 400 && answer.contains("<Code>AccessControlListNotSupported</Code>"),
        "{status} {answer}"
    );
    assert_eq!(ground.snapshot(), before);
    for row in rows.iter().filter(|row| row.is_offered && row.name != "DeleteBucket") {
        let before = ground.snapshot();
        let (status, answer) = ground.send(row.method, &target(row), &headers(row), body(row));
        assert!(status != 501 && status != 500, "{}: {status} {answer}", row.name);
        if status >= 300 || ["GET", "HEAD"].contains(&row.method) {
            assert_eq!(ground.snapshot(), before, "{}: {status} {answer}", row.name);
        }
    }
}

/// Returns the names of all parameters in the table, both required and optional.
fn real_names(rows: &[Row]) -> Vec<String> {
    let names = rows.iter().flat_map(|row| row.parameters.iter().chain(&row.further));
    let mut names: Vec<String> = names.map(|name| name.split('=').next().unwrap().to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns whether a request with only the parameter `name` is an S3 operation that may change the directory. Deleting
/// by version ID acquires the key's lock, which is stored in a file.
fn is_meant(method: &str, target: &str, name: &str) -> bool {
    let meant = [("POST", "uploads"), ("DELETE", "tagging"), ("DELETE", "versionId")];
    target.starts_with("/bucket/") && meant.contains(&(method, name))
}

const TARGETS: [&str; 4] = [OBJECT, "/bucket/new", "/empty", "/fresh"];

#[test]
fn sub_resources_that_nobody_knows_change_nothing() {
    let mut ground = Ground::new();
    let before = ground.snapshot();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut name = || {
        let letters = (0..3 + random % 9).map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(
                b"abcdefghijklmnopqrstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_."[(random >> 33) as usize % 54],
            )
        });
        letters.collect::<String>()
    };
    for _ in 0..2000 {
        let name = name();
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
            for target in TARGETS {
                let (status, answer) = ground.send(method, &format!("{target}?{name}"), "", "<Anything/>");
                assert_eq!(status, 501, "{method} {target}?{name}: {answer}");
                assert!(method == "HEAD" || answer.contains(&name) || method == "POST", "{name}: {answer}");
            }
        }
    }
    assert_eq!(ground.snapshot(), before);
}

#[test]
fn sub_resources_of_others_change_nothing() {
    let mut ground = Ground::new();
    let before = ground.snapshot();
    for name in real_names(&rows()) {
        for method in ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"] {
            for target in TARGETS.iter().filter(|target| !is_meant(method, target, &name)) {
                for query in [name.clone(), format!("{name}="), format!("{name}=1"), format!("{name}&{name}")]
                {
                    ground.send(method, &format!("{target}?{query}"), "", "<Anything/>");
                    assert_eq!(ground.snapshot(), before, "{method} {target}?{query}");
                }
            }
        }
    }
}

#[test]
fn headers_that_nobody_knows_change_nothing() {
    let mut ground = Ground::new();
    let before = ground.snapshot();
    for header in [
        "x-amz-rename-source: /bucket/other",
        "x-amz-nonesuch: 1",
        "x-amz-object-lock-mode: GOVERNANCE",
        "x-amz-server-side-encryption: AES256",
        "x-amz-write-offset-bytes: 0",
        "x-amz-acl: public-read",
        "x-amz-storage-class: GLACIER",
        "x-amz-copy-source-range: bytes=0-1",
        "if-modified-since: Sat, 29 Oct 1994 19:43:31 GMT",
        "content-range: bytes 0-3/8",
        "x-minio-force-delete: true",
        "if-none-match: *\r\nif-none-match: *",
    ] {
        for method in ["PUT", "DELETE"] {
            let (status, answer) = ground.send(method, OBJECT, &format!("{header}\r\n"), "");
            assert!([400, 501].contains(&status), "{method} {header}: {status} {answer}");
            let name = header.split(':').next().unwrap();
            assert!(answer.contains(name), "{method} {header}: {answer}");
        }
    }
    assert_eq!(ground.snapshot(), before);
}

#[test]
fn elements_that_nobody_knows_are_refused_by_name() {
    let mut ground = Ground::new();
    let before = ground.snapshot();
    for (method, target, document, name) in [
        (
            "PUT",
            "/fresh",
            "<CreateBucketConfiguration><Location><Name>a</Name></Location></CreateBucketConfiguration>",
            "Location",
        ),
        (
            "POST",
            "/bucket?delete",
            "<Delete><Object><Key>dir/k</Key><Unless>me</Unless></Object></Delete>",
            "Object/Unless",
        ),
        (
            "PUT",
            "/bucket/dir/k?tagging",
            "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet><Until/></Tagging>",
            "Until",
        ),
        (
            "PUT",
            "/bucket?versioning",
            "<VersioningConfiguration><Status>Enabled</Status><Keep>3</Keep></VersioningConfiguration>",
            "Keep",
        ),
    ] {
        let (status, answer) = ground.send(method, target, "", document);
        assert_eq!(status, 501, "{target}: {answer}");
        assert!(answer.contains(&format!("element {name}")), "{target}: {answer}");
    }
    assert_eq!(ground.snapshot(), before);
}
