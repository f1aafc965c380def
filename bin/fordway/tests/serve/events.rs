//! Tests the delivery of events to webhooks: a real receiver, gateways that are killed, and receivers that fail.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, BucketDocumentKind, BucketDocumentOperations, Key, Objects, PutOptions};
use serde_json::Value;

use super::process::{Process, bucket, place};
use super::wait_for;

/// A receiver of events, which stops when the test ends.
struct Receiver {
    url: String,
    state: Arc<Mutex<Received>>,
}

#[derive(Default)]
struct Received {
    /// The statuses of the next responses. Later responses have the status 200. The value 0 means no response.
    script: Vec<u16>,
    /// The status of all responses, instead of the script.
    always: Option<u16>,
    /// Requests that contain this string get the status 400.
    poison: Option<&'static str>,
    /// Requests that contain this string get no response, and the connection is closed.
    breaker: Option<&'static str>,
    /// The time until a response.
    delay: Duration,
    /// The heads and the bodies of the requests, with the times of their arrival and the statuses of their responses.
    requests: Vec<(String, Value, Instant, u16)>,
}

impl Receiver {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(Received::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                std::thread::spawn(move || answer(stream.unwrap(), &shared));
            }
        });
        Receiver { url, state }
    }

    fn change(&self, change: impl FnOnce(&mut Received)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Returns the records of all requests that were accepted.
    fn records(&self) -> Vec<Value> {
        let state = self.state.lock().unwrap();
        let accepted = state.requests.iter().filter(|(_, _, _, status)| *status == 200);
        accepted.flat_map(|(_, body, _, _)| body["Records"].as_array().unwrap().clone()).collect()
    }

    fn keys(&self) -> BTreeSet<String> {
        self.records()
            .iter()
            .map(|record| record["s3"]["object"]["key"].as_str().unwrap().to_owned())
            .collect()
    }

    fn count(&self) -> usize {
        self.state.lock().unwrap().requests.len()
    }

    fn option(&self, name: &str) -> String {
        format!("{name}={}", self.url)
    }
}

fn answer(stream: TcpStream, state: &Mutex<Received>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, delay) = {
        let mut state = state.lock().unwrap();
        let next = if state.script.is_empty() { 200 } else { state.script.remove(0) };
        if state.breaker.is_some_and(|word| String::from_utf8_lossy(&body).contains(word)) {
            return;
        }
        let is_refused = state.poison.is_some_and(|word| String::from_utf8_lossy(&body).contains(word));
        let status = if is_refused { 400 } else { state.always.unwrap_or(next) };
        let request = (head, serde_json::from_slice(&body).unwrap(), Instant::now(), status);
        state.requests.push(request);
        (status, state.delay)
    };
    std::thread::sleep(delay);
    if status == 0 {
        std::thread::sleep(Duration::from_secs(60));
    }
    let mut stream = stream;
    let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\nok");
}

fn rules(webhook: &str) -> String {
    format!(
        "<NotificationConfiguration><QueueConfiguration><Id>all</Id>\
         <Queue>arn:fordway:sqs::{webhook}:webhook</Queue><Event>s3:ObjectCreated:*</Event>\
         <Event>s3:ObjectRemoved:*</Event></QueueConfiguration></NotificationConfiguration>"
    )
}

const KIND: BucketDocumentKind = BucketDocumentKind::known("notification");

fn configure(store: &impl BucketDocumentOperations, bucket: &Bucket, webhook: &str) {
    store.set_document(bucket, &KIND, rules(webhook).as_bytes()).unwrap();
}

fn put(store: &impl Objects, bucket: &Bucket, name: &str) {
    store.put(bucket, &Key::new(name).unwrap(), b"hello", &PutOptions::default()).unwrap();
}

fn embedded(dir: &Path) -> PosixStore {
    PosixStore::open(&dir.join("root"), PosixConfig::default()).unwrap()
}

fn waiting(dir: &Path, bucket: &str) -> usize {
    let spool = dir.join("root").join(bucket).join(".fordway/events");
    std::fs::read_dir(spool).map_or(0, |entries| entries.count())
}

#[test]
fn events_of_gateways_and_of_embedded_programs_arrive() {
    let (dir, receiver) = (place(), Receiver::new());
    let token = dir.path().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let (hook, token) = (receiver.option("ci"), format!("ci={}", token.display()));
    let options = [
        "--webhook",
        &hook,
        "--webhook-private",
        "ci",
        "--webhook-token",
        &token,
        "--metrics",
        "127.0.0.1:0",
    ];
    let gateway = Process::start(dir.path(), &options);
    let store = gateway.client();
    configure(&store, &bucket(), "ci");
    assert!(store.document(&bucket(), &KIND).unwrap().is_some());
    let start = Instant::now();
    put(&store, &bucket(), "a b.txt");
    wait_for(|| receiver.keys().contains("a+b.txt"));
    assert!(
        start.elapsed() < Duration::from_millis(1500),
        "an event of the gateway itself waits for no search"
    );
    put(&embedded(dir.path()), &bucket(), "embedded");
    store.delete(&bucket(), &Key::new("a b.txt").unwrap(), &Default::default()).unwrap();
    wait_for(|| receiver.records().len() == 3);
    let record = receiver.records()[0].clone();
    assert_eq!(record["eventName"], "ObjectCreated:Put");
    assert_eq!(record["s3"]["bucket"]["name"], "bucket");
    assert_eq!(record["s3"]["configurationId"], "all");
    assert_eq!(record["s3"]["object"]["size"], 5);
    assert_eq!(record["s3"]["object"]["eTag"], "5d41402abc4b2a76b9719d911017c592");
    let user = fordway_sys::user_name(fordway_sys::user_id()).unwrap();
    assert_eq!(record["userIdentity"]["principalId"], user.as_str());
    let head = receiver.state.lock().unwrap().requests[0].0.clone();
    assert!(head.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Authorization: Bearer s3cret\r\n") && head.contains("application/json"), "{head}");
    wait_for(|| waiting(dir.path(), "bucket") == 0);
    wait_for(|| gateway.ask_metrics("/metrics").contains("fordway_events_delivered_total{webhook=\"ci\"} 3"));
    store.delete_document(&bucket(), &KIND).unwrap();
    assert_eq!(store.document(&bucket(), &KIND).unwrap(), None);
    put(&store, &bucket(), "unreported");
    assert_eq!(waiting(dir.path(), "bucket"), 0);
    assert_eq!(gateway.stop_well(), "");
}

#[test]
fn an_event_of_a_killed_gateway_is_delivered_by_the_next() {
    let (dir, receiver) = (place(), Receiver::new());
    let hook = receiver.option("ci");
    let options = ["--webhook", &hook, "--webhook-private", "ci", "--durability", "data"];
    receiver.change(|state| state.always = Some(500));
    let gateway = Process::start(dir.path(), &options);
    configure(&gateway.client(), &bucket(), "ci");
    put(&gateway.client(), &bucket(), "k");
    wait_for(|| receiver.count() > 0);
    gateway.kill();
    assert_eq!((waiting(dir.path(), "bucket"), receiver.records().len()), (1, 0));
    receiver.change(|state| state.always = None);
    let _next = Process::start(dir.path(), &options);
    wait_for(|| receiver.keys().contains("k"));
    wait_for(|| waiting(dir.path(), "bucket") == 0);
}

#[test]
fn a_refused_event_is_sent_again_after_a_pause() {
    let (dir, receiver) = (place(), Receiver::new());
    let hook = receiver.option("ci");
    receiver.change(|state| state.script = vec![500, 503]);
    let options = ["--webhook", &hook, "--webhook-private", "ci", "--metrics", "127.0.0.1:0"];
    let gateway = Process::start(dir.path(), &options);
    configure(&gateway.client(), &bucket(), "ci");
    put(&gateway.client(), &bucket(), "k");
    wait_for(|| receiver.records().len() == 1);
    let times: Vec<Instant> =
        receiver.state.lock().unwrap().requests.iter().map(|request| request.2).collect();
    assert_eq!(times.len(), 3);
    assert!(
        times[1] - times[0] >= Duration::from_millis(990)
            && times[2] - times[1] >= Duration::from_millis(1990)
    );
    wait_for(|| gateway.ask_metrics("/metrics").contains("fordway_events_failed_total{webhook=\"ci\"} 2"));
    wait_for(|| waiting(dir.path(), "bucket") == 0);
    assert!(gateway.stop_well().contains("the receiver answered with the status 503"));
}

/// Two gateways and an embedded program write objects, and both gateways deliver the events.
#[test]
fn two_gateways_deliver_each_event_at_least_once() {
    let (dir, receiver) = (place(), Receiver::new());
    let hook = receiver.option("ci");
    receiver.change(|state| state.delay = Duration::from_millis(10));
    let options = ["--webhook", &hook, "--webhook-private", "ci"];
    let gateways = [Process::start(dir.path(), &options), Process::start(dir.path(), &options)];
    configure(&gateways[0].client(), &bucket(), "ci");
    std::thread::scope(|scope| {
        for (writer, gateway) in gateways.iter().enumerate() {
            scope.spawn(move || {
                (0..40).for_each(|at| put(&gateway.client(), &bucket(), &format!("w{writer}-{at}")));
            });
        }
        let local = embedded(dir.path());
        scope.spawn(move || (0..40).for_each(|at| put(&local, &bucket(), &format!("w2-{at}"))));
    });
    wait_for(|| receiver.keys().len() == 120);
    wait_for(|| waiting(dir.path(), "bucket") == 0);
    // The lock of the bucket keeps the gateways from sending the same events, unless one of them dies.
    assert_eq!(receiver.records().len(), 120);
}

/// A bucket with many events and a receiver that refuses one of them do not stop the other bucket.
#[test]
fn buckets_take_turns() {
    let (dir, receiver) = (place(), Receiver::new());
    let hook = receiver.option("ci");
    let (local, other) = (embedded(dir.path()), Bucket::new("other").unwrap());
    local.create_bucket(&other).unwrap();
    configure(&local, &bucket(), "ci");
    configure(&local, &other, "ci");
    (0..1500).for_each(|at| put(&local, &bucket(), &format!("many/{at}")));
    put(&local, &other, "one");
    receiver.change(|state| state.delay = Duration::from_millis(100));
    let _gateway = Process::start(dir.path(), &["--webhook", &hook, "--webhook-private", "ci"]);
    wait_for(|| receiver.keys().contains("one"));
    assert!(receiver.count() <= 3, "{} requests came first", receiver.count() - 1);
    wait_for(|| receiver.keys().len() == 1501);
    assert!(receiver.count() <= 25, "up to 100 events share a request");
}

/// An event that the receiver refuses is tried again, but stops no other event of its bucket.
#[test]
fn a_refused_event_does_not_stop_the_others() {
    let (dir, receiver) = (place(), Receiver::new());
    let (hook, local) = (receiver.option("ci"), embedded(dir.path()));
    configure(&local, &bucket(), "ci");
    put(&local, &bucket(), "poison");
    (0..7).for_each(|at| put(&local, &bucket(), &format!("k{at}")));
    receiver.change(|state| state.poison = Some("poison"));
    let gateway = Process::start(dir.path(), &["--webhook", &hook, "--webhook-private", "ci"]);
    wait_for(|| receiver.keys().len() == 7);
    put(&gateway.client(), &bucket(), "later");
    wait_for(|| receiver.keys().contains("later"));
    assert_eq!(receiver.keys().len(), 8);
    // The gateway removes the record of an event after the response.
    wait_for(|| waiting(dir.path(), "bucket") == 1);
    receiver.change(|state| state.poison = None);
    wait_for(|| receiver.keys().contains("poison"));
}

/// The pauses before further attempts at refused events do not apply to other events.
#[test]
fn some_refused_events_delay_the_others_only_a_little() {
    let (dir, receiver) = (place(), Receiver::new());
    let (hook, local) = (receiver.option("ci"), embedded(dir.path()));
    configure(&local, &bucket(), "ci");
    (0..6).for_each(|at| put(&local, &bucket(), &format!("poison{at}")));
    put(&local, &bucket(), "good");
    receiver.change(|state| state.poison = Some("poison"));
    let gateway = Process::start(dir.path(), &["--webhook", &hook, "--webhook-private", "ci"]);
    wait_for(|| receiver.keys().contains("good"));
    // The pauses of refused events together are longer than this time.
    std::thread::sleep(Duration::from_secs(4));
    let start = Instant::now();
    put(&gateway.client(), &bucket(), "later");
    wait_for(|| receiver.keys().contains("later"));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    // The gateway removes the record of an event after the response.
    wait_for(|| waiting(dir.path(), "bucket") == 6);
}

/// A user who may write to a bucket can fill its journal with entries that are not records. The events must still be
/// delivered.
#[test]
fn entries_that_are_not_records_hide_no_events() {
    let (dir, receiver) = (place(), Receiver::new());
    let (hook, local) = (receiver.option("ci"), embedded(dir.path()));
    let other = Bucket::new("other").unwrap();
    local.create_bucket(&other).unwrap();
    configure(&local, &bucket(), "ci");
    configure(&local, &other, "ci");
    let (file, spool) = (dir.path().join("file"), dir.path().join("root/bucket/.fordway/events"));
    std::fs::write(&file, "").unwrap();
    for number in 0..16_400 {
        std::fs::hard_link(&file, spool.join(format!("{:016x}-{number:016x}-ci", 1))).unwrap();
    }
    put(&local, &bucket(), "hidden");
    put(&local, &other, "one");
    let _gateway = Process::start(dir.path(), &["--webhook", &hook, "--webhook-private", "ci"]);
    wait_for(|| receiver.keys().contains("one"));
    // Reading an entry takes time, and the bucket may use a twentieth of the thread's time.
    let start = Instant::now();
    while !receiver.keys().contains("hidden") {
        assert!(start.elapsed() < Duration::from_secs(120), "the event is hidden");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Without a receiver, the whole webhook pauses, but the number of its waiting events must still grow.
#[test]
fn waiting_events_are_counted_while_there_is_no_receiver() {
    let (dir, free) = (place(), TcpListener::bind("127.0.0.1:0").unwrap());
    let hook = format!("ci=http://{}/", free.local_addr().unwrap());
    drop(free);
    let options = ["--webhook", &hook, "--webhook-private", "ci", "--metrics", "127.0.0.1:0"];
    let gateway = Process::start(dir.path(), &options);
    let (store, other) = (gateway.client(), Bucket::new("other").unwrap());
    store.create_bucket(&other).unwrap();
    configure(&store, &bucket(), "ci");
    configure(&store, &other, "ci");
    let is = |count: usize| {
        wait_for(|| {
            let line = format!("fordway_events_waiting{{webhook=\"ci\"}} {count}\n");
            gateway.ask_metrics("/metrics").contains(&line)
        });
    };
    put(&store, &bucket(), "first");
    is(1);
    (0..5).for_each(|at| put(&store, &bucket(), &format!("k{at}")));
    put(&store, &other, "k");
    is(7);
}

#[test]
fn events_that_are_too_old_are_dropped() {
    let (dir, receiver) = (place(), Receiver::new());
    let hook = receiver.option("ci");
    receiver.change(|state| state.always = Some(500));
    let options =
        ["--webhook", &hook, "--webhook-private", "ci", "--event-age", "2s", "--metrics", "127.0.0.1:0"];
    let gateway = Process::start(dir.path(), &options);
    configure(&gateway.client(), &bucket(), "ci");
    put(&gateway.client(), &bucket(), "k");
    wait_for(|| waiting(dir.path(), "bucket") == 0);
    let count = "fordway_events_dropped_total{webhook=\"ci\",reason=\"age\"} 1";
    wait_for(|| gateway.ask_metrics("/metrics").contains(count));
    assert!(gateway.stop_well().contains("dropped events"));
    assert!(receiver.count() >= 1 && receiver.records().is_empty());
}

#[test]
fn a_dead_receiver_delays_neither_requests_nor_other_webhooks() {
    let (dir, dead, live) = (place(), Receiver::new(), Receiver::new());
    dead.change(|state| state.always = Some(0));
    let hooks = [dead.option("dead"), live.option("live")];
    let mut options = vec!["--webhook", &hooks[0], "--webhook", &hooks[1]];
    options.extend(["--webhook-private", "dead", "--webhook-private", "live"]);
    let gateway = Process::start(dir.path(), &options);
    let (store, other) = (gateway.client(), Bucket::new("other").unwrap());
    store.create_bucket(&other).unwrap();
    configure(&store, &bucket(), "dead");
    configure(&store, &other, "live");
    put(&store, &bucket(), "first");
    wait_for(|| dead.count() == 1);
    let start = Instant::now();
    (0..20).for_each(|at| put(&store, &bucket(), &format!("k{at}")));
    put(&store, &other, "k");
    wait_for(|| live.keys().contains("k"));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!((dead.count(), waiting(dir.path(), "bucket")), (1, 21));
}

/// One bucket has an event that makes the receiver close the connection. The events of the other bucket must still be
/// delivered.
#[test]
fn an_event_that_breaks_the_receiver_stops_no_other_bucket() {
    let (dir, receiver) = (place(), Receiver::new());
    let (hook, local) = (receiver.option("ci"), embedded(dir.path()));
    let (first, last) = (Bucket::new("aaa").unwrap(), Bucket::new("zzz").unwrap());
    for bucket in [&first, &last] {
        local.create_bucket(bucket).unwrap();
        configure(&local, bucket, "ci");
    }
    put(&local, &first, "breaker");
    put(&local, &last, "k");
    receiver.change(|state| state.breaker = Some("breaker"));
    let _gateway = Process::start(dir.path(), &["--webhook", &hook, "--webhook-private", "ci"]);
    wait_for(|| receiver.keys().contains("k"));
    receiver.change(|state| state.breaker = None);
    wait_for(|| receiver.keys().contains("breaker"));
}

#[test]
fn an_event_whose_record_would_stay_is_not_sent_and_logged_once() {
    if !fordway_needs::root("to own files as other users") {
        return;
    }
    let (dir, receiver) = (place(), Receiver::new());
    let (hook, local) = (receiver.option("ci"), embedded(dir.path()));
    configure(&local, &bucket(), "ci");
    put(&local, &bucket(), "k");
    let own = |path: &Path, user: u32| std::os::unix::fs::chown(path, Some(user), None).unwrap();
    let of = dir.path().join("root/bucket");
    let spool = of.join(".fordway/events");
    own(&of, 1000);
    own(&of.join(".fordway"), 1000);
    std::fs::read_dir(of.join(".fordway")).unwrap().for_each(|entry| own(&entry.unwrap().path(), 1000));
    std::fs::read_dir(&spool).unwrap().for_each(|entry| own(&entry.unwrap().path(), 4242));
    own(&spool, 2000);
    std::fs::set_permissions(&spool, PermissionsExt::from_mode(0o755)).unwrap();
    let gateway = Process::start(dir.path(), &["--webhook", &hook, "--webhook-private", "ci"]);
    // Wait for at least two searches.
    std::thread::sleep(Duration::from_millis(4500));
    assert_eq!((receiver.count(), waiting(dir.path(), "bucket")), (0, 1));
    let log = gateway.stop_well();
    assert_eq!(log.matches("not permitted to remove their records").count(), 1, "{log}");
}

#[test]
fn a_private_address_needs_permission() {
    let (dir, receiver) = (place(), Receiver::new());
    let hook = receiver.option("ci");
    let said = Process::refusal(dir.path(), &["--webhook", &hook]);
    assert!(said.contains("must be https") && said.contains("--webhook-private"), "{said}");
    let hook = hook.replace("http:", "https:");
    let gateway = Process::start(dir.path(), &["--webhook", &hook]);
    configure(&gateway.client(), &bucket(), "ci");
    put(&gateway.client(), &bucket(), "k");
    std::thread::sleep(Duration::from_millis(500));
    let log = gateway.stop_well();
    assert!(log.contains("the address is private, or of this machine"), "{log}");
    assert_eq!((receiver.count(), waiting(dir.path(), "bucket")), (0, 1));
}

#[test]
fn wrong_options_are_refused_at_the_start() {
    let dir = place();
    let token = dir.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let token = format!("ci={}", token.display());
    let hook = "ci=https://hooks.example.org/";
    for (options, word) in [
        (vec!["--webhook", "ci"], "write a name and a value"),
        (vec!["--webhook", "ci=http://hooks.example.org/"], "must be https"),
        (vec!["--webhook", "CI=https://hooks.example.org/"], "lower-case"),
        (vec!["--webhook", hook, "--webhook", hook], "two webhooks"),
        (vec!["--webhook", hook, "--webhook-private", "other"], "there is no --webhook other=URL"),
        (vec!["--webhook", hook, "--webhook-token", &token], "chmod 600"),
        (vec!["--webhook-private", "ci"], "--webhook"),
    ] {
        let said = Process::refusal(dir.path(), &options);
        assert!(said.contains(word), "{options:?}: {said}");
    }
}
