//! Tests HTTP/2 clients that send many requests and read no content: the memory that the gateway uses for these
//! clients, and whether it frees the memory after they disconnect.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use fordway_store::Key;
use fordway_sys::usage_of;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::process::{Process, bucket, place};

const CONNECTIONS: usize = 20;
const STREAMS: usize = 256;
/// The object's size in bytes, which is larger than the flow-control window of any stream.
const OBJECT_BYTES: usize = 4 << 20;
/// The maximum growth of the gateway's memory during these requests, in MiB: 32 KiB for each request. [`AFTER_MIB_MAX`]
/// is the maximum that remains after the requests.
const BESIEGED_MIB_MAX: u64 = 160;
const AFTER_MIB_MAX: u64 = 40;

/// Opens a connection with the flow-control window `each` for every response, and `of_all` for the whole connection.
/// The connection ends when the task of the returned handle ends.
async fn connect(address: &str, each: u32, of_all: u32) -> (SendRequest<Bytes>, JoinHandle<()>) {
    let socket = TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(each).initial_connection_window_size(of_all);
    let (send, connection) = builder.handshake(socket).await.unwrap();
    (send, tokio::spawn(async move { drop(connection.await) }))
}

/// Requests the object on every stream of every connection, waits for the heads of all responses, and reads none of the
/// bodies.
async fn besiege(address: &str, url: &str, (each, of_all): (u32, u32)) -> Vec<JoinHandle<()>> {
    let (mut held, mut connections) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let (mut send, connection) = connect(address, each, of_all).await;
        for _ in 0..STREAMS {
            send = send.ready().await.unwrap();
            let request = http::Request::get(url).body(()).unwrap();
            held.push(send.send_request(request, true).unwrap().0);
        }
        connections.push(connection);
    }
    let mut bodies = Vec::new();
    for answer in held {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        bodies.push(answer.into_body());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Keep the bodies until the connections end.
    std::mem::forget(bodies);
    connections
}

fn resident_mib(process: &Process) -> u64 {
    usage_of(process.id()).unwrap().rss_bytes >> 20
}

#[test]
fn what_nobody_takes_is_not_kept_in_memory() {
    let dir = place();
    std::fs::write(dir.path().join("root/bucket/o"), vec![7; OBJECT_BYTES]).unwrap();
    let gateway = Process::start(dir.path(), &[]);
    let key = Key::new("o").unwrap();
    let url = gateway.client().presign("GET", &bucket(), &key, 600, SystemTime::now()).unwrap();
    let address = gateway.endpoint.strip_prefix("http://").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let before_mib = resident_mib(&gateway);
        for windows in [(1, 1 << 20), (65_535, 1 << 30)] {
            let connections = besiege(address, &url, windows).await;
            let besieged_mib = resident_mib(&gateway).saturating_sub(before_mib);
            connections.into_iter().for_each(|connection| connection.abort());
            let deadline = Instant::now() + Duration::from_secs(25);
            let mut after_mib = besieged_mib;
            while after_mib > AFTER_MIB_MAX && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(100)).await;
                after_mib = resident_mib(&gateway).saturating_sub(before_mib);
            }
            assert!(
                besieged_mib <= BESIEGED_MIB_MAX,
                "{windows:?}: {besieged_mib} MiB more than {before_mib}"
            );
            assert!(after_mib <= AFTER_MIB_MAX, "{windows:?}: {after_mib} MiB were not given back");
        }
    });
}
