//! Tests the discovery of a file's replicas.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_http::HttpVersion;
use fordway_http::replicas::{MetalinkCache, discover, fetch_metalink};
use fordway_http::vector::HttpSession;
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use fordway_wire::metalink::Metalink;

use crate::{VERSION, described, options, server};

fn session() -> Arc<HttpSession> {
    Arc::new(HttpSession::new(options().session))
}

fn document(servers: &[&HostileServer]) -> String {
    Metalink { files: vec![described(servers)] }.to_xml()
}

#[test]
fn each_way_is_gone_in_turn() {
    let other = server(ResponseFaultScript::honest());
    let xml = document(&[&other]);
    for (from, ending, kind) in [
        ("Accept", "", "application/metalink4+xml"),
        ("?metalink", "?metalink", "application/metalink+xml"),
        (".meta4", ".meta4", "text/plain"),
    ] {
        let origin =
            server(ResponseFaultScript::honest().always(ResponseFault::Document(ending, kind, xml.clone())));
        let found = discover(&session(), &origin.url(), None).unwrap();
        assert_eq!(found.from, from);
        let urls: Vec<_> = found.file.replicas.iter().map(|replica| replica.url.clone()).collect();
        assert_eq!(urls, [other.url(), origin.url()], "{from}");
        assert!(found.file.pieces.is_some());
    }
}

/// The faults in the transmission of the file do not affect a document.
#[test]
fn a_document_arrives_whole_from_a_server_that_cuts_files_off() {
    for version in [HttpVersion::Http1, HttpVersion::Http2] {
        VERSION.set(version);
        let (other, kind) = (server(ResponseFaultScript::honest()), "application/metalink4+xml");
        let cut = ResponseFaultScript::honest().always(ResponseFault::CloseAt(10));
        let origin = server(cut.always(ResponseFault::Document("", kind, document(&[&other]))));
        assert_eq!(discover(&session(), &origin.url(), None).unwrap().from, "Accept", "{version:?}");
    }
}

#[test]
fn links_name_replicas_and_what_describes_them() {
    let other = server(ResponseFaultScript::honest());
    let origin = server(ResponseFaultScript::honest());
    let duplicate = format!("<{}>; rel=duplicate; pri=3; geo=ch", other.url());
    let described_by = "<file.meta4>; rel=describedby; type=\"application/metalink4+xml\"";
    origin.follow(
        ResponseFaultScript::honest()
            .always(ResponseFault::Header("Link", format!("{duplicate}, {described_by}")))
            .always(ResponseFault::Document(".meta4", "application/metalink4+xml", document(&[&other]))),
    );
    let found = discover(&session(), &origin.url(), None).unwrap();
    assert_eq!(found.from, "Link headers");
    assert_eq!(found.file.replicas.len(), 2);
    assert_eq!(
        (found.file.replicas[1].priority, found.file.replicas[1].location.as_deref()),
        (3, Some("ch"))
    );
    assert!(found.file.pieces.is_some() && found.file.name == "file");
}

#[test]
fn who_knows_nothing_says_nothing() {
    let origin = server(ResponseFaultScript::honest());
    assert!(discover(&session(), &origin.url(), None).is_none());
    let refusing = server(ResponseFaultScript::honest().always(ResponseFault::Status(404, None)));
    assert!(discover(&session(), &refusing.url(), None).is_none());
}

#[test]
fn a_dead_origin_is_remembered() {
    let (directory, other) = (tempfile::tempdir().unwrap(), server(ResponseFaultScript::honest()));
    let cache = MetalinkCache::new(directory.path().join("cache"));
    let kind = "application/metalink4+xml";
    let origin =
        server(ResponseFaultScript::honest().always(ResponseFault::Document("", kind, document(&[&other]))));
    let url = origin.url();
    assert_eq!(discover(&session(), &url, Some(&cache)).unwrap().from, "Accept");
    drop(origin);
    let found = discover(&session(), &url, Some(&cache)).unwrap();
    assert_eq!((found.from, found.file.replicas[0].url.clone()), ("the cache", other.url()));
}

/// A description that a server sends is not used for the files of other servers, even if it names them as replicas.
#[test]
fn a_server_cannot_describe_the_file_of_another_server() {
    let directory = tempfile::tempdir().unwrap();
    let cache = MetalinkCache::new(directory.path().to_owned());
    let victim = server(ResponseFaultScript::honest());
    let url = victim.url();
    let duplicate = format!("<{url}>; rel=duplicate; pri=2");
    let link = ResponseFault::Header("Link", duplicate);
    let document = ResponseFault::Document("", "application/metalink4+xml", document(&[&victim]));
    for (from, says) in [("Link headers", link), ("Accept", document)] {
        let attacker = server(ResponseFaultScript::honest().always(says));
        let own = attacker.url();
        assert_eq!(discover(&session(), &own, Some(&cache)).unwrap().from, from);
        drop(attacker);
        assert_eq!(discover(&session(), &own, Some(&cache)).unwrap().from, "the cache");
    }
    drop(victim);
    assert!(discover(&session(), &url, Some(&cache)).is_none());
}

#[test]
fn the_cache_does_not_hide_an_untrusted_certificate() {
    VERSION.set(HttpVersion::Http2);
    let directory = tempfile::tempdir().unwrap();
    let cache = MetalinkCache::new(directory.path().to_owned());
    let origin = HostileServer::start_secure_http2(crate::content(), ResponseFaultScript::honest());
    let url = origin.url();
    cache.keep_from_user(&described(&[&origin, &server(ResponseFaultScript::honest())])).unwrap();
    assert!(discover(&session(), &url, Some(&cache)).is_none(), "the certificate is not trusted");
    drop(origin);
    assert_eq!(discover(&session(), &url, Some(&cache)).unwrap().from, "the cache");
}

#[test]
fn a_metalink_is_fetched_and_hostile_ones_refused() {
    let other = server(ResponseFaultScript::honest());
    let get = |body: &str| {
        let holder = HostileServer::start(body.as_bytes(), ResponseFaultScript::honest());
        fetch_metalink(&session(), &holder.url())
    };
    assert_eq!(get(&document(&[&other])).unwrap().files.len(), 1);
    let bomb = "<!DOCTYPE m [<!ENTITY a \"aa\">]><metalink>&a;</metalink>";
    assert!(get(bomb).unwrap_err().to_string().contains("document type"));
    assert!(get("no address").is_err());
    let staged = ResponseFaultScript::honest().always(ResponseFault::Status(202, None));
    let staged = HostileServer::start(document(&[&other]), staged);
    assert_eq!(fetch_metalink(&session(), &staged.url()).unwrap_err().kind(), ErrorKind::Unavailable);
}

/// If a Metalink was not updated together with its file, its digest differs from the file's digest.
#[test]
fn a_metalink_with_another_digest_than_the_server_states_is_not_used() {
    let other = server(ResponseFaultScript::honest());
    let known = ResponseFault::Document("file.meta4", "application/metalink4+xml", document(&[&other]));
    let link = "<file.meta4>; rel=describedby; type=\"application/metalink4+xml\"".to_owned();
    let stated = |digest: &str| {
        let script = ResponseFaultScript::honest().always(known.clone());
        let script = script.always(ResponseFault::Header("Link", link.clone()));
        server(script.always(ResponseFault::Header("Digest", digest.to_owned())))
    };
    let wrong = stated(&format!("sha-256={}=", "A".repeat(43)));
    assert!(discover(&session(), &wrong.url(), None).is_none(), "the description of another version");
    assert_eq!(discover(&session(), &stated("x=y").url(), None).unwrap().from, "Link headers");
}

/// A server without Metalink support sends the file itself. In this test, it sends the file slowly.
#[test]
fn a_slow_document_ends_with_the_deadline_or_its_own_limit() {
    for (deadline, limit) in [(Some(Duration::from_secs(1)), 8), (None, 25)] {
        let slow = ResponseFaultScript::honest().on_method("GET", ResponseFault::Slow(20_000));
        let (origin, mut options) = (server(slow), options().session);
        options.deadline = deadline;
        let begun = Instant::now();
        assert!(discover(&Arc::new(HttpSession::new(options)), &origin.url(), None).is_none());
        assert!(begun.elapsed() < Duration::from_secs(limit), "{deadline:?}: {:?}", begun.elapsed());
        let requests = origin.requests().len();
        assert_eq!(requests, 2, "no other document is requested from a server that is so slow");
    }
}

#[test]
fn a_server_that_asks_for_a_pause_is_not_asked_further() {
    let busy = ResponseFaultScript::honest().always(ResponseFault::Status(429, None));
    let origin = server(busy);
    assert!(discover(&session(), &origin.url(), None).is_none());
    assert_eq!(origin.requests().len(), 1);
}
