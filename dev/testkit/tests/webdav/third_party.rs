//! Tests third-party copies with the protocol that WLCG's servers use.

use std::time::{Duration, Instant};

use fordway_http::vector::CredentialScope;
use fordway_http::webdav::{CopyDirection, ThirdPartyCopy, WebDavClient};
use fordway_http::{Origin, SessionCredentials};
use fordway_store::{Error, ErrorKind, Result};

use crate::dialogue::{Dialogue, Request, answer, file, multistatus};
use crate::{client, over_each_version};

const SILENCE: Duration = Duration::from_secs(60);

fn marker(bytes: u64) -> String {
    format!(
        "Perf Marker\nTimestamp: 1\nStripe Index: 0\nStripe Bytes Transferred: {bytes}\nTotal Stripe Count: 1\nEnd\n"
    )
}

/// Starts a server that responds to COPY with `report`, in chunks, and declares that files have a size of `bytes`.
fn server(status: u16, report: String, bytes: usize) -> Dialogue {
    Dialogue::start(move |request, _| match request.method.as_str() {
        "PROPFIND" => multistatus(&file(&request.target, bytes)),
        "OPTIONS" => answer(200, "Server: dCache/9\r\n", ""),
        _ => {
            let chunk = format!("{:x}\r\n{report}\r\n0\r\n\r\n", report.len());
            format!("HTTP/1.1 {status} Told\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}").into_bytes()
        }
    })
}

fn order<'t>(from: &'t str, to: &'t str) -> ThirdPartyCopy<'t> {
    ThirdPartyCopy { from, to, direction: CopyDirection::Pull, replaces: true, silence: SILENCE }
}

fn copy(dav: &WebDavClient, to: &Dialogue) -> Result<Vec<u64>> {
    let source = server(200, String::new(), 9);
    let (from, to) = (source.url("f?a=b"), to.url("g"));
    let mut seen = vec![0];
    dav.third_party_copy(&order(&from, &to), &mut |bytes, of| {
        assert_eq!(of, Some(9));
        if seen.last() != Some(&bytes) {
            seen.push(bytes);
        }
        Ok(())
    })?;
    Ok(seen)
}

/// A value of `Authorization` that the caller chose is sent only to the server that receives the request. The caller
/// chooses the token for the other server separately.
#[test]
fn a_chosen_token_is_not_passed_on() {
    for passed in [None, Some("Bearer theirs")] {
        let to = server(202, "success: Created".to_owned(), 9);
        let dav = client(|options| {
            options.credentials = SessionCredentials::none().with_authorization("Bearer ours");
            options.headers = passed
                .map(|token| ("TransferHeaderAuthorization".to_owned(), token.to_owned()))
                .into_iter()
                .collect();
        });
        copy(&dav, &to).unwrap();
        let asked = to.requests().into_iter().find(|request| request.method == "COPY").unwrap();
        assert_eq!(asked.header("authorization"), Some("Bearer ours"));
        assert_eq!(asked.header("transferheaderauthorization"), passed);
    }
}

#[test]
fn a_pull_is_ordered_and_watched() {
    over_each_version(|| {
        let to = server(202, marker(4) + &marker(9) + "success: Created", 9);
        let dav =
            client(|options| options.credentials = SessionCredentials::none().with_bearer_token("secret"));
        assert_eq!(copy(&dav, &to).unwrap().last(), Some(&9));
        let asked = to.requests().into_iter().find(|request| request.method == "COPY").unwrap();
        assert!(asked.header("source").unwrap().ends_with("/f?a=b"), "{asked:?}");
        for (name, value) in [
            ("credential", "none"),
            ("overwrite", "T"),
            ("authorization", "Bearer secret"),
            ("transferheaderauthorization", "Bearer secret"),
        ] {
            assert_eq!(asked.header(name), Some(value), "{name}");
        }
        assert_eq!(asked.header("destination"), None);
    });
}

#[test]
fn a_push_is_ordered_of_the_source() {
    over_each_version(|| {
        let (from, to) = (server(202, marker(9) + "success: Created\n", 9), server(500, String::new(), 9));
        let (source, destination) = (from.url("f"), to.url("g"));
        let copy = ThirdPartyCopy {
            direction: CopyDirection::Push,
            replaces: false,
            ..order(&source, &destination)
        };
        client(|_| {}).third_party_copy(&copy, &mut |_, _| Ok(())).unwrap();
        let asked = from.requests().into_iter().find(|request| request.method == "COPY").unwrap();
        assert_eq!(
            (asked.header("destination"), asked.header("overwrite")),
            (Some(destination.as_str()), Some("F"))
        );
        assert_eq!((asked.header("source"), asked.header("transferheaderauthorization")), (None, None));
        assert_eq!(to.methods(), ["PROPFIND"]);
    });
}

#[test]
fn a_password_is_told_to_nobody_else() {
    use std::os::unix::fs::PermissionsExt as _;
    let netrc = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&netrc, "machine 127.0.0.1 login me password mine").unwrap();
    std::fs::set_permissions(&netrc, std::fs::Permissions::from_mode(0o600)).unwrap();
    let path = netrc.path().to_str().unwrap().to_owned();
    let to = server(202, "success: Created".to_owned(), 9);
    let dav = client(|options| {
        options.credentials = SessionCredentials::resolve(&|name| (name == "NETRC").then(|| path.clone()));
    });
    copy(&dav, &to).unwrap();
    let asked = to.requests().into_iter().find(|request| request.method == "COPY").unwrap();
    assert!(asked.header("authorization").unwrap().starts_with("Basic "));
    assert_eq!(asked.header("transferheaderauthorization"), None);
}

fn failure(to: &Dialogue) -> Error {
    copy(&client(|_| {}), to).expect_err("an error")
}

#[test]
fn what_servers_say_at_the_end_counts_and_is_checked() {
    over_each_version(|| {
        let refused = failure(&server(201, marker(4) + "failure: remote side said 404\n", 9));
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.detail().contains("remote side said 404"), "{refused}");
        let full = failure(&server(201, "failure: write: No space left on device\n".to_owned(), 9));
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(full.to_string().ends_with("or write to another server"), "{full}");
        let aborted = failure(&server(201, "aborted:\n".to_owned(), 9)).to_string();
        assert!(aborted.contains("could not copy it, and gives no reason; copy again"), "{aborted}");
        assert!(aborted.ends_with("with `fordway cp --third-party never`"), "{aborted}");
        assert_eq!(failure(&server(202, marker(9), 9)).kind(), ErrorKind::IncompleteBody);
        let short = failure(&server(202, "success: Created".to_owned(), 8));
        assert_eq!(short.kind(), ErrorKind::Corrupt);
        let says = "has 8 of 9 bytes; remove the destination and copy again";
        assert!(short.to_string().contains(says) && !short.to_string().contains("user.fordway"), "{short}");
        assert_eq!(failure(&server(202, "x".repeat(20_000), 9)).kind(), ErrorKind::BadResponse);
        // A server may report only the status of a copy. The client then accepts the copy if its size is correct.
        let silent = |bytes| {
            Dialogue::start(move |request, _| match request.method.as_str() {
                "PROPFIND" => multistatus(&file(&request.target, bytes)),
                _ => answer(201, "", ""),
            })
        };
        assert_eq!(copy(&client(|_| {}), &silent(9)).unwrap(), [0]);
        assert_eq!(failure(&silent(0)).kind(), ErrorKind::Corrupt);
    });
}

#[test]
fn an_empty_copy_that_is_missing_is_noticed() {
    over_each_version(|| {
        let source = server(200, String::new(), 0);
        let to =
            Dialogue::start(|request, _| answer(if request.method == "COPY" { 201 } else { 404 }, "", ""));
        let (from, to) = (source.url("f"), to.url("g"));
        let copied = client(|_| {}).third_party_copy(&order(&from, &to), &mut |_, _| Ok(()));
        assert_eq!(copied.unwrap_err().kind(), ErrorKind::Corrupt);
    });
}

#[test]
fn refusals_are_told_apart() {
    over_each_version(|| {
        for (status, kind) in [
            (400, ErrorKind::NotImplemented),
            (405, ErrorKind::NotImplemented),
            (501, ErrorKind::NotImplemented),
            (403, ErrorKind::AccessDenied),
            (412, ErrorKind::PreconditionFailed),
            (507, ErrorKind::NoSpace),
        ] {
            let to = server(status, "no".to_owned(), 9);
            assert_eq!(failure(&to).kind(), kind, "{status}");
            assert_eq!(to.methods(), ["COPY"], "{status}");
        }
    });
}

/// Starts a server that sends one marker and then never ends its response.
fn endless() -> Dialogue {
    Dialogue::start(|request, _| match request.method.as_str() {
        "PROPFIND" => multistatus(&file(&request.target, 9)),
        _ => {
            let first = marker(4);
            format!("HTTP/1.1 202 Told\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n", first.len())
                .into_bytes()
        }
    })
}

#[test]
fn who_stops_it_closes_the_connection() {
    over_each_version(|| {
        let (source, to) = (server(200, String::new(), 9), endless());
        let (from, there) = (source.url("f"), to.url("g"));
        let stopped = client(|_| {}).third_party_copy(&order(&from, &there), &mut |bytes, _| match bytes {
            4 => Err(Error::new(ErrorKind::Interrupted, "enough")),
            _ => Ok(()),
        });
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
        to.wait_for_closed(1);
    });
}

#[test]
fn silence_ends_it() {
    over_each_version(|| {
        let (source, to) = (server(200, String::new(), 9), endless());
        let (from, there) = (source.url("f"), to.url("g"));
        let copy = ThirdPartyCopy { silence: Duration::from_millis(300), ..order(&from, &there) };
        let error = client(|_| {}).third_party_copy(&copy, &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().ends_with("whether the destination is still growing"), "{error}");
        to.wait_for_closed(1);
    });
}

/// A server that sends markers for ever does not extend the deadline.
#[test]
fn the_deadline_ends_it() {
    over_each_version(|| {
        let (source, to) = (server(200, String::new(), 9), endless());
        let (from, there) = (source.url("f"), to.url("g"));
        let dav = client(|options| options.deadline = Some(Duration::from_secs(1)));
        let started = Instant::now();
        let error = dav.third_party_copy(&order(&from, &there), &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("the deadline has passed"), "{error}");
        assert!(started.elapsed() < SILENCE / 2, "{:?}", started.elapsed());
        to.wait_for_closed(1);
    });
}

/// Starts a server that refuses requests without this token, and otherwise copies files of 9 bytes.
fn guarded(token: &'static str) -> Dialogue {
    Dialogue::start(move |request, _| match request.method.as_str() {
        _ if request.header("authorization") != Some(token) => answer(401, "", ""),
        "PROPFIND" => multistatus(&file(&request.target, 9)),
        "OPTIONS" => answer(200, "Server: dCache/9\r\n", ""),
        _ => answer(202, "Content-Type: text/perf-marker-stream\r\n", "success: Created"),
    })
}

/// The server that makes the copy gets the caller's token and headers; the other server gets its own token, or nothing.
#[test]
fn each_server_gets_only_its_own_token() {
    const OURS: &str = "Bearer ours";
    const THEIRS: &str = "Bearer theirs";
    for direction in [CopyDirection::Pull, CopyDirection::Push] {
        for passed in [None, Some(THEIRS)] {
            let (active, passive) = (guarded(OURS), guarded(THEIRS));
            let (asked, other) = (active.url("f"), passive.url("g"));
            let dav = client(|options| {
                let chosen = || SessionCredentials::none().over_plain_http();
                let (origin, _) = Origin::parse(&active.url("")).unwrap();
                let elsewhere = passed.map_or_else(chosen, |token| chosen().with_authorization(token));
                options.credentials = chosen().with_authorization(OURS);
                options.headers = [("TransferHeaderAuthorization".to_owned(), THEIRS.to_owned())].into();
                options.scope = Some(CredentialScope { origin, elsewhere });
            });
            let (from, to) = match direction {
                CopyDirection::Pull => (&other, &asked),
                CopyDirection::Push => (&asked, &other),
            };
            let copy = ThirdPartyCopy { direction, ..order(from, to) };
            dav.third_party_copy(&copy, &mut |_, _| Ok(())).unwrap();
            let orders = active.requests();
            let orders: Vec<_> = orders.iter().filter(|request| request.method == "COPY").collect();
            assert_eq!(orders.len(), 1, "{direction:?}");
            assert_eq!(orders[0].header("transferheaderauthorization"), Some(THEIRS));
            for request in passive.requests() {
                assert_eq!((request.method.as_str(), request.header("authorization")), ("PROPFIND", passed));
                assert_eq!(request.header("transferheaderauthorization"), None);
            }
        }
    }
}

#[test]
fn an_order_that_led_elsewhere_is_given_there() {
    over_each_version(|| {
        let worker = server(202, "success: Created".to_owned(), 9);
        let place = worker.url("data/g");
        let manager = Dialogue::start(move |request, _| match request.method.as_str() {
            "PROPFIND" => multistatus(&file(&request.target, 9)),
            _ => answer(307, &format!("Location: {place}\r\n"), ""),
        });
        copy(&client(|_| {}), &manager).unwrap();
        let asked = worker.requests();
        assert_eq!((asked[0].method.as_str(), asked[0].target.as_str()), ("COPY", "/data/g"));
        assert!(asked[0].header("source").is_some());
    });
}

/// The server to which a COPY is redirected is not the server that the caller named, so it gets no secrets.
#[test]
fn a_redirected_order_takes_no_secrets_to_another_server() {
    over_each_version(|| {
        let worker = server(202, "success: Created".to_owned(), 9);
        let place = worker.url("g");
        let manager = Dialogue::start(move |request, number| match request.method.as_str() {
            "PROPFIND" => multistatus(&file(&request.target, 9)),
            _ if number == 0 => answer(307, "Location: /moved/g\r\n", ""),
            _ => answer(307, &format!("Location: {place}\r\n"), ""),
        });
        let dav = client(|options| {
            options.credentials = SessionCredentials::none().with_bearer_token("secret");
            options.headers = [("X-Secret".to_owned(), "secret".to_owned())].into();
        });
        copy(&dav, &manager).unwrap();
        let is_told = |request: &Request| {
            ["authorization", "transferheaderauthorization", "x-secret"]
                .map(|name| request.header(name).is_some())
        };
        let orders = |server: &Dialogue| -> Vec<_> {
            server.requests().iter().filter(|request| request.method == "COPY").map(is_told).collect()
        };
        assert_eq!(orders(&manager), [[true; 3]; 2], "on the same server, a redirection changes nothing");
        assert_eq!(orders(&worker), [[false; 3]]);
    });
}
