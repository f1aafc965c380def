//! Tests several processes on one directory. The guarantees within one process must also hold between processes.

use std::collections::{BTreeMap, HashMap};

use fordway_store::{
    Conditions, DeleteOptions, ErrorKind, GetOptions, Key, ListQuery, Objects, PutOptions, Store,
};
use fordway_testkit::history::{HistoryOperation, TimedHistoryOperation, is_linearizable};
use fordway_testkit::model::{self, BucketReferenceModel};
use rustix::time::{ClockId, clock_gettime};

use crate::team::{Ground, Member, Random, Role, at_length, bucket};

mod team;

const ROLES: &[Role] = &[
    ("creator", create_all),
    ("counter", count_up),
    ("mixer", mix),
    ("tidier", put_and_prune),
    ("writer", overwrite),
    ("reader", read_whole),
];

#[test]
#[ignore = "run by the other tests, as processes of their own"]
fn a_member_of_a_team() {
    team::serve(ROLES);
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn put_if(conditions: Conditions) -> PutOptions {
    PutOptions { conditions, ..Default::default() }
}

const CREATED_KEYS: usize = 1000;

fn created_key(number: usize) -> Key {
    key(&format!("dir{}/key{number}", number / 50))
}

#[test]
fn of_racing_creators_one_wins_each_key() {
    let ground = Ground::new();
    let won = ground.run(&["creator"; 8]);
    let mut winner = HashMap::new();
    for (creator, keys) in won.iter().enumerate() {
        for number in keys {
            let other = winner.insert(number.clone(), creator);
            assert_eq!(other, None, "key {number} was created twice");
        }
    }
    assert_eq!(winner.len(), CREATED_KEYS);
    let mut body = Vec::new();
    for (number, creator) in winner {
        let key = created_key(number.parse().unwrap());
        ground.store().read(&bucket(), &key, &GetOptions::default(), &mut body).unwrap();
        assert_eq!(body, creator.to_string().as_bytes());
    }
}

fn create_all(member: &mut Member) {
    for number in 0..CREATED_KEYS {
        let body = member.number.to_string();
        let options = put_if(Conditions::create_only());
        match member.store.put(&bucket(), &created_key(number), body.as_bytes(), &options) {
            Ok(_) => member.report(number.to_string()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}"),
        }
    }
}

const INCREMENTS: usize = 200;

#[test]
fn no_conditional_increment_is_lost() {
    let ground = Ground::new();
    ground.store().put(&bucket(), &key("dir/count"), b"0", &PutOptions::default()).unwrap();
    ground.run(&["counter"; 8]);
    let count = ground.store().get(&bucket(), &key("dir/count"), &GetOptions::default()).unwrap();
    assert_eq!(count.content.into_vec().unwrap(), (8 * INCREMENTS).to_string().as_bytes());
}

fn count_up(member: &mut Member) {
    let mut left = INCREMENTS;
    while left > 0 {
        let object = member.store.get(&bucket(), &key("dir/count"), &GetOptions::default()).unwrap();
        let only_if = put_if(Conditions::only_if(object.info.etag));
        let count: u64 = String::from_utf8(object.content.into_vec().unwrap()).unwrap().parse().unwrap();
        let next = (count + 1).to_string();
        match member.store.put(&bucket(), &key("dir/count"), next.as_bytes(), &only_if).map_err(|e| e.kind())
        {
            Ok(_) => left -= 1,
            Err(ErrorKind::PreconditionFailed | ErrorKind::ConditionalConflict) => {}
            Err(kind) => panic!("{kind:?}"),
        }
    }
}

/// The keys that all processes share. Two keys are in one directory, and one key cannot be a path. The other keys
/// conflict as paths, so the location of one object depends on operations on other objects.
const SHARED: &[&str] = &["v", "w/x", "w/y", "t//u", "s", "s/x", "s/x/y", "w/", "s/"];
/// The number of operations before a process switches between private keys and shared keys.
const TURN: usize = 50;

#[test]
#[allow(clippy::print_stdout)]
fn four_processes_see_one_order_of_things() {
    let ground = Ground::new();
    let reports = ground.run(&["mixer"; 4]);
    let mut tags = HashMap::new();
    let mut histories: BTreeMap<&str, Vec<Vec<TimedHistoryOperation>>> = BTreeMap::new();
    for (number, report) in reports.iter().enumerate() {
        for line in report {
            let (key, timed, version) = parse(line);
            histories.entry(key).or_insert_with(|| vec![Vec::new(); reports.len()])[number].push(timed);
            if let Some((value, etag)) = version {
                let first = tags.entry(value).or_insert(etag);
                assert_eq!(*first, etag, "value {value} has two tags");
            }
        }
    }
    for key in SHARED {
        let clients = &histories[key];
        if let Err(fit) = is_linearizable(clients) {
            panic!("{key}: after {fit:?} events nothing fits:\n{}", around(clients, &fit));
        }
        println!("{key}: {} events have an order", clients.iter().flatten().count());
    }
}

/// Returns the events of all clients around the end of the longest valid order, sorted by their start times.
fn around(clients: &[Vec<TimedHistoryOperation>], fit: &[usize]) -> String {
    let mut near = Vec::new();
    for (client, (events, fit)) in clients.iter().zip(fit).enumerate() {
        let window = fit.saturating_sub(3)..(fit + 3).min(events.len());
        near.extend(events[window].iter().map(|timed| (timed.began_ns, timed.ended_ns, client, timed.event)));
    }
    near.sort_unstable_by_key(|each| each.0);
    let line = |(began, ended, client, event)| format!("{began} to {ended}: client {client}, {event:?}\n");
    near.into_iter().map(line).collect()
}

/// Runs operations on private and shared keys. Private keys must behave as if no other process were running. Operations
/// on shared keys are recorded.
fn mix(member: &mut Member) {
    let count = at_length(25_000, 5_000) / 2;
    let prefix = format!("p{}/", member.number);
    let private: Vec<_> =
        model::sequence(member.number as u64, count).into_iter().map(|each| each.below(&prefix)).collect();
    let mut follower = BucketReferenceModel::new(bucket());
    let mut random = Random(0x9e37_79b9 + member.number as u64);
    for (turn, operations) in private.chunks(TURN).enumerate() {
        follower.follow(&member.store, operations);
        for step in 0..operations.len() {
            let value = (member.number as u64) << 32 | (turn * TURN + step) as u64;
            let name = SHARED[random.below(SHARED.len())];
            let line = shared_step(&member.store, name, value, random.below(10));
            member.report(line);
        }
    }
}

/// Performs one operation on a shared key. Returns a line that contains the key, the operation, its result, the ETag,
/// and the times.
fn shared_step(store: &dyn Store, name: &str, value: u64, choice: usize) -> String {
    let (bucket, key) = (bucket(), key(name));
    let began_ns = now_ns();
    let (event, etag) = match choice {
        0..3 => {
            let made = store.put(&bucket, &key, &body(value, 300), &PutOptions::default()).unwrap();
            (format!("put {value}"), made.etag.to_string())
        }
        3..5 => match store.put(&bucket, &key, &body(value, 300), &put_if(Conditions::create_only())) {
            Ok(made) => (format!("created {value}"), made.etag.to_string()),
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => {
                ("refused -".to_owned(), "-".to_owned())
            }
            Err(error) => panic!("{error}"),
        },
        5..8 => match store.get(&bucket, &key, &GetOptions::default()) {
            Ok(object) => {
                let etag = object.info.etag.to_string();
                let body = object.content.into_vec().unwrap();
                (format!("read {}", value_of(&body).expect("it is torn")), etag)
            }
            Err(error) if error.kind() == ErrorKind::NoSuchKey => ("read -".to_owned(), "-".to_owned()),
            Err(error) => panic!("{error}"),
        },
        _ => {
            store.delete(&bucket, &key, &DeleteOptions::default()).unwrap();
            ("deleted -".to_owned(), "-".to_owned())
        }
    };
    format!("{name} {event} {etag} {began_ns} {}", now_ns())
}

/// Parses a line of [`shared_step`]. Returns its key, its event, and the value and ETag of the version that it names.
fn parse(line: &str) -> (&str, TimedHistoryOperation, Option<(u64, &str)>) {
    let [key, what, value, etag, began, ended] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{line}")
    };
    let value: Option<u64> = value.parse().ok();
    let event = match (what, value) {
        ("put", Some(value)) => HistoryOperation::Put(value),
        ("created", Some(value)) => HistoryOperation::Created(value),
        ("refused", None) => HistoryOperation::NotCreated,
        ("read", value) => HistoryOperation::Read(value),
        ("deleted", None) => HistoryOperation::Deleted,
        _ => panic!("{line}"),
    };
    let timed =
        TimedHistoryOperation { event, began_ns: began.parse().unwrap(), ended_ns: ended.parse().unwrap() };
    (key, timed, value.map(|value| (value, etag)))
}

/// All processes create and prune the same directories. Pruning a directory must not remove an object of another
/// process.
#[test]
fn pruning_takes_nobodys_object() {
    let ground = Ground::new();
    ground.run(&["tidier"; 6]);
    let left = ground.store().list(&bucket(), &ListQuery::default()).unwrap();
    assert_eq!(left.entries.len(), 0);
    let root = ground.store().path().join(bucket().as_str());
    let dirs: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(dirs, [fordway_posix::PRIVATE_DIR], "all other directories were pruned");
}

fn put_and_prune(member: &mut Member) {
    let (store, none) = (&member.store, DeleteOptions::default());
    for round in 0..at_length(20_000, 1_000) {
        let key = key(&format!("d/e{}/x{}", round % 2, member.number));
        let value = round as u64;
        store.put(&bucket(), &key, &body(value, 10), &PutOptions::default()).unwrap();
        let found = store.get(&bucket(), &key, &GetOptions::default());
        let found = found.unwrap_or_else(|error| panic!("round {round}: it was put, but: {error}"));
        assert_eq!(value_of(&found.content.into_vec().unwrap()), Some(value));
        store.delete(&bucket(), &key, &none).unwrap();
        let gone = store.head(&bucket(), &key, &GetOptions::default()).map_err(|error| error.kind());
        assert_eq!(gone, Err(ErrorKind::NoSuchKey), "round {round}");
    }
}

/// The maximum number of 16-byte pieces in an object that is overwritten. The maximum size is therefore 256 KiB.
const MOST_PIECES: usize = 16 * 1024;

#[test]
fn no_reader_sees_a_torn_object() {
    let ground = Ground::new();
    ground.store().put(&bucket(), &key("dir/k"), &body(0, MOST_PIECES), &PutOptions::default()).unwrap();
    let reports = ground.run(&["writer", "writer", "writer", "writer", "reader", "reader"]);
    let mut tags: HashMap<&str, &str> = HashMap::new();
    for line in reports.iter().flatten() {
        let (value, etag) = line.split_once(' ').unwrap();
        assert_eq!(*tags.entry(value).or_insert(etag), etag, "value {value} has two tags");
    }
    assert!(tags.len() > 100, "{} versions were seen", tags.len());
}

fn overwrite(member: &mut Member) {
    for round in 1..=at_length(10_000, 1_000) {
        let value = (member.number as u64) << 32 | round as u64;
        let body = body(value, MOST_PIECES);
        let made = member.store.put(&bucket(), &key("dir/k"), &body, &PutOptions::default()).unwrap();
        member.report(format!("{value} {}", made.etag));
    }
}

fn read_whole(member: &mut Member) {
    for _ in 0..at_length(20_000, 2_000) {
        let object = member.store.get(&bucket(), &key("dir/k"), &GetOptions::default()).unwrap();
        let etag = object.info.etag.clone();
        let value = value_of(&object.content.into_vec().unwrap()).expect("it is torn");
        if value != 0 {
            member.report(format!("{value} {etag}"));
        }
        let mut buffer = Vec::new();
        member.store.read(&bucket(), &key("dir/k"), &GetOptions::default(), &mut buffer).unwrap();
        assert!(value_of(&buffer).is_some(), "it is torn");
    }
}

/// Returns a body in which every piece contains the number of pieces and `value`. The number of pieces, at most
/// `most_pieces`, is derived from the value.
fn body(value: u64, most_pieces: usize) -> Vec<u8> {
    let pieces = 1 + Random(value + 1).below(most_pieces);
    [pieces as u64, value].map(u64::to_le_bytes).concat().repeat(pieces)
}

/// Returns the value from which [`body`] created these bytes, or `None` if there is no such value.
fn value_of(body: &[u8]) -> Option<u64> {
    let (first, _) = body.split_first_chunk::<16>()?;
    let (pieces, value) = first.split_at(8);
    let pieces = u64::from_le_bytes(pieces.try_into().ok()?);
    let is_whole = body.len() as u64 == pieces * 16 && body.chunks(16).all(|chunk| chunk == first);
    is_whole.then(|| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Returns the time in nanoseconds on a clock that all processes share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
