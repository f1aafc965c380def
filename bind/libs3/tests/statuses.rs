//! Checks that a C program receives the same status for a failure on each lane. For the S3 error code of a server, the
//! status must be libs3's status for this code.

mod harness;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use fordway_libs3::status::Status;
use harness::{Lane, Program, run};

/// The failures that `statuses.c` provokes, in the order of the program, with their statuses on every lane.
const STATUSES: &[(&str, &str)] = &[
    ("create a bucket again", "ErrorBucketAlreadyOwnedByYou"),
    ("create a bucket with a slash", "InvalidBucketNameCharacter"),
    ("delete a bucket with objects", "ErrorBucketNotEmpty"),
    ("get from a bucket with a short name", "InvalidBucketNameTooShort"),
    ("put into a bucket with an address as its name", "InvalidBucketNameDotQuadNotation"),
    ("copy to a bucket with a hyphen as its first character", "InvalidBucketNameFirstCharacter"),
    ("delete a missing bucket", "ErrorNoSuchBucket"),
    ("test a missing bucket", "ErrorNoSuchBucket"),
    ("list a missing bucket", "ErrorNoSuchBucket"),
    ("list the uploads of a missing bucket", "ErrorNoSuchBucket"),
    ("get from a missing bucket", "ErrorNoSuchBucket"),
    ("head in a missing bucket", "HttpErrorNotFound"),
    ("put into a missing bucket", "ErrorNoSuchBucket"),
    ("delete from a missing bucket", "ErrorNoSuchBucket"),
    ("start an upload in a missing bucket", "ErrorNoSuchBucket"),
    ("get a missing key", "ErrorNoSuchKey"),
    ("head a missing key", "HttpErrorNotFound"),
    ("get a key below an object", "ErrorNoSuchKey"),
    ("get a key that is too long", "ErrorKeyTooLong"),
    ("put a key that is too long", "ErrorKeyTooLong"),
    ("get a range behind the end", "ErrorInvalidRange"),
    ("get if another ETag matches", "ErrorPreconditionFailed"),
    ("get unless the ETag matches", "HttpErrorUnknown"),
    ("get if not modified for long", "ErrorPreconditionFailed"),
    ("get if an ETag with a line break matches", "BadIfMatchETag"),
    ("copy a key onto itself", "ErrorInvalidRequest"),
    ("copy a missing key", "ErrorNoSuchKey"),
    ("copy to a missing bucket", "ErrorNoSuchBucket"),
    ("put with a wrong MD5", "ErrorBadDigest"),
    ("put less than announced", "ErrorIncompleteBody"),
    ("put with encryption", "ErrorNotImplemented"),
    ("get through a link out of the root", "ErrorAccessDenied"),
    ("get a FIFO", "ErrorNoSuchKey"),
    ("complete a missing upload", "ErrorNoSuchUpload"),
    ("send a part of a missing upload", "ErrorNoSuchUpload"),
    ("list the parts of a missing upload", "ErrorNoSuchUpload"),
    ("send a part with too large a number", "ErrorInvalidArgument"),
    ("complete with a missing part", "ErrorInvalidPart"),
    ("complete in descending order", "ErrorInvalidPartOrder"),
    ("complete with small parts", "ErrorEntityTooSmall"),
    ("complete with what is no XML", "ErrorMalformedXML"),
    ("copy a part from behind the end", "ErrorInvalidRange"),
];

/// Returns the lines `NAME: STATUS` that the program prints.
fn statuses(program: &Program, lane: &Lane) -> Vec<(String, String)> {
    let bucket = lane.root.path().join("bucket");
    std::fs::create_dir(&bucket).unwrap();
    std::os::unix::fs::symlink("/etc", bucket.join("out")).unwrap();
    run(std::process::Command::new("mkfifo").arg(bucket.join("fifo")));
    let mut command = program.command(&[]);
    let said = run(command.args([&lane.host, &lane.access_key, &lane.secret_key, "bucket"]));
    said.lines().map(|line| line.split_once(": ").expect("NAME: STATUS")).map(owned).collect()
}

fn owned((name, status): (&str, &str)) -> (String, String) {
    (name.to_owned(), status.to_owned())
}

#[test]
fn a_failure_has_the_same_status_on_every_lane() {
    let program = Program::compile("statuses.c", &[]);
    let expected: Vec<_> = STATUSES.iter().copied().map(owned).collect();
    for (name, lane) in [("embedded", Lane::embedded()), ("node", Lane::node()), ("http", Lane::http())] {
        assert_eq!(statuses(&program, &lane), expected, "on the lane {name}");
    }
}

/// Refuses each request with the error code that is the last segment of the request's path.
fn serve_codes(listener: &TcpListener) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else { return };
        std::thread::spawn(move || while refuse(&connection).is_some() {});
    }
}

/// Answers one request. Returns `None` at the end of the connection.
fn refuse(mut connection: &TcpStream) -> Option<()> {
    let mut lines = BufReader::new(connection).lines();
    let request = lines.next()?.ok()?;
    lines.by_ref().map_while(Result::ok).find(String::is_empty)?;
    let code = request.split(' ').nth(1)?.rsplit('/').next()?;
    let body = format!("<Error><Code>{code}</Code><Message>No.</Message></Error>");
    let head = format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all((head + &body).as_bytes()).ok()
}

#[test]
fn every_error_code_that_libs3_knows_keeps_its_status() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || serve_codes(&listener));
    let names = Status::ALL.iter().map(|status| status.name().to_str().unwrap());
    let codes: Vec<&str> = names.filter_map(|name| name.strip_prefix("Error")).collect();
    assert!(codes.len() > 70, "{codes:?}");
    let program = Program::compile("statuses.c", &[]);
    let mut command = program.command(&[]);
    let said = run(command.args([&host, "key", "secret", "bucket"]).args(&codes));
    let expected: Vec<String> = codes.iter().map(|code| format!("{code}: Error{code}")).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}
