//! Tests listings of a constantly changing directory in several processes. A listing must contain every existing name,
//! and no other names.
//!
//! Each process knows the state of its own keys exactly. Each process logs every change of a key before and after the
//! change. The other processes read this log, so they know the state of each key: it is the last logged state, unless
//! the key changed during their listing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;

use fordway_store::{DeleteOptions, Key, ListQuery, Objects, PutOptions};
use fordway_sys::Errno;
use fordway_sys::fault::{FaultInjectionPlan, run};

use crate::team::{Ground, Member, Random, Role, at_length, bucket};

mod team;

const ROLES: &[Role] = &[("lister", change_and_list)];
/// The number of processes.
const MEMBERS: usize = 2;
/// The number of keys of each process.
const KEYS: usize = 400;

#[test]
#[ignore = "run by the other tests, as processes of their own"]
fn a_member_of_a_team() {
    team::serve(ROLES);
}

#[test]
#[allow(clippy::print_stderr, reason = "counts for those who run it with --nocapture")]
fn no_name_is_missed_and_none_made_up() {
    let ground = Ground::new();
    (0..MEMBERS).for_each(|number| drop(File::create(log_path(&ground.store(), number)).unwrap()));
    for report in ground.run(&["lister"; MEMBERS]) {
        eprintln!("{}", report.join("; "));
        let [lists, watched] = &report[..] else { panic!("{report:?}") };
        assert!(lists.ends_with("lists"));
        assert_eq!(watched, "watched", "the directory was read each time");
    }
}

fn log_path(store: &fordway_posix::PosixStore, number: usize) -> PathBuf {
    store.path().parent().unwrap().join(format!("log-{number}"))
}

fn key_of(member: usize, number: usize) -> String {
    format!("m{member}-{number:03}")
}

/// The log of another process. Each record contains the number of a key, its state, and whether the change has been
/// made or is about to be made.
struct ForeignLog {
    file: File,
    offset: u64,
    keys: BTreeMap<usize, bool>,
    /// The key whose change has started but is not finished.
    begun: Option<usize>,
}

impl ForeignLog {
    fn open(path: PathBuf) -> Self {
        ForeignLog { file: File::open(path).unwrap(), offset: 0, keys: BTreeMap::new(), begun: None }
    }

    /// Reads the records that were added since the last call. Returns the keys in these records.
    fn read(&mut self) -> BTreeSet<usize> {
        let (mut changed, mut bytes) = (BTreeSet::new(), [0; 4096]);
        loop {
            let got = self.file.read_at(&mut bytes, self.offset).unwrap() / 4 * 4;
            for record in bytes[..got].chunks_exact(4) {
                let number = usize::from(u16::from_le_bytes([record[0], record[1]]));
                let (is_there, is_done) = (record[2] == 1, record[3] == 1);
                changed.insert(number);
                self.begun = (!is_done).then_some(number);
                if is_done {
                    self.keys.insert(number, is_there);
                }
            }
            self.offset += got as u64;
            if got == 0 {
                return changed;
            }
        }
    }
}

/// Changes this process's keys at random, through S3 and through POSIX, and checks listings after the changes.
fn change_and_list(member: &mut Member) {
    let mut log = File::options().append(true).open(log_path(&member.store, member.number)).unwrap();
    let mut others: BTreeMap<usize, ForeignLog> = (0..MEMBERS)
        .filter(|number| *number != member.number)
        .map(|number| (number, ForeignLog::open(log_path(&member.store, number))))
        .collect();
    let (mut own, mut random) = (BTreeSet::new(), Random(77 + member.number as u64));
    let (steps, mut was_watched) = (at_length(500_000, 1_500), false);
    for step in 0..steps {
        let number = random.below(KEYS);
        let is_put = random.below(20) < if step < KEYS { 18 } else { 10 };
        let record = |is_done| [number as u8, (number >> 8) as u8, u8::from(is_put), u8::from(is_done)];
        log.write_all(&record(false)).unwrap();
        change(member, &key_of(member.number, number), is_put, own.contains(&number), random.below(100));
        log.write_all(&record(true)).unwrap();
        if is_put {
            own.insert(number)
        } else {
            own.remove(&number)
        };
        // The first 100 of every 1,000 changes are made without listings in between, so that the next listing finds
        // many changes at once.
        if step % 1000 > 100 {
            check(member, &own, &mut others, &mut random);
        }
        was_watched |= step % 100 == 0 && is_watching();
    }
    member.report(format!("{steps} changes and lists"));
    member.report(if was_watched { "watched" } else { "not watched" });
}

/// Returns whether this process has an inotify instance with a watch.
fn is_watching() -> bool {
    let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap();
    descriptors
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .any(|info| info.contains("inotify wd"))
}

fn change(member: &Member, name: &str, is_put: bool, is_there: bool, way: usize) {
    let path = member.store.path().join(bucket().as_str()).join(name);
    let key = Key::new(name).unwrap();
    match (is_put, way) {
        (true, 0..3) if !is_there => symlink("m0-000", &path).and_then(|()| fs::remove_file(&path)).unwrap(),
        (true, 3..6) if !is_there => fs::create_dir(&path).and_then(|()| fs::remove_dir(&path)).unwrap(),
        (false, 6..20) if is_there => return fs::remove_file(&path).unwrap(),
        (false, 20..30) if is_there => {
            let other = path.with_extension("moved");
            return fs::rename(&path, &other).and_then(|()| fs::remove_file(&other)).unwrap();
        }
        _ => {}
    }
    match is_put {
        true if way < 15 => fs::write(&path, "by POSIX").unwrap(),
        true => drop(member.store.put(&bucket(), &key, b"content", &PutOptions::default()).unwrap()),
        false => drop(member.store.delete(&bucket(), &key, &DeleteOptions::default()).unwrap()),
    }
}

/// Lists a random prefix, and compares the result with the known states of the keys.
fn check(
    member: &Member,
    own: &BTreeSet<usize>,
    others: &mut BTreeMap<usize, ForeignLog>,
    random: &mut Random,
) {
    let listed_member = random.below(MEMBERS);
    let full = key_of(listed_member, random.below(KEYS));
    let prefix = full[..[0, 3, 4, 5, full.len(), full.len()][random.below(6)]].to_owned();
    let mut uncertain: BTreeSet<(usize, usize)> = BTreeSet::new();
    for (number, log) in others.iter_mut() {
        log.read();
        uncertain.extend(log.begun.map(|key| (*number, key)));
    }
    let before: BTreeMap<usize, BTreeMap<usize, bool>> =
        others.iter().map(|(number, log)| (*number, log.keys.clone())).collect();
    let max_keys = [3, 50, 1000, 100_000][random.below(4)];
    let listed = list_all(member, &prefix, max_keys);
    for (number, log) in others.iter_mut() {
        uncertain.extend(log.read().into_iter().map(|key| (*number, key)));
    }
    let is_there = |(of, key): (usize, usize)| match of == member.number {
        true => own.contains(&key),
        false => before[&of].get(&key).copied().unwrap_or(false),
    };
    for at in (0..MEMBERS).flat_map(|of| (0..KEYS).map(move |key| (of, key))) {
        let name = key_of(at.0, at.1);
        let expected = is_there(at) && name.starts_with(&prefix);
        let found = listed.binary_search(&name).is_ok();
        assert!(
            found == expected || uncertain.contains(&at),
            "{name}: {found} by prefix {prefix:?} of {max_keys}"
        );
    }
    assert!(listed.iter().all(|name| name.ends_with(".moved") || name.len() == full.len()), "{listed:?}");
}

fn list_all(member: &Member, prefix: &str, max_keys: usize) -> Vec<String> {
    let mut query = ListQuery { max_keys, ..ListQuery::prefix(prefix) };
    let mut names: Vec<String> = Vec::new();
    loop {
        let page = member.store.list(&bucket(), &query).unwrap();
        names.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        query.start_after = page.next;
        if query.start_after.is_none() {
            return names;
        }
    }
}

/// A process that is not permitted to watch directories must also list correctly.
#[test]
fn without_inotify_the_directory_is_read() {
    const WITHOUT: [&[(&str, Errno)]; 3] =
        [&[("inotify_init", Errno::MFILE)], &[("inotify_add_watch", Errno::NOSPC)], &[("read", Errno::IO)]];
    for missing in WITHOUT {
        let ground = Ground::new();
        let store = ground.store();
        let put = |name: String| store.put(&bucket(), &Key::new(name).unwrap(), b"", &PutOptions::default());
        (0..100).for_each(|at| drop(put(format!("k{at:02}")).unwrap()));
        let plan = FaultInjectionPlan { missing, ..Default::default() };
        let (counts, calls) = run(plan, || {
            [0; 5].map(|_| {
                put("k500".to_owned()).unwrap();
                let with = store.list(&bucket(), &ListQuery::prefix("k5")).unwrap().entries.len();
                store.delete(&bucket(), &Key::new("k500").unwrap(), &DeleteOptions::default()).unwrap();
                with + store.list(&bucket(), &ListQuery::prefix("k5")).unwrap().entries.len()
            })
        });
        assert_eq!(counts, [21; 5], "{missing:?}");
        assert!(calls.contains(&missing[0].0), "{missing:?} was never called: {calls:?}");
    }
}
