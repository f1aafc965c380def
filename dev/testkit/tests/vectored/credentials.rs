//! Tests credentials of several users in one process.

use std::sync::Arc;

use fordway_http::SessionCredentials;
use fordway_http::vector::RemoteFile;
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, RecordedRequest, ResponseFault, ResponseFaultScript};

use crate::{SIZE, file, session};

/// Opens a path on the server with the credentials of `who`.
fn open_as(server: &HostileServer, path: &str, who: SessionCredentials) -> Arc<RemoteFile> {
    let session = session(|options| {
        options.credentials = who;
        options.connections_per_origin = 4;
        options.timeouts.first_byte = std::time::Duration::from_secs(20);
    });
    let url = format!("http://{}/{path}", server.address());
    Arc::new(RemoteFile::open(&session, &url).unwrap())
}

fn said(request: &RecordedRequest) -> Option<&str> {
    request.header("authorization")
}

#[test]
fn users_are_not_mixed_up_by_many_threads() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let tokens = ["one", "two", "three"];
    let users: Vec<_> = tokens
        .iter()
        .map(|name| open_as(&server, name, SessionCredentials::none().with_bearer_token(*name)))
        .chain([open_as(&server, "nobody", SessionCredentials::none())])
        .collect();
    let content = Arc::new(file());
    let reader = |thread: usize| {
        let (opened, content) = (users[thread % users.len()].clone(), content.clone());
        move || {
            for n in 0..50 {
                let (mut buffer, offset) = ([0; 500], (thread * 7_001 + n * 113) % (SIZE - 500));
                assert_eq!(opened.read_at(offset as u64, &mut buffer).unwrap(), 500);
                assert!(buffer == content[offset..][..500]);
            }
        }
    };
    let threads: Vec<_> = (0..64).map(|thread| std::thread::spawn(reader(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let requests = server.requests();
    assert_eq!(requests.len(), 64 * 50 + 4);
    for request in &requests {
        let name = request.target.trim_start_matches('/');
        let expected = (name != "nobody").then(|| format!("Bearer {name}"));
        assert_eq!(said(request), expected.as_deref(), "{}", request.target);
    }
    for name in ["one", "two", "three", "nobody"] {
        let own: Vec<_> = requests.iter().filter(|r| r.target == format!("/{name}")).collect();
        let is_shared = |r: &&RecordedRequest| own.iter().any(|mine| mine.connection == r.connection);
        assert_eq!(requests.iter().filter(is_shared).count(), own.len(), "connections of {name} are its own");
    }
}

#[test]
fn another_port_is_another_host_and_the_way_back_is_no_way_home() {
    let home = HostileServer::start(file(), ResponseFaultScript::honest());
    let away = HostileServer::start(file(), ResponseFaultScript::honest());
    home.follow(
        ResponseFaultScript::honest()
            .on_requests(0..1, ResponseFault::Redirect(302, "/moved".into()))
            .on_requests(1..2, ResponseFault::Redirect(302, away.url())),
    );
    let back = format!("http://{}/back", home.address());
    away.follow(ResponseFaultScript::honest().always(ResponseFault::Redirect(307, back)));
    let opened = open_as(&home, "file", SessionCredentials::none().with_bearer_token("secret"));
    opened.read_at(0, &mut [0; 10]).unwrap();
    let told: Vec<_> =
        home.requests().iter().map(|r| (r.target.clone(), said(r).map(str::to_owned))).collect();
    let secret = Some("Bearer secret".to_owned());
    let path = |path: &str| path.to_owned();
    assert_eq!(
        told,
        [
            (path("/file"), secret.clone()),
            (path("/moved"), secret),
            (path("/back"), None),
            (path("/back"), None)
        ]
    );
    assert_eq!(away.requests().iter().map(said).collect::<Vec<_>>(), [None]);
}

#[test]
fn a_refusal_is_no_reason_to_say_more() {
    let server =
        HostileServer::start(file(), ResponseFaultScript::honest().always(ResponseFault::Status(401, None)));
    let session =
        session(|options| options.credentials = SessionCredentials::none().with_bearer_token("old"));
    let error = RemoteFile::open(&session, &server.url()).err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::AccessDenied);
    assert!(!error.to_string().contains("old"), "{error}");
    assert_eq!(server.requests().len(), 1);
}
