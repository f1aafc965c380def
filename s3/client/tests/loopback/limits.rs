//! Tests the time limits of calls.

use std::time::{Duration, Instant};

use crate::scripted::{Server, Step, answer, bucket, error, key, object};
use fordway_client::s3::S3Config;
use fordway_store::{ErrorKind, GetOptions, Objects, PutOptions, Result};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Sets a timeout, next to shorter or longer waits for a response.
fn timeout(first_byte: Duration, timeout: Duration) -> impl FnOnce(&mut S3Config) {
    move |config| {
        (config.timeouts.first_byte, config.timeouts.progress) = (first_byte, first_byte);
        config.timeout = Some(timeout);
    }
}

fn read(server: &Server, change: impl FnOnce(&mut S3Config)) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    server.store(change).read(&bucket(), &key("k"), &GetOptions::default(), &mut buffer)?;
    Ok(buffer)
}

#[test]
fn a_timeout_also_lengthens_the_wait_for_a_response() {
    let server = Server::start(vec![vec![Step::Request, Step::Pause(ms(600)), Step::Send(object("late"))]]);
    assert_eq!(read(&server, timeout(ms(100), Duration::from_secs(20))).unwrap(), b"late");
}

#[test]
fn the_last_attempt_ends_with_the_timeout() {
    let busy = vec![Step::Request, Step::Pause(ms(1200)), Step::Send(error(503, "SlowDown", ""))];
    let silent = vec![Step::Request, Step::Pause(ms(8000))];
    let server = Server::start(vec![busy.into_iter().chain(silent).collect()]);
    let begun = Instant::now();
    let failed = read(&server, timeout(ms(20_000), ms(2000))).unwrap_err();
    let took = begun.elapsed();
    assert_eq!(failed.kind(), ErrorKind::Timeout, "{failed}");
    assert!(took >= ms(1900) && took < ms(3000), "{took:?}");
}

#[test]
fn all_pages_of_a_listing_share_one_timeout() {
    let page = |number: usize| {
        let document = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>k{number}</Key><Size>1</Size></Contents>\
             <NextContinuationToken>{number}</NextContinuationToken></ListBucketResult>"
        );
        [Step::Request, Step::Pause(ms(700)), Step::Send(answer(200, "", document))]
    };
    let server = Server::start(vec![(0..8).flat_map(page).collect()]);
    let begun = Instant::now();
    let store = server.store(|config| {
        timeout(ms(20_000), ms(1500))(config);
        config.max_retries = 0;
    });
    let failed = store.list(&bucket(), &Default::default()).unwrap_err();
    let took = begun.elapsed();
    assert_eq!(failed.kind(), ErrorKind::Timeout, "{failed}");
    assert!(took < ms(2500), "{took:?}");
}

/// Content that makes progress may take longer than the timeout. The wait for the response begins after the content.
#[test]
fn content_that_makes_progress_does_not_use_up_the_timeout() {
    let mut whole = object([1; 40]);
    let body = whole.split_off(whole.len() - 40);
    let script = vec![Step::Request, Step::Send(whole), Step::Drip(body, ms(50))];
    assert_eq!(read(&Server::start(vec![script]), timeout(ms(100), ms(1000))).unwrap(), [1; 40]);
}

#[test]
fn a_timeout_may_be_longer_than_any_clock_can_show() {
    let server = Server::answering(vec![object("x"), answer(200, "etag: \"t\"\r\n", "")]);
    let store = server.store(|config| config.timeout = Some(Duration::MAX)).with_timeout(Duration::MAX);
    let mut buffer = Vec::new();
    store.read(&bucket(), &key("k"), &GetOptions::default(), &mut buffer).unwrap();
    store.put(&bucket(), &key("k"), b"x", &PutOptions::default()).unwrap();
}
