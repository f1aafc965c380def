//! Tests that requests are signed with renewed keys.

use std::path::Path;
use std::time::Duration;

use fordway_client::s3::{S3Config, S3Store};
use fordway_store::{Error, ErrorKind, Objects};
use tempfile::TempDir;

use crate::scripted::{Server, Step, answer, bucket, error};

const EMPTY: &str = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";

/// A program that prints keys `AK1`, `AK2`, ... The first keys are valid for two seconds.
const PROGRAM: &str = r#"cd "$1"; [ -e broken ] && { echo no >&2; exit 7; }; echo >> calls; n=$(wc -l < calls)
life=$([ "$n" = 1 ] && echo 2 || echo 3600)
printf '{"Version": 1, "AccessKeyId": "AK%s", "SecretAccessKey": "S", "SessionToken": "T%s", "Expiration": "%s"}' \
    "$n" "$n" "$(date -u -d "+$life seconds" +%Y-%m-%dT%H:%M:%SZ)""#;

fn store(files: &Path, url: &str) -> S3Store {
    let (config, program) = (files.join("config"), files.join("keys.sh"));
    std::fs::write(&program, PROGRAM).unwrap();
    let command = format!("sh {} {}", program.display(), files.display());
    std::fs::write(&config, format!("[default]\ncredential_process = {command}\n")).unwrap();
    let variable = |name: &str| (name == "AWS_CONFIG_FILE").then(|| config.to_str().unwrap().to_owned());
    let found = S3Config::resolve(Some(url), &variable).unwrap();
    S3Store::new(S3Config { max_retries: 0, ..found }).unwrap()
}

fn list(store: &S3Store) -> Result<(), Error> {
    store.list(&bucket(), &Default::default()).map(drop)
}

#[test]
fn requests_are_signed_with_the_keys_of_the_moment() {
    let files = TempDir::new().unwrap();
    let server = Server::answering(vec![answer(200, "", EMPTY), answer(200, "", EMPTY)]);
    let store = store(files.path(), &server.url);
    // The keys are renewed after half of their lifetime.
    std::thread::sleep(Duration::from_secs(3));
    list(&store).unwrap();
    list(&store).unwrap();
    for request in server.seen() {
        assert!(request.header("authorization").unwrap().contains("Credential=AK2/"), "{}", request.head);
        assert_eq!(request.header("x-amz-security-token"), Some("T2"));
    }
    assert_eq!(std::fs::read_to_string(files.path().join("calls")).unwrap().lines().count(), 2);
}

#[test]
fn expired_keys_that_cannot_be_renewed_are_not_used() {
    let files = TempDir::new().unwrap();
    let server = Server::start(vec![vec![Step::Request, Step::Send(error(403, "ExpiredToken", ""))]]);
    let store = store(files.path(), &server.url);
    std::fs::write(files.path().join("broken"), "").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let failed = list(&store).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::InvalidArgument, "{failed}");
    let text = failed.to_string();
    assert!(
        text.contains("access key AK1 from the credential_process of profile `default` has expired"),
        "{text}"
    );
    assert!(text.contains("failed (exit status: 7)"), "{text}");
    drop(store);
    assert!(server.seen().is_empty(), "no request is sent");
    let broken_from_the_start = S3Config::resolve(None, &|name| {
        (name == "AWS_CONFIG_FILE").then(|| files.path().join("config").to_str().unwrap().to_owned())
    });
    assert!(broken_from_the_start.unwrap_err().to_string().contains("failed (exit status: 7)"));
}
