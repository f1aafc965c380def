//! Tests linearizability. Processes on both nodes read and write the same keys. There must be one order of all calls
//! that explains the results.

use fordway_testkit::history::{HistoryOperation, TimedHistoryOperation, is_linearizable};

use super::*;

/// The number of operations of each process: in a soak test, and in a normal run.
const USES: [usize; 2] = [5_000, 400];
/// The keys that all processes read and write.
const REGISTERS: [&str; 3] = ["register", "deep/er/register", "odd//register"];

/// Puts, creates, reads and deletes keys that processes on the other mount also use. Reports each operation with its
/// times.
pub(super) fn use_registers(member: &Member) {
    let store = strong(member.number);
    let mut random = 0x9e37_79b9_u64 + member.number as u64;
    for step in 0..at_length(USES) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let name = REGISTERS[(random >> 33) as usize % REGISTERS.len()];
        let value = (member.number * at_length(USES) + step) as u64;
        let began = now_ns();
        let event = use_register(&store, name, value, (random >> 50) % 10);
        report(format!("{name} {event} {began} {}", now_ns()));
    }
}

/// Like [`visibility::find_what_was_opened_too_early`], but the name that this node has cached as missing is then
/// replaced with `If-Match`.
pub(super) fn replace_what_was_opened_too_early(_: &Member) {
    let (one, other) = (store(0), store(1));
    visibility::open_names_too_early("matched", |name| {
        let etag = one.head(&bucket(), &key(name), &GetOptions::default()).unwrap().etag;
        let replaced = other.put(&bucket(), &key(name), b"new", &put_if(Conditions::only_if(etag)));
        assert!(replaced.is_ok(), "{name}: {replaced:?}");
    });
}

fn use_register(store: &PosixStore, name: &str, value: u64, choice: u64) -> String {
    let body = value.to_string();
    match choice {
        0..3 => {
            put(store, name, body.as_bytes());
            format!("put {value}")
        }
        3..4 => match store.put(&bucket(), &key(name), body.as_bytes(), &put_if(Conditions::create_only())) {
            Ok(_) => format!("created {value}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
                "refused 0".to_owned()
            }
        },
        4..9 => match read(store, name) {
            Ok(body) => format!("read {}", String::from_utf8(body).unwrap()),
            Err(kind) => {
                assert_eq!(kind, ErrorKind::NoSuchKey);
                "missed 0".to_owned()
            }
        },
        _ => {
            store.delete(&bucket(), &key(name), &DeleteOptions::default()).unwrap();
            "deleted 0".to_owned()
        }
    }
}

/// Returns the time of a clock that all processes of a cluster share, because they run on one kernel.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[allow(clippy::print_stderr, reason = "how often it held")]
pub(super) fn one_order(cluster: &SharedFileSystemFixture) {
    let rounds = std::env::var("FORDWAY_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        run(cluster, &["no-registers"]);
        have_one_order(&run(cluster, &["register"; 4]));
        eprintln!("{}: round {round} has one order", cluster.name);
    }
}

/// Removes the keys, because every history must start without an object.
pub(super) fn remove_registers(_: &Member) {
    let store = strong(0);
    for name in REGISTERS {
        store.delete(&bucket(), &key(name), &DeleteOptions::default()).unwrap();
    }
}

pub(super) fn have_one_order(reports: &[Vec<String>]) {
    let mut histories: BTreeMap<&str, Vec<Vec<TimedHistoryOperation>>> = BTreeMap::new();
    for (client, line) in
        reports.iter().enumerate().flat_map(|(client, lines)| lines.iter().map(move |line| (client, line)))
    {
        let [name, what, value, began, ended] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let value = value.parse().unwrap();
        let event = match what {
            "put" => HistoryOperation::Put(value),
            "created" => HistoryOperation::Created(value),
            "refused" => HistoryOperation::NotCreated,
            "read" => HistoryOperation::Read(Some(value)),
            "missed" => HistoryOperation::Read(None),
            _ => HistoryOperation::Deleted,
        };
        let timed = TimedHistoryOperation {
            event,
            began_ns: began.parse().unwrap(),
            ended_ns: ended.parse().unwrap(),
        };
        histories.entry(name).or_insert_with(|| vec![Vec::new(); reports.len()])[client].push(timed);
    }
    assert_eq!(histories.len(), REGISTERS.len());
    for (name, clients) in histories {
        let order = is_linearizable(&clients);
        if let Err(fitting) = order {
            // For each client, show the last event that fits, and the next three events.
            let around = clients.iter().zip(&fitting).map(|(events, fit)| &events[fit.saturating_sub(1)..]);
            let around: Vec<_> = around.map(|events| &events[..events.len().min(4)]).collect();
            panic!("{name}: after {fitting:?} events nothing fits:\n{around:#?}");
        }
    }
}
