//! Tests that commands on files at URLs have the same results over each version of HTTP.

use std::path::PathBuf;
use std::process::{Command, Output};

use fordway_command::CommandExit;
use fordway_http::HttpVersion;
use fordway_testkit::foreign::{ExternalServerProcess, SelfSignedCertificate};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::binary::text;
use crate::support::Rig;

fn content() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).map(|byte| b'a' + byte % 26).collect()
}

fn over_http2() -> Rig {
    Rig::new().over_http(HttpVersion::Http2, None)
}

#[test]
fn files_are_read_and_resumed_over_http2() {
    let (rig, server) = (over_http2(), HostileServer::start_http2(content(), ResponseFaultScript::honest()));
    let url = server.url();
    assert!(rig.run(&["cat", &url]).ok().stdout.into_bytes() == content());
    assert_eq!(rig.run(&["cat", &url, "--range", "-5"]).ok().stdout.as_bytes(), &content()[1_199_995..]);
    assert!(rig.run(&["stat", &url]).ok().stdout.contains("(1200000 bytes)"));
    rig.run(&["cp", "--streams", "3", &url, "DIR/streams"]).ok();
    // Use a new server, because the first server may still record a request of an earlier command.
    let script = ResponseFaultScript::honest()
        .on_requests(1..2, ResponseFault::CloseAt(700_000))
        .on_requests(2..3, ResponseFault::Status(404, None));
    let server = HostileServer::start_http2(content(), script);
    let url = server.url();
    assert_ne!(rig.run(&["cp", &url, "DIR/copy"]).exit, CommandExit::Ok);
    server.follow(ResponseFaultScript::honest());
    rig.run(&["cp", &url, "DIR/copy"]).ok();
    let range = server.requests().pop().unwrap().header("range").map(str::to_owned);
    assert!(range.is_some_and(|range| range.ends_with("-1199999")), "it is resumed");
    for name in ["copy", "streams"] {
        assert!(std::fs::read(rig.path(name)).unwrap() == content(), "{name}");
    }
    assert_eq!(rig.files(), ["copy", "streams"]);
}

/// In a response without a declared size, the end of the HTTP/2 stream marks the end of the file.
#[test]
fn a_file_without_a_stated_size_is_copied_over_http2() {
    let (rig, server) = (over_http2(), HostileServer::start_http2(content(), ResponseFaultScript::honest()));
    let unsized_file = || {
        ResponseFaultScript::honest()
            .always(ResponseFault::WholeForRange)
            .always(ResponseFault::Chunked(70_000))
    };
    server.follow(unsized_file());
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    assert!(std::fs::read(rig.path("copy")).unwrap() == content());
    server.follow(unsized_file().always(ResponseFault::ResetAt(500_000)));
    assert_ne!(rig.run(&["cp", &server.url(), "DIR/other"]).exit, CommandExit::Ok);
    assert_eq!(rig.files(), ["copy"]);
}

#[test]
fn a_redirection_leads_to_another_host_over_http2() {
    let (rig, there) = (over_http2(), HostileServer::start_http2(content(), ResponseFaultScript::honest()));
    let moved = ResponseFault::Redirect(307, there.url());
    let door = HostileServer::start_http2(content(), ResponseFaultScript::honest().always(moved));
    assert!(rig.run(&["cat", &door.url()]).ok().stdout.into_bytes() == content());
    // Every server must support the configured version, including the target of a redirection.
    let plain = HostileServer::start(content(), ResponseFaultScript::honest());
    door.follow(ResponseFaultScript::honest().always(ResponseFault::Redirect(307, plain.url())));
    assert_ne!(rig.run(&["cat", &door.url()]).exit, CommandExit::Ok);
}

/// Runs all commands for WebDAV on a server.
fn go_up_and_come_down(rig: Rig, server: &ExternalServerProcess) {
    let dav = |path: &str| server.url(path).replace("http", "dav");
    rig.write("tree/a", "1");
    rig.write("tree/sub/c", vec![b'c'; 3_000_000]);
    rig.run(&["cp", "--recursive", "DIR/tree", &dav("up")]).ok();
    assert!(rig.run(&["ls", &dav("up"), "--recursive"]).ok().stdout.contains("3000000 sub/c"));
    rig.run(&["cp", "--recursive", &dav("up"), "DIR/down"]).ok();
    assert_eq!(std::fs::read(rig.path("down/sub/c")).unwrap(), vec![b'c'; 3_000_000]);
    rig.run(&["mkdir", "--parents", &dav("d/e")]).ok();
    rig.run(&["mv", &dav("up/a"), &dav("d/e/")]).ok();
    assert_eq!(rig.run(&["cat", &dav("d/e/a")]).ok().stdout, "1");
    assert!(rig.run(&["stat", &dav("d/e/a")]).ok().stdout.contains("(1 bytes)"));
    rig.run(&["rm", "--recursive", &dav("d")]).ok();
    let rig = Rig { input: vec![b'p'; 300_000], ..rig };
    let piped = rig.run(&["cp", "-", &dav("piped")]);
    match piped.exit {
        CommandExit::Ok => assert_eq!(rig.run(&["cat", &dav("piped")]).ok().stdout.len(), 300_000),
        // Over HTTP/3, Caddy 2.6 treats content of unknown size as empty.
        _ => assert!(piped.stderr.contains("before it had received the content"), "{}", piped.stderr),
    }
    rig.run(&["rm", &dav("piped")]).ok();
    assert_eq!(rig.run(&["ls", &dav(""), "--recursive"]).ok().stdout.lines().count(), 1, "up/sub/c");
}

#[test]
fn webdav_works_over_http2() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    go_up_and_come_down(over_http2(), &server);
}

/// Caddy is a reverse proxy that adds HTTP/3 to Apache.
#[cfg(feature = "http3")]
#[test]
fn webdav_works_over_http3() {
    let authority = SelfSignedCertificate::new();
    let Some(apache) = ExternalServerProcess::apache() else { return };
    let Some(caddy) = apache.behind_caddy(&authority) else { return };
    for version in [HttpVersion::Http2, HttpVersion::Http3] {
        go_up_and_come_down(Rig::new().over_http(version, Some(authority.file())), &caddy);
        std::fs::remove_dir_all(apache.files().join("up")).unwrap();
    }
}

/// Runs the program itself with `version` as the HTTP version in the environment.
fn fordway(version: &str, ca_bundle: PathBuf, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(words)
        .env("FORDWAY_HTTP_VERSION", version)
        .env("AWS_CA_BUNDLE", ca_bundle)
        .output()
        .unwrap()
}

#[test]
fn the_environment_names_the_version() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::nginx_with_tls(&authority) else { return };
    std::fs::write(server.files().join("f"), content()).unwrap();
    for version in ["", "1.1", "2"] {
        let ran = fordway(version, authority.file(), &["cat", &server.url("f")]);
        assert!(ran.status.success() && ran.stdout == content(), "{version}: {}", text(&ran.stderr));
    }
    let ran = fordway("4", authority.file(), &["cat", &server.url("f")]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("FORDWAY_HTTP_VERSION"), "{}", text(&ran.stderr));
}

/// nginx requires a client certificate for the files below `cert/`.
#[test]
fn a_client_certificate_is_shown_over_each_version() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::nginx_with_tls(&authority) else { return };
    std::fs::create_dir(server.files().join("cert")).unwrap();
    std::fs::write(server.files().join("cert/f"), "secret").unwrap();
    for version in ["1.1", "2"] {
        let ran = fordway(version, authority.file(), &["cat", &server.url("cert/f")]);
        assert_eq!(ran.status.code(), Some(4), "{version}: {}", text(&ran.stderr));
        let ran = Command::new(env!("CARGO_BIN_EXE_fordway"))
            .args(["cat", &server.url("cert/f")])
            .env("FORDWAY_HTTP_VERSION", version)
            .env("AWS_CA_BUNDLE", authority.file())
            .env("X509_USER_CERT", authority.file())
            .env("X509_USER_KEY", authority.key())
            .output()
            .unwrap();
        assert_eq!(text(&ran.stdout), "secret", "{version}: {}", text(&ran.stderr));
    }
}

/// If the server does not support the configured version, the command fails, and its message suggests another version.
#[test]
fn a_server_without_http2_is_an_error() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::xrootd(&authority) else { return };
    let ran = fordway("2", authority.file(), &["cat", &server.url("f")]);
    assert!(!ran.status.success());
    assert!(text(&ran.stderr).contains("does not support HTTP/2; use HTTP/1.1"), "{}", text(&ran.stderr));
}
