//! Tests of servers that respond incorrectly or late, or that redirect.

use std::time::Duration;

use fordway_http::webdav::{CustomHttpRequest, DavUploadOptions};
use fordway_http::{HttpVersion, SessionCredentials};
use fordway_store::ErrorKind;

use crate::dialogue::{Dialogue, answer, collection, failed, file, multistatus};
use crate::{below, client, content, kind, over_each_version, put, version};

#[test]
fn listings_that_make_no_sense_are_errors() {
    over_each_version(|| {
        let bomb = "<!DOCTYPE a [<!ENTITY b \"bbbb\">]><multistatus xmlns=\"DAV:\"/>";
        for said in [
            multistatus(&(collection("/d/") + &file("/elsewhere/f", 1))),
            multistatus(&(collection("/d/") + &file("/d/../../etc/passwd", 1))),
            multistatus(&(collection("/d/") + &file("/d/%2e%2e", 1))),
            multistatus(&(collection("/d/") + &file("/d/a%2fb", 1))),
            multistatus(&(collection("/d/") + &file("http://other.example/d/f", 1))),
            multistatus(&(file("/d", 1) + &file("/d/f", 1))),
            multistatus(""),
            answer(207, "", bomb),
            answer(207, "", "<multistatus xmlns=\"DAV:\"><response>"),
            answer(207, "", "<html/>"),
            answer(207, "", ""),
            answer(200, "", "<html>Welcome</html>"),
            b"HTTP/1.1 207 Told\r\nContent-Length: 99999999999\r\n\r\n<".to_vec(),
        ] {
            let shown = String::from_utf8_lossy(&said).into_owned();
            let server = Dialogue::start(move |_, _| said.clone());
            let error = client(|_| {}).list(&server.url("d/")).expect_err(&shown);
            assert!(
                matches!(error.kind(), ErrorKind::BadResponse | ErrorKind::EntityTooLarge),
                "{shown}: {error}"
            );
            assert_eq!(server.methods(), ["PROPFIND"], "{shown}");
        }
    });
}

#[test]
fn a_walk_stays_below_and_ends() {
    over_each_version(|| {
        // Every collection contains a collection of the same name, as if there were a circular link.
        let server = Dialogue::start(|request, _| {
            let here = request.target.trim_end_matches('/');
            multistatus(&(collection(&format!("{here}/")) + &collection(&format!("{here}/c/"))))
        });
        let found: Vec<_> = client(|_| {}).walk(&server.url("")).collect();
        let error = found.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadResponse);
        assert!(error.detail().contains("loop") && found.len() < 300, "{error}");
    });
}

#[test]
fn members_that_cannot_be_described_do_not_hide_the_others() {
    let server = Dialogue::start(|request, _| match request.target.as_str() {
        "/d/" => multistatus(
            &(collection("/d/") + &failed("/d/secret", 403) + &failed("/d/gone", 404) + &file("f", 1)),
        ),
        _ => answer(404, "", ""),
    });
    let dav = client(|_| {});
    let listing = dav.list(&server.url("d/")).unwrap();
    assert_eq!(listing.members.iter().map(|member| member.relative.as_str()).collect::<Vec<_>>(), ["f"]);
    assert_eq!(listing.failed, [("/d/secret".to_owned(), 403)]);
    let failures: Vec<_> =
        dav.walk(&server.url("d/")).filter_map(Result::err).map(|error| error.kind()).collect();
    assert_eq!(failures, [ErrorKind::AccessDenied]);
}

#[test]
fn members_that_failed_are_an_error_with_their_names() {
    over_each_version(|| {
        let server = Dialogue::start(|_, _| {
            multistatus(&(failed("/d/a", 423) + &failed("/d/b", 200) + &failed("/d/", 424)))
        });
        let dav = client(|_| {});
        for error in [
            dav.remove(&server.url("d/")),
            dav.copy(&server.url("d/"), &server.url("e/"), true),
            dav.rename(&server.url("d/"), &server.url("e/"), true),
        ] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConditionalConflict);
            assert!(error.detail().contains("/d/a") && !error.detail().contains("/d/b"), "{error}");
        }
    });
}

#[test]
fn what_may_pass_is_tried_again_and_what_may_have_happened_is_not() {
    over_each_version(|| {
        let flaky =
            || Dialogue::start(|_, number| if number == 0 { Vec::new() } else { answer(201, "", "") });
        for (method, requests) in [("PUT", 2), ("DELETE", 2), ("COPY", 1), ("MKCOL", 1), ("MOVE", 1)] {
            let server = flaky();
            let (dav, url) = (client(|_| {}), server.url("x"));
            let done = match method {
                "PUT" => put(&dav, &url, b"body", true),
                "DELETE" => dav.remove(&url),
                "COPY" => dav.copy(&url, &server.url("y"), true),
                "MKCOL" => dav.make_collection(&url),
                _ => dav.rename(&url, &server.url("y"), true),
            };
            assert_eq!(server.requests().len(), requests, "{method}");
            assert_eq!(done.is_ok(), requests == 2, "{method}: {done:?}");
        }
        // If the response to a removal was lost, a 404 for the repeated request means success.
        let lost = Dialogue::start(|_, number| if number == 0 { Vec::new() } else { answer(404, "", "") });
        client(|_| {}).remove(&lost.url("x")).unwrap();
        let missing = Dialogue::start(|_, _| answer(404, "", ""));
        assert_eq!(kind(client(|_| {}).remove(&missing.url("x"))), ErrorKind::NoSuchKey);
        // Some servers refuse requests with `Expect`. Over HTTP/2 and 3, only requests with content of unknown size
        // have this header.
        let says_size = version() == HttpVersion::Http1;
        let blunt = Dialogue::start(|request, _| {
            answer(if request.header("expect").is_some() { 417 } else { 201 }, "", "")
        });
        put(&client(|_| {}), &blunt.url("x"), &content(100_000), says_size).unwrap();
        assert_eq!(
            blunt.requests().iter().map(|request| request.body_bytes).collect::<Vec<_>>(),
            [0, 100_000]
        );
        // A server that responds 503 with `Retry-After` has not acted on the request.
        let busy = Dialogue::start(|_, number| {
            answer(if number == 0 { 503 } else { 201 }, "Retry-After: 0\r\n", "")
        });
        client(|_| {}).make_collection(&busy.url("x")).unwrap();
        assert_eq!(busy.requests().len(), 2);
        let full =
            Dialogue::start(|_, _| answer(507, "Content-Type: text/plain\r\n", "quota of atlas\nused up"));
        let error = put(&client(|_| {}), &full.url("x"), &content(1_000_000), true).unwrap_err();
        assert_eq!((error.kind(), full.requests().len()), (ErrorKind::NoSpace, 1));
        assert!(error.detail().ends_with(": quota of atlas"), "{error}");
        assert!(error.to_string().ends_with("or write to another server"), "{error}");
        // Some servers report a full disk with 500.
        let full =
            Dialogue::start(|_, _| answer(500, "Content-Type: text/plain\r\n", "No space left on device"));
        let error = put(&client(|_| {}), &full.url("x"), b"x", true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().ends_with("or write to another server"), "{error}");
        // For S3, the advice is a multipart upload, which WebDAV does not have.
        let small = Dialogue::start(|_, _| answer(413, "", ""));
        let error = put(&client(|_| {}), &small.url("x"), b"x", true).unwrap_err();
        assert!(error.to_string().ends_with("raise the limit"), "{error}");
    });
}

/// Some servers refuse `Expect` with a status other than 417, or close the connection. The body has not been sent.
#[test]
fn a_refused_question_is_not_asked_again() {
    for refusal in [answer(400, "", ""), answer(501, "", ""), Vec::new()] {
        let blunt = Dialogue::start(move |request, _| match request.header("expect") {
            Some(_) => refusal.clone(),
            None => answer(201, "", ""),
        });
        put(&client(|options| options.max_retries = 0), &blunt.url("x"), &content(100_000), true).unwrap();
        let sizes: Vec<_> = blunt.requests().iter().map(|request| request.body_bytes).collect();
        assert_eq!(sizes, [0, 100_000]);
        put(&client(|options| options.asks_first = false), &blunt.url("x"), &content(100_000), true).unwrap();
        assert_eq!(blunt.requests().len(), 3);
    }
    // The server refuses the request itself.
    let strict = Dialogue::start(|_, _| answer(400, "", ""));
    let refused = put(&client(|_| {}), &strict.url("x"), &content(100_000), true);
    assert_eq!((kind(refused), strict.requests().len()), (ErrorKind::InvalidArgument, 2));
}

/// Bytes that keep moving do not extend the deadline of an upload.
#[test]
fn an_upload_ends_at_the_deadline() {
    over_each_version(|| {
        let server = Dialogue::start(|_, _| answer(201, "", ""));
        let dav = client(|options| options.deadline = Some(Duration::from_millis(300)));
        let upload = DavUploadOptions { size_bytes: Some(20_000), ..DavUploadOptions::default() };
        let mut pieces = 0;
        let late = dav.put(&server.url("f"), &upload, &mut |sink| {
            (0..200).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(20));
                pieces += 1;
                sink(&[b'x'; 100])
            })
        });
        assert_eq!(kind(late), ErrorKind::Timeout);
        assert!(pieces < 200, "all of the body was sent");
    });
}

/// One server, the door, redirects an upload to another server, the pool, which receives the bytes. dCache and EOS work
/// in this way.
#[test]
fn a_body_goes_where_it_is_wanted_and_nowhere_else() {
    over_each_version(|| {
        let pool = Dialogue::start(|_, _| {
            let mut said = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
            said.extend(answer(201, "", ""));
            said
        });
        let place = pool.url("pool/f?token=one-time");
        let door = Dialogue::start(move |_, _| answer(307, &format!("Location: {place}\r\n"), ""));
        let dav =
            client(|options| options.credentials = SessionCredentials::none().with_bearer_token("secret"));
        put(&dav, &door.url("f"), &content(1_000_000), true).unwrap();
        let (asked, took) = (door.requests().remove(0), pool.requests().remove(0));
        assert_eq!((asked.method.as_str(), asked.body_bytes), ("PUT", 0));
        assert_eq!(asked.header("authorization"), Some("Bearer secret"));
        assert_eq!((took.method.as_str(), took.target.as_str()), ("PUT", "/pool/f?token=one-time"));
        assert_eq!((took.body_bytes, took.header("authorization")), (1_000_000, None));
        let looping = Dialogue::start(|_, _| answer(307, "Location: /x\r\n", ""));
        assert_eq!(kind(client(|_| {}).remove(&looping.url("x"))), ErrorKind::BadResponse);
    });
}

/// The caller's headers, and a value of `Authorization` that the caller chose, are sent only to the host that the
/// caller named.
#[test]
fn headers_of_the_caller_are_sent_and_not_redirected() {
    let pool = Dialogue::start(|_, _| answer(201, "", ""));
    let place = pool.url("pool/f");
    let door = Dialogue::start(move |_, _| answer(307, &format!("Location: {place}\r\n"), ""));
    for credentials in [SessionCredentials::none(), SessionCredentials::none().with_login("me", "secret")] {
        let dav = client(|options| {
            options.headers = [("X-Own".to_owned(), "1".to_owned())].into();
            options.credentials = credentials.clone();
        });
        put(&dav, &door.url("f"), b"x", true).unwrap();
        let (asked, took) = (door.requests().pop().unwrap(), pool.requests().pop().unwrap());
        assert_eq!((asked.header("x-own"), took.header("x-own")), (Some("1"), None));
        let login = (!credentials.is_none()).then_some("Basic bWU6c2VjcmV0");
        assert_eq!((asked.header("authorization"), took.header("authorization")), (login, None));
    }
}

#[test]
fn a_plain_request_is_answered_whatever_the_status_is() {
    over_each_version(|| {
        let there = Dialogue::start(|request, _| match request.target.as_str() {
            "/moved" => answer(302, "Location: /f\r\n", "moved"),
            _ => answer(404, "", "none"),
        });
        let dav = client(|_| {});
        let ask = |path: &str, follows: bool, body: Option<&[u8]>| {
            let (wanted, mut content) = (CustomHttpRequest { method: "POST", body, follows }, Vec::new());
            let status = dav.request(&there.url(path), &wanted, &mut |status, bytes| {
                content.push((status, String::from_utf8(bytes.to_vec()).unwrap()));
                Ok(())
            });
            assert!(content.iter().all(|(seen, _)| *seen == *status.as_ref().unwrap()));
            (status.unwrap(), content.into_iter().map(|(_, text)| text).collect::<String>())
        };
        assert_eq!(ask("moved", true, Some(b"abc")), (404, "none".to_owned()));
        let seen: Vec<_> =
            there.requests().iter().map(|request| (request.target.clone(), request.body_bytes)).collect();
        assert_eq!(seen, [("/moved".to_owned(), 3), ("/f".to_owned(), 3)]);
        assert_eq!(ask("moved", false, None), (302, "moved".to_owned()));
        assert_eq!(there.requests().pop().unwrap().header("content-length"), Some("0"));
        let nowhere = dav.request(
            if version() == HttpVersion::Http3 { "https://127.0.0.1:1/" } else { "http://127.0.0.1:1/" },
            &CustomHttpRequest { method: "GET", body: None, follows: true },
            &mut |_, _| Ok(()),
        );
        assert_eq!(kind(nowhere.map(drop)), ErrorKind::Unavailable);
    });
}

#[test]
fn members_are_asked_for_where_the_caller_named_them() {
    let server = Dialogue::start(|request, _| match request.target.as_str() {
        "/d?authz=t" => {
            multistatus(&(collection("http://127.0.0.1:1/d/") + &collection("http://127.0.0.1:1/d/e/")))
        }
        "/d/e/?authz=t" => multistatus(&(collection("/d/e/") + &file("/d/e/f", 1))),
        _ => answer(404, "", ""),
    });
    assert_eq!(below(&client(|_| {}), &server.url("d?authz=t")), ["e/", "e/f"]);
}

/// XRootD reports a copy within one server in the same way as a copy between servers.
#[test]
fn a_copy_that_failed_after_its_status_is_a_failure() {
    let server = Dialogue::start(|_, _| {
        answer(
            201,
            "Content-Type: text/plain\r\n",
            "Perf Marker\nStripe Bytes Transferred: 1\nEnd\nfailure: disk on fire\n",
        )
    });
    let error = client(|_| {}).copy(&server.url("a"), &server.url("b"), true).unwrap_err();
    assert_eq!((error.kind(), server.requests().len()), (ErrorKind::Unavailable, 1));
    assert!(error.detail().contains("disk on fire") && !error.to_string().contains("endpoint"), "{error}");
}

/// dCache reports a copy within one server in the body of a response with status 202, with a content type of its own.
#[test]
fn a_copy_is_complete_only_if_its_report_says_so() {
    const MARKERS: &str = "Content-Type: text/perf-marker-stream\r\n";
    let server = |status, headers: &'static str, report: &'static str, bytes| {
        Dialogue::start(move |request, _| match request.method.as_str() {
            "PROPFIND" if request.target == "/a" => multistatus(&file("/a", 9)),
            "PROPFIND" if bytes > 0 => multistatus(&file(&request.target, bytes)),
            "PROPFIND" => answer(404, "", ""),
            _ => answer(status, headers, report),
        })
    };
    const MARKER: &str = "Perf Marker\nStripe Bytes Transferred: 9\nEnd\n";
    let copied = |server: &Dialogue| client(|_| {}).copy(&server.url("a"), &server.url("b"), true);
    let moved = |server: &Dialogue| client(|_| {}).rename(&server.url("a"), &server.url("b"), true);
    for (status, headers, report, bytes, expected) in [
        (202, MARKERS, "Perf Marker\nEnd\nfailure: Connection refused\n", 0, ErrorKind::Unavailable),
        (202, MARKERS, MARKER, 0, ErrorKind::IncompleteBody),
        (202, "Content-Type: text/plain\r\n", MARKER, 9, ErrorKind::IncompleteBody),
        (202, "", "", 9, ErrorKind::Unavailable),
        (202, MARKERS, "success: Created\n", 8, ErrorKind::Corrupt),
        (202, MARKERS, "success: Created\n", 0, ErrorKind::Corrupt),
    ] {
        let server = server(status, headers, report, bytes);
        assert_eq!(kind(copied(&server)), expected, "{report:?}, {bytes}");
        if expected != ErrorKind::Corrupt {
            assert_eq!(kind(moved(&server)), expected, "{report:?}, {bytes}");
        }
    }
    for (status, headers, report) in [
        (202, MARKERS, "Perf Marker\nStripe Bytes Transferred: 9\nEnd\nsuccess: Created\n"),
        (201, "Content-Type: text/html\r\n", "<html>\nError: none\n</html>"),
        (201, "", "Created"),
    ] {
        let server = server(status, headers, report, 9);
        copied(&server).unwrap();
        moved(&server).unwrap();
    }
}

/// Status 202 means that the server may carry out the request later, or never.
#[test]
fn what_is_only_accepted_is_not_done() {
    let server = |found: fn(&str) -> Vec<u8>| {
        Dialogue::start(move |request, _| match request.method.as_str() {
            "PROPFIND" => found(&request.target),
            _ => answer(202, "", ""),
        })
    };
    let (there, gone) = (server(|path| multistatus(&file(path, 1))), server(|_| answer(404, "", "")));
    let made = server(|path| multistatus(&collection(path)));
    let dav = client(|_| {});
    assert_eq!(kind(put(&dav, &there.url("f"), b"x", true)), ErrorKind::Unavailable);
    assert_eq!(kind(dav.remove(&there.url("f"))), ErrorKind::Unavailable);
    dav.remove(&gone.url("f")).unwrap();
    assert_eq!(kind(dav.make_collection(&gone.url("d"))), ErrorKind::Unavailable);
    dav.make_collection(&made.url("d")).unwrap();
}

/// Returns a multistatus document with a file whose last change was at 12:00 plus `minutes`.
fn file_of(path: &str, bytes: usize, minutes: u32) -> Vec<u8> {
    let time = format!("Fri, 24 May 2013 12:{minutes:02}:00 GMT");
    let property = format!("<D:getlastmodified>{time}</D:getlastmodified></D:prop>");
    multistatus(&file(path, bytes).replace("</D:prop>", &property))
}

/// Some servers always respond with 202, although they have already carried out the request, or will do so soon.
#[test]
fn what_was_accepted_and_is_seen_is_done() {
    // At first, there is only an older file. The fourth check, or the first check after it, shows the result.
    let server = |method: &'static str, finally: fn(&str) -> Vec<u8>| {
        Dialogue::start(move |request, number| match request.method.as_str() {
            asked if asked == method => answer(202, "Date: Fri, 24 May 2013 12:30:00 GMT\r\n", ""),
            _ if number < 4 => file_of(&request.target, 1, 29),
            _ => finally(&request.target),
        })
    };
    let dav = client(|options| options.max_retries = 5);
    let new_file = |path: &str| file_of(path, 1, 30);
    let put_at = |server: &Dialogue, body| put(&dav, &server.url("f"), body, true);
    put_at(&server("PUT", new_file), b"x").unwrap();
    assert_eq!(kind(put_at(&server("PUT", new_file), b"xy")), ErrorKind::Unavailable);
    let copy = |server: &Dialogue, replaces| dav.copy(&server.url("f"), &server.url("g"), replaces);
    copy(&server("COPY", new_file), true).unwrap();
    let old_file = |path: &str| file_of(path, 1, 29);
    assert_eq!(kind(copy(&server("COPY", old_file), true)), ErrorKind::Unavailable);
    copy(&server("COPY", old_file), false).unwrap();
    let collection = |path: &str| multistatus(&collection(path));
    assert_eq!(kind(copy(&server("COPY", collection), true)), ErrorKind::Unavailable);
    let moved = |path: &str| if path == "/f" { answer(404, "", "") } else { file_of(path, 1, 0) };
    let rename = |server: &Dialogue| dav.rename(&server.url("f"), &server.url("g"), true);
    rename(&server("MOVE", moved)).unwrap();
    assert_eq!(kind(rename(&server("MOVE", |_| answer(404, "", "")))), ErrorKind::Unavailable);
    dav.remove(&server("DELETE", |_| answer(404, "", "")).url("f")).unwrap();
    // The credentials allow nothing but the removal.
    dav.remove(&server("DELETE", |_| answer(403, "", "")).url("f")).unwrap();
}

#[test]
fn a_file_is_no_collection_that_is_there_already() {
    let taken = |is_collection| {
        Dialogue::start(move |request, _| match request.method.as_str() {
            "PROPFIND" if is_collection => multistatus(&collection(&request.target)),
            "PROPFIND" => multistatus(&file(&request.target, 1)),
            _ => answer(405, "", ""),
        })
    };
    client(|_| {}).make_collections(&taken(true).url("d")).unwrap();
    assert_eq!(kind(client(|_| {}).make_collections(&taken(false).url("d"))), ErrorKind::PreconditionFailed);
}
