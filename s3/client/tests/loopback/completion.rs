//! Tests completions of uploads that the server does not acknowledge at the first attempt.

use std::time::Duration;

use crate::scripted::{Seen, Server, Step, answer, bucket, error, key};
use fordway_client::s3::S3Store;
use fordway_store::{
    CompleteOptions, CompletedPart, Conditions, ETag, ErrorKind, ExpectedContent, MultipartUploadOperations,
    Objects, PutOptions, PutResult, Result, UploadId,
};

const MIB: usize = 1024 * 1024;

fn started() -> Vec<u8> {
    let body = "<InitiateMultipartUploadResult><UploadId>u.1</UploadId></InitiateMultipartUploadResult>";
    answer(200, "", body)
}

fn done() -> Vec<u8> {
    answer(200, "", "<CompleteMultipartUploadResult><ETag>\"x-1\"</ETag></CompleteMultipartUploadResult>")
}

fn part() -> Vec<u8> {
    answer(200, "etag: \"p1\"\r\n", "")
}

fn tag() -> ETag {
    ETag::new("00000000000000000000000000000001")
}

/// The ETag of an object that consists of one part with the ETag [`tag`].
fn tag_of_object() -> String {
    let digest = fast_md5::digest(&[[0; 15].as_slice(), &[1]].concat());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}-1")
}

fn head(etag: &str) -> Vec<u8> {
    let date = "last-modified: Fri, 24 May 2013 00:00:00 GMT";
    format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\netag: \"{etag}\"\r\n{date}\r\n\r\n").into_bytes()
}

fn complete(store: &S3Store, conditions: Conditions) -> Result<PutResult> {
    let (parts, upload) = ([CompletedPart::new(1, tag())], UploadId::foreign("u.1"));
    let options = CompleteOptions { conditions, ..Default::default() };
    store.complete_upload(&bucket(), &key("k"), &upload, &parts, &options)
}

fn lines(seen: &[Seen]) -> Vec<&str> {
    seen.iter().map(Seen::line).collect()
}

/// Writes an object of two parts, of which the second part is sent by the commit.
fn write(store: &S3Store) -> Result<PutResult> {
    let mut writer = store.writer(&bucket(), &key("k"), &PutOptions::default()).unwrap();
    writer.write(&vec![0; 6 * MIB]).unwrap();
    writer.commit(&ExpectedContent::default())
}

#[test]
fn a_completion_that_fails_for_the_moment_is_sent_again() {
    for failed in [
        error(200, "SlowDown", ""),
        error(200, "InternalError", ""),
        error(500, "InternalError", ""),
        error(503, "SlowDown", ""),
    ] {
        let server = Server::answering(vec![started(), part(), part(), failed, done()]);
        let made = write(&server.store(|config| config.part_bytes = 5 * MIB)).unwrap();
        assert_eq!(made.etag, ETag::new("x-1"));
        let seen = server.seen();
        assert_eq!(lines(&seen)[3..], ["POST /bucket/k?uploadId=u.1 HTTP/1.1"; 2]);
    }
}

/// A proxy sends such responses while the server may still act on the request.
#[test]
fn a_completion_with_an_unknown_result_is_not_sent_again() {
    for failed in [answer(500, "", ""), answer(502, "", ""), answer(504, "", "")] {
        let server = Server::answering(vec![failed, done()]);
        complete(&server.store(|_| {}), Conditions::default()).unwrap_err();
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn a_completion_that_took_effect_although_it_failed_is_a_success() {
    let failed = || error(500, "InternalError", "");
    let gone = || error(404, "NoSuchUpload", "");
    let server = Server::answering(vec![failed(), gone(), head(&tag_of_object())]);
    let made = complete(&server.store(|_| {}), Conditions::default()).unwrap();
    assert_eq!(made.etag.as_str(), tag_of_object());
    assert_eq!(server.seen()[2].line(), "HEAD /bucket/k HTTP/1.1");

    // The condition fails because of the object that the first attempt has published.
    let exists = || error(412, "PreconditionFailed", "");
    let server = Server::answering(vec![failed(), exists(), gone(), head(&tag_of_object())]);
    assert!(complete(&server.store(|_| {}), Conditions::create_only()).is_ok());
    // The upload still exists, so the object is another client's.
    let parts = "<ListPartsResult><IsTruncated>false</IsTruncated></ListPartsResult>";
    let server = Server::answering(vec![failed(), exists(), answer(200, "", parts)]);
    let error = complete(&server.store(|_| {}), Conditions::create_only()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PreconditionFailed);

    // The object is not made from these parts.
    let server = Server::answering(vec![failed(), gone(), head("other-1")]);
    let error = complete(&server.store(|_| {}), Conditions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchUpload);
    // Without an earlier attempt, there is nothing to find out.
    let server = Server::answering(vec![gone()]);
    let error = complete(&server.store(|_| {}), Conditions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchUpload);
}

#[test]
fn an_upload_whose_completion_timed_out_is_not_aborted() {
    let mut script: Vec<Step> = [started(), part(), part()]
        .into_iter()
        .flat_map(|answer| [Step::Request, Step::Send(answer)])
        .collect();
    script.extend([Step::Request, Step::Pause(Duration::from_secs(2)), Step::Request]);
    let server = Server::start(vec![script, vec![Step::Request, Step::Send(answer(204, "", ""))]]);
    let store = server.store(|config| {
        (config.part_bytes, config.max_retries) = (5 * MIB, 0);
        (config.timeouts.first_byte, config.timeout) =
            (Duration::from_secs(20), Some(Duration::from_millis(1000)));
    });
    assert_eq!(write(&store).unwrap_err().kind(), ErrorKind::Timeout);
    drop(store);
    assert!(server.seen().iter().all(|seen| !seen.line().starts_with("DELETE")));
}
