//! Tests with many concurrent random faults. The faults are derived from a seed, so that a failure can be reproduced.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_http::replicas::ReplicatedFile;
use fordway_testkit::hostile::{ResponseFault, ResponseFaultScript};

use crate::{SIZE, content, described, expected, options, read, server};

/// Returns the number of rounds: 24, or 1,000 in a soak test.
fn rounds() -> u64 {
    if std::env::var_os("FORDWAY_SOAK").is_some() { 1_000 } else { 24 }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn lie(random: &mut Random) -> ResponseFault {
    let at = random.below(700_000);
    match random.below(11) {
        0 => ResponseFault::Status([404, 403, 500, 503][random.below(4) as usize], None),
        1 => ResponseFault::ResetAt(at as usize),
        2 => ResponseFault::CloseAt(at as usize),
        3 => ResponseFault::FlippedAt(random.below(SIZE as u64)),
        4 => ResponseFault::StallAt(at as usize),
        5 => ResponseFault::Mute,
        6 => ResponseFault::Slow(100_000 + at),
        7 => ResponseFault::WholeForRange,
        8 => ResponseFault::NoContentRange,
        9 => ResponseFault::ClosesAfter,
        _ => ResponseFault::Version(1 + at as u8 % 9),
    }
}

fn script(random: &mut Random) -> ResponseFaultScript {
    let mut script = ResponseFaultScript::honest();
    for _ in 0..random.below(3) {
        let first = random.below(6) as usize;
        let count = 1 + random.below(8) as usize;
        script = match random.below(3) {
            0 => script.always(lie(random)),
            1 => script.on_requests(first..first + count, lie(random)),
            _ => script.on_connections(first..first + count, lie(random)),
        };
    }
    script
}

/// The number of rounds that run concurrently. Rounds spend most of their time waiting for timeouts.
const AT_ONCE: usize = 6;

#[test]
fn all_end_with_the_right_bytes_or_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let (next, right) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                for seed in seeds.take_while(|seed| *seed < rounds()) {
                    right.fetch_add(round(seed, directory.path()).into(), Ordering::Relaxed);
                }
            });
        }
    });
    let right = right.into_inner();
    assert!(right * 2 > rounds(), "only {right} of {} had a good replica", rounds());
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

/// Copies the whole file and reads ranges of it from servers with random faults. Returns whether the copy succeeded.
fn round(seed: u64, directory: &Path) -> bool {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let servers: Vec<_> = (0..1 + random.below(3)).map(|_| server(script(&mut random))).collect();
    let mut described = described(&servers.iter().collect::<Vec<_>>());
    if random.below(4) == 0 {
        described.pieces = None;
    }
    let mut options = options();
    options.streams = (random.below(2) == 0).then_some(1 + random.below(4) as usize);
    let file = ReplicatedFile::open(&described, options).unwrap();
    let part = tempfile::tempfile_in(directory).unwrap();
    let completed = file.complete(&part, &mut |_| Ok(()));
    match &completed {
        Ok(_) => {
            let mut bytes = vec![0; SIZE];
            part.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == content(), "seed {seed}");
        }
        Err(error) => assert!(error.to_string().contains("http://"), "seed {seed}: {error}"),
    }
    if described.pieces.is_some() {
        let ranges: Vec<_> =
            (0..20).map(|_| (random.below(SIZE as u64 - 9_000), random.below(9_000) as usize)).collect();
        match read(&file, &ranges) {
            Ok(found) => assert!(found == expected(&ranges), "seed {seed}"),
            Err(error) => assert!(error.to_string().contains("http://"), "seed {seed}: {error}"),
        }
    }
    completed.is_ok()
}

/// Returns the number of sockets that this process has open.
fn sockets() -> usize {
    let is_socket = |entry: std::io::Result<std::fs::DirEntry>| {
        let link = std::fs::read_link(entry.ok()?.path()).ok()?;
        link.to_string_lossy().starts_with("socket:").then_some(())
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(is_socket).count()
}

/// Runs in a separate process, because other tests in this process also open sockets.
#[test]
fn nothing_is_left_open() {
    if std::env::var_os("FORDWAY_TEST_ALONE").is_none() {
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["schedules::nothing_is_left_open", "--exact", "--test-threads=1"])
            .env("FORDWAY_TEST_ALONE", "1")
            .output()
            .unwrap();
        assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stdout));
        return;
    }
    let before = sockets();
    for seed in 0..10 {
        let mut random = Random(seed * 7_919 + 1);
        let servers: Vec<_> = (0..2).map(|_| server(script(&mut random))).collect();
        let file = ReplicatedFile::open(&described(&servers.iter().collect::<Vec<_>>()), options()).unwrap();
        let _ended = file.complete(&tempfile::tempfile().unwrap(), &mut |_| Ok(()));
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while sockets() > before {
        assert!(Instant::now() < deadline, "{} sockets, {before} before", sockets());
        std::thread::sleep(Duration::from_millis(20));
    }
}
