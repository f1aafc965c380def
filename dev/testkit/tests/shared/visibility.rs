//! Tests objects and names that one node reads or lists while another node replaces, removes or creates them.

use std::io::Write;
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig};

use super::*;

/// The number of repetitions of each race: overwriting an object while it is read, opening a name before it exists,
/// replacing an object while it is open, and setting tags. The first number of a pair applies to a soak test, and the
/// second to a normal run.
const OVERWRITES: [usize; 2] = [3_000, 300];
pub(super) const OPENED_EARLY: [usize; 2] = [500, 30];
const REPLACED: [usize; 2] = [1_000, 100];
const TAGGED: [usize; 2] = [500, 20];
/// The maximum time in seconds that all overwrites may take, in a soak test and in a normal run.
const OVERWRITTEN_S: [usize; 2] = [600, 180];
/// The maximum time to wait until the program has sent its request to the server.
const OPENED: Duration = Duration::from_millis(50);
/// The time after which the server is assumed to have responded.
const ANSWERED: Duration = Duration::from_millis(50);

pub(super) fn overwrite(member: &Member) {
    let store = store(member.number);
    (0..at_length(OVERWRITES)).for_each(|round| drop(put(&store, "whole", &content(round))));
    put(&store, "overwritten", b"1");
}

pub(super) fn read_whole(member: &Member) {
    let store = store(member.number);
    let begin = Instant::now();
    let (mut reads, overwrites) = (0, at_length(OVERWRITES));
    while read(&store, "overwritten").is_err() {
        assert!(begin.elapsed().as_secs() < at_length(OVERWRITTEN_S) as u64, "the overwrites do not end");
        let body = read(&store, "whole").unwrap();
        let is_whole =
            (0..overwrites).any(|round| content(round).len() == body.len() && body == content(round));
        let letters: std::collections::BTreeSet<u8> = body.iter().copied().collect();
        assert!(is_whole, "{} bytes of {letters:?} after {reads} reads", body.len());
        reads += 1;
    }
    assert!(reads > 0, "the overwrites ended before the first read");
}

/// The two nodes alternately put an object, and each node must then list its own object. The directory has enough
/// entries for its listing to be cached.
pub(super) fn list_what_was_put(_: &Member) {
    let (one, other) = (store(0), store(1));
    put(&one, "listed/first", b"");
    let dir = Path::new(SharedFileSystemFixture::MOUNTS[0]).join("bucket/listed");
    (0..600).for_each(|number| fs::write(dir.join(format!("{number:04}")), "").unwrap());
    let start_after = Some("listed/0599".to_owned());
    let query = ListQuery { prefix: "listed/".to_owned(), start_after, ..Default::default() };
    for round in 0..15 {
        let store = if round % 2 == 0 { &one } else { &other };
        store.list(&bucket(), &query).unwrap();
        let name = format!("listed/{:04}", 700 + round);
        put(store, &name, b"");
        let listed = store.list(&bucket(), &query).unwrap();
        assert!(
            listed.entries.iter().any(|entry| format!("{entry:?}").contains(&name)),
            "{name} is not listed"
        );
    }
}

/// If a file is replaced while it is open, the NFS client first renames it, so the name is missing for a short time. No
/// call may interpret the missing name as the removal of the object.
pub(super) fn use_what_is_overwritten_while_open(_: &Member) {
    let mount = Path::new(SharedFileSystemFixture::MOUNTS[0]).join("bucket");
    let (writer, kind) = (store(0), BucketDocumentKind::new("policy").unwrap());
    let overwrite = |round| {
        let _open =
            [fs::File::open(mount.join("open/x")), fs::File::open(mount.join(".fordway/document-policy"))];
        put(&writer, "open/x", &content(round));
        // An odd key is a file in the directory `odd`.
        let odd = fs::read_dir(mount.join(".fordway/odd")).into_iter().flatten().flatten();
        let _odd: Vec<_> = odd.map(|entry| fs::File::open(entry.path())).collect();
        put(&writer, "open//x", &content(round));
        writer.set_document(&bucket(), &kind, round.to_string().as_bytes()).unwrap();
    };
    overwrite(0);
    let query = ListQuery { prefix: "open/".to_owned(), ..Default::default() };
    let odd = ListQuery { prefix: "open//".to_owned(), ..Default::default() };
    let is_read = |reader: &PosixStore| read(reader, "open/x").is_ok();
    let is_listed = |reader: &PosixStore| reader.list(&bucket(), &query).unwrap().entries.len() == 2;
    let is_odd_listed = |reader: &PosixStore| reader.list(&bucket(), &odd).unwrap().entries.len() == 1;
    let is_kept = |reader: &PosixStore| {
        let made = reader.put(&bucket(), &key("open/x"), b"", &put_if(Conditions::create_only()));
        made.is_err_and(|error| error.kind() == ErrorKind::PreconditionFailed)
    };
    let has_document = |reader: &PosixStore| reader.document(&bucket(), &kind).unwrap().is_some();
    type Use<'u> = (&'u str, PosixStore, &'u (dyn Fn(&PosixStore) -> bool + Sync));
    let uses: [Use<'_>; 9] = [
        ("read", store(1), &is_read),
        ("read", strong(1), &is_read),
        ("read", store(0), &is_read),
        ("listed", store(1), &is_listed),
        ("listed", strong(1), &is_listed),
        ("odd key listed", store(1), &is_odd_listed),
        ("kept", store(1), &is_kept),
        ("document", store(1), &has_document),
        ("document", strong(1), &has_document),
    ];
    let is_over = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        let users = uses.map(|(name, store, act)| {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut done = [0, 0];
                while !is_over.load(Ordering::Relaxed) {
                    done[usize::from(act(&store))] += 1;
                }
                (name, done)
            })
        });
        (0..at_length(REPLACED)).for_each(overwrite);
        is_over.store(true, Ordering::Relaxed);
        users.map(|user| user.join().unwrap())
    });
    assert!(results.iter().all(|(_, [missed, done])| *missed == 0 && *done > 0), "{results:?}");
}

/// Checks that a node reads tags that another node has just set. A change of tags changes neither the name nor the
/// content of the file, and may occur within the same tick of the server's clock as the previous change.
pub(super) fn read_tags_at_once(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let tags = |value: usize| Tags::from([("of".to_owned(), value.to_string())]);
    for round in 0..at_length(TAGGED) {
        let name = key(&format!("tags/{round}"));
        let options =
            PutOptions { tags: if round % 2 == 0 { Tags::new() } else { tags(0) }, ..Default::default() };
        one.put(&bucket(), &name, b"1", &options).unwrap();
        assert_eq!(one.tags(&bucket(), &name, None).unwrap(), options.tags);
        for change in 1..4 {
            other.set_tags(&bucket(), &name, None, &tags(change)).unwrap();
            assert_eq!(one.tags(&bucket(), &name, None).unwrap(), tags(change), "round {round}");
        }
    }
}

/// An object that one node has opened can be read completely, even if the other node replaces or removes the object
/// before the read.
pub(super) fn read_what_was_opened(_: &Member) {
    let (one, other) = (store(0), store(1));
    for round in 0..10 {
        let (name, body) = (format!("opened/{round}"), content(13 + round));
        put(&other, &name, &body);
        let object = one.get(&bucket(), &key(&name), &GetOptions::default()).unwrap();
        match round % 2 {
            0 => drop(put(&other, &name, b"another")),
            _ => drop(other.delete(&bucket(), &key(&name), &DeleteOptions::default()).unwrap()),
        }
        let read = object.content.into_vec().unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(read == body, "round {round}: {} of {} bytes", read.len(), body.len());
    }
}

/// A program on one node opens a name just before the other node creates the name. The program processes the response
/// only after its own node has seen the change of the directory. The Linux NFS client then keeps the name cached as
/// missing, but the store must find the object.
pub(super) fn find_what_was_opened_too_early(_: &Member) {
    let other = strong(1);
    open_names_too_early("early", |name| assert_eq!(read(&other, name), Ok(Vec::new()), "{name}"));
}

/// Creates names below `dir` on one node, after a program on the other node has opened each of them too early. Calls
/// `check` with each name. Reports how often the other node kept the name cached as missing.
pub(super) fn open_names_too_early(dir: &str, check: impl Fn(&str)) {
    put(&store(0), &format!("{dir}/x"), b"");
    let [here, there] =
        SharedFileSystemFixture::MOUNTS.map(|mount| Path::new(mount).join("bucket").join(dir));
    let mut opener = FrozenOpener::start(&there);
    let mut kept_missing = 0;
    for round in 0..at_length(OPENED_EARLY) {
        let name = round.to_string();
        // After this lookup, the open below sends only one request.
        assert!(!there.join("none").exists());
        let create = || fs::hard_link(here.join("x"), here.join(&name)).unwrap();
        kept_missing += usize::from(opener.open_too_early(&name, create));
        check(&format!("{dir}/{name}"));
    }
    report(format!("{kept_missing} names were kept as missing"));
}

/// A program that opens names, and that is frozen while it waits for the server's response.
pub(super) struct FrozenOpener {
    path: PathBuf,
    dir: fs::File,
    program: Child,
    names: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl FrozenOpener {
    const GROUP: &str = "/run/freezer/opener";

    pub(super) fn start(path: &Path) -> Self {
        let dir = fs::File::open(path).unwrap();
        let script = "while read -r name; do true 2>/dev/null <$name; echo done; done";
        let mount = "mkdir -p /run/freezer && { mountpoint -q /run/freezer || mount -t cgroup -o freezer none /run/freezer; } && mkdir -p $0";
        let mounted = Command::new("sh").args(["-c", mount, Self::GROUP]).status().unwrap();
        assert!(mounted.success(), "the kernel cannot freeze programs");
        let mut program = Command::new("sh");
        program.args(["-c", script]).current_dir(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        fs::write(format!("{}/cgroup.procs", Self::GROUP), program.id().to_string()).unwrap();
        let (names, said) = (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
        FrozenOpener { path: path.to_owned(), dir, program, names, said }
    }

    /// Opens `name` before `create` creates it on the other node. The program processes the response only after its own
    /// node has seen the change of the directory. Returns whether its node then keeps the name cached as missing.
    pub(super) fn open_too_early(&mut self, name: &str, create: impl FnOnce()) -> bool {
        self.open(name);
        create();
        fordway_sys::stat_now(&self.dir).unwrap();
        self.thaw();
        fordway_sys::stat_now(&self.dir).unwrap();
        !self.path.join(name).exists()
    }

    /// Opens `name`, and waits until the server has responded but the program has not yet processed the response.
    fn open(&mut self, name: &str) {
        let state = format!("/proc/{}/stat", self.program.id());
        writeln!(self.names, "{name}").unwrap();
        let begin = Instant::now();
        while !fs::read_to_string(&state).unwrap().contains(") D ") && begin.elapsed() < OPENED {
            std::thread::yield_now();
        }
        self.set_state("FROZEN");
        std::thread::sleep(ANSWERED);
    }

    fn thaw(&mut self) {
        self.set_state("THAWED");
        self.said.read_line(&mut String::new()).unwrap();
    }

    fn set_state(&self, state: &str) {
        fs::write(format!("{}/freezer.state", Self::GROUP), state).unwrap();
    }
}

impl Drop for FrozenOpener {
    fn drop(&mut self) {
        self.set_state("THAWED");
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

/// One node replaces objects that the other node has listed. A listing that queries the server must show the new
/// objects.
pub(super) fn list_what_was_replaced(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let query = ListQuery { prefix: "replaced/".to_owned(), ..Default::default() };
    for round in 0..10 {
        let written = put(&one, "replaced/x", &content(round));
        let listed = other.list(&bucket(), &query).unwrap();
        let ListEntry::Object(seen) = &listed.entries[0] else { panic!("{listed:?}") };
        assert_eq!((seen.size, &seen.etag), (content(round).len() as u64, &written), "round {round}");
    }
}

/// After a node has written an object or a part, the file's modification time must not change any more, because a
/// record is valid only for this modification time. The MooseFS client reports the times of its writes to the server
/// with a delay.
pub(super) fn keep_times(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let set = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let bucket_dir = Path::new(roots()[1]).join("bucket");
    let upload = one.create_upload(&bucket(), &key("sealed/upload"), &PutOptions::default()).unwrap();
    let part = vec![b'p'; MIN_PART_BYTES as usize];
    let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
    let mut writer = one.part_writer(&bucket(), &key("sealed/upload"), &upload, 1, &options).unwrap();
    writer.write(&part).unwrap();
    writer.commit(&ExpectedContent::default()).unwrap();
    let checksum = PutOptions { checksum: Some(ChecksumAlgorithm::Crc32c), ..Default::default() };
    one.put(&bucket(), &key("sealed/object"), &part, &checksum).unwrap();
    let data = bucket_dir.join(".fordway/mpu").join(upload.as_str()).join("data");
    for path in [data, bucket_dir.join("sealed/object")] {
        fs::File::options().write(true).open(&path).unwrap().set_modified(set).unwrap();
        // The client reports times to the server once per second, and caches attributes for one second.
        std::thread::sleep(Duration::from_secs(4));
        let found = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(found, set, "{} does not have the time that was set last", path.display());
    }
    other.abort_upload(&bucket(), &key("sealed/upload"), &upload).unwrap();
    list_many_with_times_set_back(&one, bucket_dir, set);
}

/// If a file is older than its record, the node's cached attributes may be outdated, and a GET on FUSE waits until they
/// have expired. A listing must not wait for each file.
fn list_many_with_times_set_back(store: &PosixStore, bucket_dir: PathBuf, set: SystemTime) {
    let checksum = PutOptions { checksum: Some(ChecksumAlgorithm::Crc32c), ..Default::default() };
    for number in 0..12 {
        let name = format!("set-back/{number}");
        store.put(&bucket(), &key(&name), b"content", &checksum).unwrap();
        let file = fs::File::options().write(true).open(bucket_dir.join(&name)).unwrap();
        file.set_modified(set).unwrap();
    }
    let begin = Instant::now();
    let query = ListQuery { prefix: "set-back/".to_owned(), ..Default::default() };
    assert_eq!(store.list(&bucket(), &query).unwrap().entries.len(), 12);
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
}

/// One node removes a directory that the other node has seen. The other node then creates and removes the directory,
/// and the first node creates it again. No call may fail because of cached names.
pub(super) fn share_directories(_: &Member) {
    let (one, other) = (store(0), store(1));
    for round in 0..10 {
        let (first, second) = (format!("come{round}/and/go/x"), format!("come{round}/and/go/y"));
        put(&one, &first, b"1");
        read(&other, &first).unwrap();
        one.delete(&bucket(), &key(&first), &DeleteOptions::default()).unwrap();
        match read(&other, &first) {
            // Both results are possible, because the mount caches names.
            Ok(_) | Err(ErrorKind::NoSuchKey) => {}
            Err(kind) => panic!("{kind:?}"),
        }
        put(&other, &second, b"2");
        assert_eq!(read(&other, &second).unwrap(), b"2");
        other.delete(&bucket(), &key(&second), &DeleteOptions::default()).unwrap();
        one.put(&bucket(), &key(&first), b"3", &put_if(Conditions::create_only())).unwrap();
        other.list(&bucket(), &ListQuery { prefix: format!("come{round}/"), ..Default::default() }).unwrap();
    }
}

/// If a file is removed while it is open, NFS renames it to a hidden name, and FUSE may do the same. Hidden names must
/// not be listed as objects.
pub(super) fn leave_names_behind(_: &Member) {
    let (one, other) = (store(0), store(1));
    let dir = Path::new(SharedFileSystemFixture::MOUNTS[0]).join("bucket/left");
    put(&one, "left/a", b"1");
    put(&one, "left/.nfs", b"an object");
    let open = fs::File::open(dir.join("a")).unwrap();
    put(&one, "left/a", b"2");
    let open_too = fs::File::open(dir.join("a")).unwrap();
    one.delete(&bucket(), &key("left/a"), &DeleteOptions::default()).unwrap();
    let query = ListQuery { prefix: "left/".to_owned(), ..Default::default() };
    for store in [&one, &other] {
        let listed = store.list(&bucket(), &query).unwrap();
        assert_eq!(listed.entries.len(), 1, "{:?}", listed.entries);
    }
    drop((open, open_too));
    one.delete(&bucket(), &key("left/.nfs"), &DeleteOptions::default()).unwrap();
    one.list(&bucket(), &query).unwrap();
}
/// Checks that deleting a bucket waits until this node closes a removed file. Until then, NFS and FUSE keep the file
/// under a hidden name.
pub(super) fn delete_a_bucket_in_use(_: &Member) {
    let (store, bucket) = (store(0), Bucket::new("short-lived").unwrap());
    store.create_bucket(&bucket).unwrap();
    for body in [b"1", b"2"] {
        store.put(&bucket, &key("k"), body, &PutOptions::default()).unwrap();
    }
    store.delete(&bucket, &key("k"), &DeleteOptions::default()).unwrap();
    let private = Path::new(SharedFileSystemFixture::MOUNTS[0]).join("short-lived").join(PRIVATE_DIR);
    let open = fs::File::open(private.join("locks")).unwrap();
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(open);
    });
    store.delete_bucket(&bucket).unwrap();
    closer.join().unwrap();
    delete_a_bucket_of_an_idle_client(&bucket);
}

/// Checks that an idle client of a node gateway that has stored objects keeps no file of the bucket open.
fn delete_a_bucket_of_an_idle_client(bucket: &Bucket) {
    let away = tempfile::tempdir().unwrap();
    let socket = away.path().join("socket");
    let open = || Ok(Arc::new(store(0)) as Arc<dyn Store>);
    let _gateway =
        NodeGateway::bind(Arc::new(open), NodeGatewayConfig::new(&socket)).unwrap().spawn().unwrap();
    let client = || NodeStore::new(NodeAddress::Unix(socket.clone()));
    let (idle, other) = (client(), client());
    idle.create_bucket(bucket).unwrap();
    // Content of this size is written to files that the gateway passes to the client.
    for _ in 0..3 {
        idle.put(bucket, &key("k"), &vec![7; 1 << 20], &PutOptions::default()).unwrap();
    }
    other.delete(bucket, &key("k"), &DeleteOptions::default()).unwrap();
    other.delete_bucket(bucket).unwrap();
}

/// Two names are created within one tick of the server's clock, and the other node lists the directory in between. The
/// client of that node then treats its list with one name as current, but a strong listing must show both names.
pub(super) fn list_what_was_created_in_one_step(_: &Member) {
    let (one, other) = (store(0), strong(1));
    let [here, there] = SharedFileSystemFixture::MOUNTS.map(|mount| Path::new(mount).join("bucket/step"));
    put(&one, "step/x", b"");
    let query = ListQuery { prefix: "step/".to_owned(), ..Default::default() };
    let mut kept_old = 0;
    for round in 0..30 {
        let [first, second] = [1, 2].map(|number| format!("{round:02}.{number}"));
        fs::hard_link(here.join("x"), here.join(first)).unwrap();
        fs::read_dir(&there).unwrap().for_each(drop);
        fs::hard_link(here.join("x"), here.join(second)).unwrap();
        let expected = 1 + 2 * (round + 1);
        kept_old += usize::from(fs::read_dir(&there).unwrap().count() < expected);
        assert_eq!(other.list(&bucket(), &query).unwrap().entries.len(), expected, "round {round}");
    }
    report(format!("{kept_old} old lists were kept"));
}

/// One node sets the first notification rules. The other node, which has cached that there are none, must record the
/// events of its next calls.
pub(super) fn record_events_at_once(_: &Member) {
    let (one, other) = (store(0), store(1));
    let bucket = Bucket::new("events").unwrap();
    one.create_bucket(&bucket).unwrap();
    let rules = b"<NotificationConfiguration><QueueConfiguration><Queue>arn:fordway:sqs::ci:webhook</Queue>\
        <Event>s3:ObjectCreated:*</Event></QueueConfiguration></NotificationConfiguration>";
    one.set_document(&bucket, &BucketDocumentKind::known("notification"), rules).unwrap();
    let private = Path::new(SharedFileSystemFixture::MOUNTS[0]).join("events").join(PRIVATE_DIR);
    let recorded = || {
        let journals = fs::read_dir(private.join("events")).unwrap();
        let count = |entry: std::io::Result<fs::DirEntry>| {
            fs::read_dir(entry.unwrap().path()).map_or(1, Iterator::count)
        };
        journals.map(count).sum::<usize>()
    };
    let put = |name: &str| drop(other.put(&bucket, &key(name), b"1", &PutOptions::default()).unwrap());
    for round in 0..5 {
        // Restore the state before the first rules were set: no marker tells writers to look for rules, and the
        // directory has not changed for a long time.
        fs::write(private.join("markers"), "").unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(10_000);
        fs::File::open(&private).unwrap().set_modified(long_ago).unwrap();
        std::thread::sleep(Duration::from_secs(4));
        let before = recorded();
        put(&format!("unseen{round}"));
        assert_eq!(recorded(), before, "no rules are in force");
        fs::write(private.join("markers"), "n").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        put(&format!("seen{round}"));
        assert!(recorded() > before, "round {round}");
    }
}

/// Returns tags that do not fit into an attribute.
fn many_tags() -> Tags {
    (0..10).map(|number| (format!("{number:0>100}"), "v".repeat(256))).collect()
}

/// The other node renames an object and stores a new one under the old key; then this node overwrites that key. The
/// renamed file is now another object, and its sidecar file must remain. Each sidecar file of a replaced or removed
/// object is removed.
pub(super) fn keep_sidecars_of_other_objects(_: &Member) {
    let (one, other) = (store(0), store(1));
    let bucket = Bucket::new("apart").unwrap();
    one.create_bucket(&bucket).unwrap();
    let apart = PutOptions { tags: many_tags(), ..Default::default() };
    let private = Path::new(roots()[1]).join("apart").join(PRIVATE_DIR);
    let left = |dir: &str| fs::read_dir(private.join(dir)).map_or(0, Iterator::count);
    for round in 0..10 {
        let [name, moved] = ["k", "moved"].map(|name| key(&format!("dir/{name}{round}")));
        one.put(&bucket, &name, b"1", &apart).unwrap();
        one.head(&bucket, &name, &GetOptions::default()).unwrap();
        other.rename(&bucket, &name, &moved, &RenameOptions::default()).unwrap();
        other.put(&bucket, &name, b"2", &PutOptions::default()).unwrap();
        one.put(&bucket, &name, b"3", &PutOptions::default()).unwrap();
        assert_eq!(other.tags(&bucket, &moved, None).unwrap(), apart.tags, "round {round}");
    }
    assert_eq!(left("meta"), 10);
    for round in 0..10 {
        let name = key(&format!("dir/moved{round}"));
        match round % 2 {
            0 => drop(one.put(&bucket, &name, b"4", &PutOptions::default()).unwrap()),
            _ => drop(one.delete(&bucket, &name, &DeleteOptions::default()).unwrap()),
        }
    }
    assert_eq!([left("meta"), left("tmp")], [0, 0]);
}

/// Returns the number of requests of this kind that the NFS client of node 0 has sent to the server.
fn requests(kind: &str) -> u64 {
    let all = fs::read_to_string("/proc/self/mountstats").unwrap();
    let of_mount = all.split("device ").find(|text| text.contains(" mounted on /mnt/1 ")).unwrap();
    let line = of_mount.lines().find_map(|line| line.trim().strip_prefix(kind)?.strip_prefix(": "));
    line.unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// In a bucket with sidecar files, an overwrite on NFS is one rename, as in every other bucket. If the store kept the
/// old file open, the client would first rename the old file, and other nodes would find no object in between.
pub(super) fn replace_with_one_rename(_: &Member) {
    let store = store(0);
    let bucket = Bucket::new("renames").unwrap();
    store.create_bucket(&bucket).unwrap();
    let options =
        [PutOptions::default(), PutOptions { etag_policy: Some(ETagPolicy::Md5), ..Default::default() }];
    for apart in [false, true] {
        if apart {
            let apart = PutOptions { tags: many_tags(), ..Default::default() };
            store.put(&bucket, &key("apart"), b"", &apart).unwrap();
        }
        for (options, name) in options.iter().zip(["bare", "recorded"]) {
            store.put(&bucket, &key(name), b"0", options).unwrap();
            let before = requests("RENAME");
            (0..10).for_each(|_| drop(store.put(&bucket, &key(name), b"1", options).unwrap()));
            assert_eq!(requests("RENAME") - before, 10, "{name}, sidecar files: {apart}");
        }
    }
    // The replaced object has a sidecar file itself.
    let before = requests("RENAME");
    store.put(&bucket, &key("apart"), b"1", &PutOptions::default()).unwrap();
    assert_eq!(requests("RENAME") - before, 1);
}
