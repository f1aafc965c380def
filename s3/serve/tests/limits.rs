//! Tests the limits on users, on slow clients, and on clients whose user is unknown. The tests check responses, never
//! times.

mod client;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

#[cfg(feature = "http3")]
use bytes::Bytes;
use client::http2::{Http2, push, run};
use client::{Answer, Call, Client, key, lasting, next_answer, read_answer, serve_openly};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, StoreOpenFunction, Users};
use fordway_store::{Bucket, MemoryStore, Objects, PutOptions};

const SLOW_DOWN: (u16, &str) = (503, "SlowDown");

/// A gateway with two users. The store has one bucket with the object `k`.
struct Ground {
    _dir: tempfile::TempDir,
    log: PathBuf,
    gateway: RunningGateway,
}

impl Ground {
    /// Starts the gateway. The argument `noisy` contains the limits of the user `noisy`, in TOML.
    fn new(noisy: &str, change: impl FnOnce(&mut GatewayConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, credentials, log) =
            (dir.path().join("root"), dir.path().join("users.toml"), dir.path().join("access.log"));
        std::fs::create_dir(&root).unwrap();
        write_credentials(&credentials, &[("noisy", noisy), ("quiet", "")]);
        let store = MemoryStore::default();
        let bucket = Bucket::new("bucket").unwrap();
        store.create_bucket(&bucket).unwrap();
        for (name, bytes) in [("k", 5), ("large", 64 << 20)] {
            store.put(&bucket, &key(name), &vec![7; bytes], &PutOptions::default()).unwrap();
        }
        let open: StoreOpenFunction = Arc::new(move || Ok(Arc::new(store.clone())));
        let users = Users::from_file(&credentials, &root, open).unwrap();
        let mut config = GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.threads = 1;
        config.metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.access_log = Some(log.clone());
        config.drain_timeout = Duration::from_millis(200);
        change(&mut config);
        let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
        Ground { _dir: dir, log, gateway }
    }

    fn client(&self, user: &str) -> Client {
        let identity = AccessKeyPair { access_key: user.to_owned(), secret_key: "secret".to_owned() };
        Client { address: self.gateway.local_addr(), identity, clock_offset_s: 0, dates_by_date: false }
    }

    fn counters(&self) -> Counters {
        Counters(self.gateway.metrics_addr().unwrap())
    }

    /// Stops the gateway, and returns the values of the `limit` field from those access log lines that have this field.
    fn limits_in_log(self) -> Vec<String> {
        drop(self.gateway);
        let text = std::fs::read_to_string(&self.log).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter_map(|line| line["limit"].as_str().map(str::to_owned)).collect()
    }
}

/// The address of the gateway's counters.
#[derive(Clone, Copy)]
struct Counters(SocketAddr);

impl Counters {
    fn text(self) -> String {
        let mut stream = TcpStream::connect(self.0).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits until the counters contain `line`.
    #[track_caller]
    fn wait_for(self, line: &str) {
        self.wait_until(line, |text| text.lines().any(|found| found == line));
    }

    /// Waits until `is_so` returns true for the counters. `what` describes this condition.
    #[track_caller]
    fn wait_until(self, what: &str, is_so: impl Fn(&str) -> bool) {
        for _ in 0..1000 {
            if is_so(&self.text()) {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("{what}: not in\n{}", self.text());
    }

    /// Waits until the user `noisy` has `count` requests in flight.
    #[track_caller]
    fn wait_for_requests(self, count: u32) {
        match count {
            0 => self.wait_for("fordway_requests_in_flight 0"),
            _ => self.wait_for(&format!("fordway_user_requests_in_flight{{user=\"noisy\"}} {count}")),
        }
    }
}

fn write_credentials(path: &std::path::Path, users: &[(&str, &str)]) {
    use std::os::unix::fs::PermissionsExt as _;
    let (uid, gid) = (fordway_sys::user_id(), fordway_sys::group_id());
    let text: String = users
        .iter()
        .map(|(name, more)| {
            format!(
                "[[user]]\nname='{name}'\naccess_key='{name}'\nsecret_key='secret'\nuid={uid}\ngid={gid}\n{more}\n"
            )
        })
        .collect();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Runs `wait` on another thread, so that this thread can serve the client's connections during the wait.
async fn elsewhere(wait: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(wait).await.unwrap();
}

fn get() -> Call<'static> {
    Call::new("GET", "/bucket/k")
}

/// Returns an upload. The caller sends only the first part of the request's body.
fn half(name: &str) -> Call<'static> {
    Call::new("PUT", format!("/bucket/{name}")).payload("UNSIGNED-PAYLOAD").body(vec![1; 100_000])
}

#[track_caller]
fn assert_slow_down(answer: &Answer) {
    let (status, code) = answer.error();
    assert_eq!((status, code.as_str()), SLOW_DOWN, "{}", answer.text());
    assert_eq!(answer.header("retry-after"), Some("1"));
}

/// Checks the counters and the access log after exactly one request has exceeded the limit.
fn assert_counted(ground: Ground) {
    ground.counters().wait_for("fordway_user_requests_refused_total{user=\"noisy\",limit=\"requests\"} 1");
    ground.counters().wait_for_requests(0);
    assert_eq!(ground.limits_in_log(), ["requests"]);
}

#[test]
fn a_user_with_too_many_requests_is_told_to_slow_down_over_http1() {
    let ground = Ground::new("requests=2", |_| ());
    let (noisy, quiet) = (ground.client("noisy"), ground.client("quiet"));
    let mut uploads = [noisy.connect(), noisy.connect()];
    for upload in &mut uploads {
        upload.write_all(&noisy.head(&half("u"))).unwrap();
    }
    ground.counters().wait_for_requests(2);
    assert_slow_down(&noisy.send(&get()));
    for _ in 0..20 {
        quiet.send(&get()).ok();
    }
    for upload in &mut uploads {
        upload.write_all(&[1; 100_000]).unwrap();
        read_answer(upload, "PUT").ok();
    }
    noisy.send(&get()).ok();
    assert_counted(ground);
}

#[test]
fn a_user_with_too_many_requests_is_told_to_slow_down_over_http2() {
    let ground = Ground::new("requests=2", |_| ());
    let counters = ground.counters();
    run(async {
        let noisy = Http2::connect(&ground.client("noisy")).await;
        let quiet = Http2::connect(&ground.client("quiet")).await;
        let (first, mut one) = noisy.start(&half("u"), false).await;
        let (second, mut other) = noisy.start(&half("v"), false).await;
        elsewhere(move || counters.wait_for_requests(2)).await;
        assert_slow_down(&noisy.send(&get()).await);
        for _ in 0..20 {
            quiet.send(&get()).await.ok();
        }
        push(&mut one, &[1; 100_000], true).await.unwrap();
        push(&mut other, &[1; 100_000], true).await.unwrap();
        assert_eq!(first.await.unwrap().status(), 200);
        assert_eq!(second.await.unwrap().status(), 200);
        noisy.send(&get()).await.ok();
    });
    assert_counted(ground);
}

/// A request whose response the client does not receive remains in flight until the stream of the request ends.
#[test]
fn responses_that_are_not_read_count_until_they_are_cancelled() {
    let ground = Ground::new("requests=2", |_| ());
    let counters = ground.counters();
    run(async {
        let noisy = Http2::connect(&ground.client("noisy")).await;
        let mut held = Vec::new();
        for _ in 0..2 {
            let large = Call::new("GET", "/bucket/large");
            held.push(noisy.start(&large, true).await.0.await.unwrap());
        }
        assert_slow_down(&noisy.send(&get()).await);
        drop(held);
        elsewhere(move || counters.wait_for_requests(0)).await;
        noisy.send(&get()).await.ok();
    });
}

/// Tests rapid resets of requests with valid signatures. No cancelled request remains in flight, and the other user is
/// still served.
#[test]
fn requests_cancelled_at_once_leave_nothing_in_flight() {
    let ground = Ground::new("requests=200", |_| ());
    let counters = ground.counters();
    run(async {
        let quiet = Http2::connect(&ground.client("quiet")).await;
        for _ in 0..20 {
            let noisy = Http2::connect(&ground.client("noisy")).await;
            for _ in 0..50 {
                let request = noisy.request(&Call::new("GET", "/bucket/large"));
                let Ok((answer, _)) = noisy.send.clone().send_request(request, true) else { break };
                drop(answer);
                tokio::task::yield_now().await;
            }
            quiet.send(&get()).await.ok();
        }
        // The user's count of requests in flight falls to zero slightly later than the gateway's count.
        let is_over = |text: &str| {
            let is_idle = text.lines().any(|line| line == "fordway_requests_in_flight 0");
            is_idle && !text.contains("fordway_user_requests_in_flight{")
        };
        elsewhere(move || counters.wait_until("nothing is in flight", is_over)).await;
    });
}

#[cfg(feature = "http3")]
#[test]
fn a_user_with_too_many_requests_is_told_to_slow_down_over_http3() {
    use client::http3::{Http3, take};
    let certificate = client::tls::Certificate::new();
    let ground = Ground::new("requests=2", |config| {
        (config.tls, config.http3) = (Some(certificate.load()), true);
    });
    let counters = ground.counters();
    run(async {
        let mut noisy = Http3::connect(&ground.client("noisy"), &certificate).await;
        let mut quiet = Http3::connect(&ground.client("quiet"), &certificate).await;
        let mut uploads = [noisy.start(&half("u")).await, noisy.start(&half("v")).await];
        elsewhere(move || counters.wait_for_requests(2)).await;
        assert_slow_down(&noisy.send(&get()).await);
        for _ in 0..20 {
            quiet.send(&get()).await.ok();
        }
        for upload in &mut uploads {
            upload.send_data(Bytes::from(vec![1; 100_000])).await.unwrap();
            upload.finish().await.unwrap();
            take(upload).await.ok();
        }
        noisy.send(&get()).await.ok();
    });
    assert_counted(ground);
}

/// Sends one byte at a time until the gateway responds.
#[test]
fn a_sender_below_the_least_rate_is_ended() {
    let slow = |config: &mut GatewayConfig| {
        config.stall_timeout = Duration::from_secs(2);
        config.body_bytes_per_s_min = 1_000_000;
    };
    let ground = Ground::new("", slow);
    let noisy = ground.client("noisy");
    let mut upload = noisy.connect();
    upload.write_all(&noisy.head(&half("u"))).unwrap();
    upload.set_nonblocking(true).unwrap();
    let is_answered = (0..1000).any(|_| {
        sleep(Duration::from_millis(20));
        upload.write_all(b"x").is_err() || upload.peek(&mut [0]).is_ok()
    });
    assert!(is_answered, "it was not ended");
    upload.set_nonblocking(false).unwrap();
    assert_eq!(read_answer(&mut upload, "PUT").error(), (400, "RequestTimeout".to_owned()));
    run(async {
        let noisy = Http2::connect(&ground.client("noisy")).await;
        let (mut answer, mut upload) = noisy.start(&half("u"), false).await;
        for _ in 0..1000 {
            let _ = push(&mut upload, b"x", false).await;
            if let Ok(answer) = tokio::time::timeout(Duration::from_millis(20), &mut answer).await {
                assert_eq!(answer.unwrap().status(), 400);
                return;
            }
        }
        panic!("it was not ended");
    });
    ground.client("quiet").send(&get()).ok();
    ground.counters().wait_for("fordway_slow_bodies_total 2");
    assert_eq!(ground.limits_in_log(), ["slow", "slow"]);
}

#[test]
fn a_receiver_below_the_least_rate_is_ended() {
    let ground = Ground::new("", |config| {
        config.stall_timeout = Duration::from_secs(2);
        config.body_bytes_per_s_min = 1 << 40;
    });
    let noisy = ground.client("noisy");
    let mut download = noisy.connect();
    download.write_all(&noisy.head(&Call::new("GET", "/bucket/large"))).unwrap();
    let (mut taken, mut piece) = (0, vec![0; 64 << 10]);
    while let Ok(count @ 1..) = download.read(&mut piece) {
        taken += count;
        sleep(Duration::from_millis(20));
    }
    assert!(taken < 64 << 20, "all of it came");
    ground.client("quiet").send(&get()).ok();
    ground.counters().wait_for("fordway_slow_bodies_total 1");
    assert_eq!(ground.limits_in_log(), ["slow"]);
}

/// At 1,000 bytes per second, an upload of 64 MiB uses up the rate for hours.
#[test]
fn a_user_beyond_the_rate_is_told_when_to_come_back() {
    let ground = Ground::new("rate='1000'", |_| ());
    let (noisy, quiet) = (ground.client("noisy"), ground.client("quiet"));
    let put = Call::new("PUT", "/bucket/u").payload("UNSIGNED-PAYLOAD").body(vec![1; 200_000]);
    let mut upload = noisy.connect();
    upload.write_all(&noisy.head(&put)).unwrap();
    upload.write_all(&put.body).unwrap();
    let refused = (0..1000).find_map(|_| {
        sleep(Duration::from_millis(20));
        let answer = noisy.send(&get());
        (answer.status != 200).then_some(answer)
    });
    let refused = refused.expect("the rate is used up");
    let (status, code) = refused.error();
    assert_eq!((status, code.as_str()), SLOW_DOWN);
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 1);
    for _ in 0..20 {
        quiet.send(&get()).ok();
    }
    ground.counters().wait_for("fordway_user_requests_refused_total{user=\"noisy\",limit=\"rate\"} 1");
}

/// A gateway for 8 connections, of which each user can have 2.
fn few_connections(change: impl FnOnce(&mut GatewayConfig)) -> Ground {
    Ground::new("", |config| {
        (config.connections_max, config.user_limits.connections_max) = (8, 2);
        change(config);
    })
}

/// Opens a connection, on which one request of `client` is answered with 200.
fn held(client: &Client) -> TcpStream {
    let mut stream = client.connect();
    stream.write_all(&lasting(client, &get())).unwrap();
    assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 200"));
    stream
}

/// Sends requests on new connections until one is not refused: the gateway may notice slightly later that a connection
/// of the user has ended.
#[track_caller]
fn wait_for_room(client: &Client) {
    let is_served = (0..1000).any(|_| {
        sleep(Duration::from_millis(10));
        client.send(&get()).status == 200
    });
    assert!(is_served, "there is no room");
}

#[test]
fn a_user_with_too_many_connections_leaves_room_for_others_over_http1() {
    let ground = few_connections(|config| config.address_connections_max = 2);
    let (noisy, quiet) = (ground.client("noisy"), ground.client("quiet"));
    let mut open = [held(&noisy), held(&noisy)];
    ground.counters().wait_for("fordway_user_connections{user=\"noisy\"} 2");
    for _ in 0..20 {
        let mut surplus = noisy.connect();
        surplus.write_all(&lasting(&noisy, &get())).unwrap();
        let refused = read_answer(&mut surplus, "GET");
        assert_slow_down(&refused);
        assert!(refused.text().contains("connections"), "{}", refused.text());
        assert_eq!(refused.header("connection"), Some("close"));
        quiet.send(&get()).ok();
    }
    let counter = "fordway_user_requests_refused_total{user=\"noisy\",limit=\"connections\"} 20";
    ground.counters().wait_for(counter);
    open[0].write_all(&lasting(&noisy, &get())).unwrap();
    assert!(next_answer(&mut open[0]).0.starts_with("HTTP/1.1 200"), "an open connection is served");
    drop(open);
    wait_for_room(&noisy);
    assert!(ground.limits_in_log().iter().all(|limit| limit == "connections"));
}

/// A connection counts for the user whose request it carried last.
#[test]
fn a_connection_that_changes_its_user_makes_room() {
    let ground = few_connections(|_| ());
    let (noisy, quiet) = (ground.client("noisy"), ground.client("quiet"));
    let mut open = [held(&noisy), held(&noisy)];
    open[0].write_all(&lasting(&quiet, &get())).unwrap();
    assert!(next_answer(&mut open[0]).0.starts_with("HTTP/1.1 200"));
    let _third = held(&noisy);
    open[0].write_all(&lasting(&noisy, &get())).unwrap();
    assert_slow_down(&read_answer(&mut open[0], "GET"));
}

#[test]
fn a_user_with_too_many_connections_is_refused_over_tls() {
    let certificate = client::tls::Certificate::new();
    let ground = few_connections(|config| config.tls = Some(certificate.load()));
    let ask = |user: &str| {
        let client = ground.client(user);
        let mut stream = certificate.connect(&client).unwrap();
        stream.write_all(&lasting(&client, &get())).unwrap();
        let (head, _) = next_answer(&mut stream);
        (stream, head)
    };
    let _held = [ask("noisy"), ask("noisy")];
    let (mut surplus, head) = ask("noisy");
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("connection: close"), "{head}");
    assert_eq!(surplus.read(&mut [0]).unwrap_or(0), 0, "the connection is closed");
    assert!(ask("quiet").1.starts_with("HTTP/1.1 200"));
    run(async {
        let surplus = Http2::connect_tls(&ground.client("noisy"), &certificate).await;
        assert_slow_down(&surplus.send(&get()).await);
        Http2::connect_tls(&ground.client("quiet"), &certificate).await.send(&get()).await.ok();
    });
}

/// The gateway closes a connection beyond the limit, although the client keeps it open.
#[test]
fn a_user_with_too_many_connections_leaves_room_for_others_over_http2() {
    let ground = few_connections(|_| ());
    let noisy = ground.client("noisy");
    run(async {
        let open = [Http2::connect(&noisy).await, Http2::connect(&noisy).await];
        for connection in &open {
            connection.send(&get()).await.ok();
            connection.send(&get()).await.ok();
        }
        for _ in 0..10 {
            let surplus = Http2::connect(&noisy).await;
            assert_slow_down(&surplus.send(&get()).await);
            surplus.ended.await.unwrap().expect("the gateway closes the connection");
            Http2::connect(&ground.client("quiet")).await.send(&get()).await.ok();
        }
        drop(open);
        let noisy = noisy.clone();
        elsewhere(move || wait_for_room(&noisy)).await;
    });
}

#[cfg(feature = "http3")]
#[test]
fn a_user_with_too_many_connections_leaves_room_for_others_over_http3() {
    use client::http3::Http3;
    let certificate = client::tls::Certificate::new();
    let ground = few_connections(|config| (config.tls, config.http3) = (Some(certificate.load()), true));
    let noisy = ground.client("noisy");
    run(async {
        let mut open =
            [Http3::connect(&noisy, &certificate).await, Http3::connect(&noisy, &certificate).await];
        for connection in &mut open {
            connection.send(&get()).await.ok();
        }
        for _ in 0..10 {
            let mut surplus = Http3::connect(&noisy, &certificate).await;
            assert_slow_down(&surplus.send(&get()).await);
            surplus.connection.closed().await;
            Http3::connect(&ground.client("quiet"), &certificate).await.send(&get()).await.ok();
        }
        open[0].send(&get()).await.ok();
    });
}

/// Returns a connection on which a request with a wrong signature was refused.
fn stranger(ground: &Ground) -> TcpStream {
    let mut noisy = ground.client("noisy");
    noisy.identity.secret_key = "wrong".to_owned();
    let mut stream = noisy.connect();
    stream.write_all(&lasting(&noisy, &get())).unwrap();
    assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 403"));
    stream
}

#[test]
fn an_address_has_few_connections_without_a_valid_signature() {
    let ground = Ground::new("", |config| config.address_connections_max = 3);
    let mut strangers: Vec<_> = (0..3).map(|_| stranger(&ground)).collect();
    let quiet = ground.client("quiet");
    let refused = quiet.send(&get());
    assert_slow_down(&refused);
    strangers[0].write_all(&lasting(&quiet, &get())).unwrap();
    assert!(next_answer(&mut strangers[0]).0.starts_with("HTTP/1.1 200"));
    for _ in 0..5 {
        quiet.send(&get()).ok();
    }
    drop(strangers);
    ground.counters().wait_for("fordway_connections_refused_total 1");
}

/// An anonymous request that is answered does not authenticate its connection.
#[test]
fn an_address_has_few_anonymous_connections() {
    let fixture = serve_openly(|config| config.address_connections_max = 3);
    let request = b"GET /none HTTP/1.1\r\nhost: h\r\n\r\n";
    let strangers: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = fixture.client.connect();
            stream.write_all(request).unwrap();
            assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 403"));
            stream
        })
        .collect();
    assert_slow_down(&fixture.client.send(&Call::new("GET", "/")));
    let mut first = strangers.into_iter().next().unwrap();
    first.write_all(&lasting(&fixture.client, &Call::new("GET", "/"))).unwrap();
    assert!(next_answer(&mut first).0.starts_with("HTTP/1.1 200"));
}

#[test]
fn a_connection_with_many_wrong_signatures_is_closed() {
    let ground = Ground::new("", |_| ());
    let mut noisy = ground.client("noisy");
    noisy.identity.secret_key = "wrong".to_owned();
    let mut stream = noisy.connect();
    let mut refused = 0;
    while refused < 1000 && stream.write_all(&lasting(&noisy, &get())).is_ok() {
        let (head, _) = next_answer(&mut stream);
        assert!(head.starts_with("HTTP/1.1 403"), "{head}");
        refused += 1;
        if head.contains("connection: close") {
            break;
        }
    }
    assert_eq!(refused, 100);
    run(async {
        let noisy = Http2::connect(&noisy).await;
        let mut send = noisy.send.clone();
        for sent in 0..1000 {
            let Ok((answer, _)) = send.send_request(noisy.request(&get()), true) else {
                return assert!(sent >= 100, "{sent}");
            };
            match answer.await {
                Ok(answer) => assert_eq!(answer.status(), 403),
                Err(_) => return assert!(sent >= 100, "{sent}"),
            }
            let Ok(ready) = send.ready().await else { return assert!(sent >= 99, "{sent}") };
            send = ready;
        }
        panic!("it was not ended");
    });
    ground.client("quiet").send(&get()).ok();
    ground.counters().wait_for("fordway_connections_closed_total 2");
}

/// Several users keep one thread busy over every version of HTTP, so their requests take turns. Each request gets a
/// response.
#[test]
fn users_who_take_turns_are_all_answered() {
    let ground = Ground::new("weight=3", |_| ());
    std::thread::scope(|scope| {
        for user in ["noisy", "quiet"] {
            for _ in 0..4 {
                let client = ground.client(user);
                scope.spawn(move || {
                    let mut stream = client.connect();
                    for _ in 0..20 {
                        stream.write_all(&lasting(&client, &get()).repeat(20)).unwrap();
                        for _ in 0..20 {
                            assert!(next_answer(&mut stream).0.starts_with("HTTP/1.1 200"));
                        }
                    }
                });
            }
            let client = ground.client(user);
            scope.spawn(move || {
                run(async {
                    let http2 = Http2::connect(&client).await;
                    for _ in 0..20 {
                        let call = get();
                        let (one, two, three) =
                            tokio::join!(http2.send(&call), http2.send(&call), http2.send(&call));
                        assert_eq!([one.status, two.status, three.status], [200; 3]);
                    }
                });
            });
        }
    });
    ground.counters().wait_for_requests(0);
}
