//! Tests several S3 gateways, each in its own process on one of the mounts. The gateways must act as one service for
//! clients that alternate between them.

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_store::{
    CompleteOptions, CompletedPart, Tags, UploadId, UploadsQuery, VersioningState, VersionsQuery,
};

use super::*;

/// The variable that contains the number of a gateway process.
const GATEWAY: &str = "FORDWAY_TEST_GATEWAY";
const GATEWAYS: usize = 2;
/// The file whose creation stops the gateways.
const END: &str = "gateways-end";
/// The maximum run time of gateways, in seconds: in a soak test, and in a normal run.
const LIFE_S: [usize; 2] = [1_500, 120];
/// The time during which the file server sends no responses, in seconds: in a soak test, and in a normal run.
const SILENCE_S: [usize; 2] = [30, 12];
/// The maximum time of a call that needs the file server while the server sends no responses.
const REFUSED: Duration = Duration::from_secs(10);
/// The maximum time of a call that does not need the file server.
const SERVED: Duration = Duration::from_secs(5);
/// The maximum time until all calls succeed again after the server has resumed.
const RECOVERED: Duration = Duration::from_secs(60);
/// The variable with the command that stops the file server.
const SILENCE: &str = "FORDWAY_TEST_SILENCE";
/// The variable with the command that resumes the file server.
const SPEECH: &str = "FORDWAY_TEST_SPEECH";
/// The number of increments per client, in a soak test and in a normal run.
const INCREMENTS: [usize; 2] = [200, 10];
/// The number of names that clients compete to create, in a soak test and in a normal run.
const CREATED_KEYS: [usize; 2] = [1_000, 20];

fn key_pair() -> AccessKeyPair {
    AccessKeyPair { access_key: "FORDWAYTEST".to_owned(), secret_key: "not a secret".to_owned() }
}

fn control(name: &str) -> PathBuf {
    Path::new(SharedFileSystemFixture::CONTROL).join(name)
}

fn address_file(number: usize) -> String {
    format!("gateway.{number}")
}

/// Runs the gateways and one process for each of `roles`. The process of the first role stops the gateways when all
/// other processes have exited.
fn run_with_gateways(cluster: &SharedFileSystemFixture, settings: &str, roles: &[&str]) -> Vec<Vec<String>> {
    for name in (0..GATEWAYS).map(address_file).chain([END.to_owned()]) {
        // An earlier check may have left the file behind.
        let _ = fs::remove_file(cluster.control(&name));
    }
    let gateways = ["gateway"; GATEWAYS];
    run_with(cluster, settings, &[&gateways, roles].concat())
}

/// Runs a gateway in another process, which a client may kill.
pub(crate) fn keep_gateway(member: &Member) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "gateways::a_gateway", "--nocapture"])
        .env(GATEWAY, member.number.to_string());
    let mut gateway = command.stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !control(END).exists() {
        assert!(begin.elapsed() < life(), "the clients do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A client may have killed the gateway.
    let _ = gateway.kill();
    gateway.wait().unwrap();
}

#[test]
#[ignore = "run by another test, as the process of a gateway"]
fn a_gateway() {
    let Ok(number) = std::env::var(GATEWAY) else { return };
    let number = number.parse().unwrap();
    let gateway = open_gateway(Path::new(roots()[number % 2]));
    let new = control(&format!("{}.new", address_file(number)));
    fs::write(&new, format!("{} {}", std::process::id(), gateway.local_addr())).unwrap();
    fs::rename(new, control(&address_file(number))).unwrap();
    std::thread::sleep(life());
}

fn life() -> Duration {
    Duration::from_secs(at_length(LIFE_S) as u64)
}

fn open_gateway(root: &Path) -> fordway_serve::RunningGateway {
    let config = PosixConfig {
        consistency: ReadConsistency::Strong,
        etag_policy: ETagPolicy::Md5,
        ..PosixConfig::default()
    };
    let store = Arc::new(PosixStore::open(root, config).unwrap());
    let config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    Gateway::bind(Users::one(key_pair(), store), config).unwrap().spawn().unwrap()
}

fn client_config(address: impl std::fmt::Display) -> S3Config {
    let AccessKeyPair { access_key, secret_key } = key_pair();
    let credentials = S3Credentials::keys(access_key, secret_key, "the test");
    S3Config::new(format!("http://{address}"), "us-east-1", credentials)
}

fn client(address: impl std::fmt::Display) -> S3Store {
    S3Store::new(client_config(address)).unwrap()
}

/// Returns the process ID of each gateway, and a client for it.
fn gateways() -> Vec<(u32, S3Store)> {
    (0..GATEWAYS).map(find_gateway).map(|(process, address)| (process, client(address))).collect()
}

/// Returns the process ID and the address of a gateway.
fn find_gateway(number: usize) -> (u32, String) {
    let file = control(&address_file(number));
    wait_for(&file);
    let text = fs::read_to_string(&file).unwrap();
    let (process, address) = text.split_once(' ').unwrap();
    (process.parse().unwrap(), address.to_owned())
}

/// Returns a client that sends its calls to the gateways round-robin.
fn round_robin() -> RoundRobinStore {
    RoundRobinStore::new(
        gateways().into_iter().map(|(_, client)| Arc::new(client) as Arc<dyn Store>).collect(),
    )
}

pub(crate) fn are_one_service(cluster: &SharedFileSystemFixture) {
    let reports =
        run_with_gateways(cluster, "", &["gateway-user", "gateway-racer", "gateway-racer", "gateway-racer"]);
    let [user, racers @ ..] = &reports[GATEWAYS..] else { panic!("{reports:?}") };
    let count = 3 * at_length(INCREMENTS);
    assert_eq!(user.as_slice(), [count.to_string()], "no acknowledged increment is lost");
    let mut winners: BTreeMap<&str, usize> = BTreeMap::new();
    let created = racers.iter().flatten().filter(|line| line.starts_with("created"));
    created.for_each(|name| *winners.entry(name.as_str()).or_default() += 1);
    assert_eq!(winners.len(), at_length(CREATED_KEYS));
    assert!(winners.values().all(|winners| *winners == 1), "{winners:?}");
}

pub(crate) fn survive_the_death_of_one(cluster: &SharedFileSystemFixture) {
    run_with_gateways(cluster, "", &["gateway-killer"]);
}

fn end_gateways() {
    fs::write(control(END), "").unwrap();
}

/// The process numbers of the racers. Each racer creates a file when it has finished.
const RACERS: [usize; 3] = [GATEWAYS + 1, GATEWAYS + 2, GATEWAYS + 3];

/// Makes each kind of call through both gateways, waits for the racers, and reports the value of the racers' counter.
pub(crate) fn use_gateways(_: &Member) {
    let service = round_robin();
    share_upload(&service);
    keep_versions(&service);
    share_tags(&service);
    let begin = Instant::now();
    while !RACERS.into_iter().all(|number| control(&format!("raced.{number}")).exists()) {
        assert!(begin.elapsed() < life(), "the racers do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut count = Vec::new();
    service.read(&bucket(), &key("gateways/count"), &GetOptions::default(), &mut count).unwrap();
    report(String::from_utf8(count).unwrap());
    end_gateways();
}

/// Sends parts through both gateways, completes the upload through one gateway, and completes it again through the
/// other.
fn share_upload(service: &dyn Store) {
    let (name, size) = (key("gateways/upload"), MIN_PART_BYTES as usize);
    let upload = service.create_upload(&bucket(), &name, &PutOptions::default()).unwrap();
    let bodies: Vec<_> =
        [(b'a', size), (b'b', size), (b'c', 1000)].map(|(byte, size)| vec![byte; size]).into();
    let parts = send_parts(service, &name, &upload, &bodies);
    let listed = service.list_uploads(&bucket(), &UploadsQuery::default()).unwrap();
    assert!(listed.uploads.iter().any(|found| found.upload == upload), "{listed:?}");
    let complete = || {
        service.complete_upload(&bucket(), &name, &upload, &parts, &CompleteOptions::default()).unwrap().etag
    };
    let made = [complete(), complete(), complete()];
    assert!(made.iter().all(|etag| *etag == made[0]), "{made:?}");
    for _ in 0..GATEWAYS {
        let mut body = Vec::new();
        service.read(&bucket(), &name, &GetOptions::default(), &mut body).unwrap();
        assert!(body == bodies.concat());
    }
}

fn send_parts(store: &dyn Store, name: &Key, upload: &UploadId, bodies: &[Vec<u8>]) -> Vec<CompletedPart> {
    let send = |(at, body): (usize, &Vec<u8>)| {
        let options = PartOptions { size_hint: Some(body.len() as u64), ..Default::default() };
        let number = at as u16 + 1;
        let mut writer = store.part_writer(&bucket(), name, upload, number, &options).unwrap();
        writer.write(body).unwrap();
        CompletedPart::new(number, writer.commit(&ExpectedContent::default()).unwrap().etag)
    };
    bodies.iter().enumerate().map(send).collect()
}

/// Makes calls on a bucket with versioning. Successive calls use different gateways.
fn keep_versions(service: &dyn Store) {
    let (versions, name) = (Bucket::new("gateway-versions").unwrap(), key("v"));
    service.create_bucket(&versions).unwrap();
    service.head_bucket(&versions).unwrap();
    service.set_versioning(&versions, VersioningState::Enabled).unwrap();
    let put =
        |body: &[u8]| service.put(&versions, &name, body, &PutOptions::default()).unwrap().version.unwrap();
    let made: Vec<_> = (0..4).map(|round| put(format!("version {round}").as_bytes())).collect();
    for (round, version) in made.iter().enumerate() {
        let options = GetOptions { version: Some(version.clone()), ..Default::default() };
        for _ in 0..GATEWAYS {
            let mut body = Vec::new();
            service.read(&versions, &name, &options, &mut body).unwrap();
            assert_eq!(body, format!("version {round}").as_bytes());
        }
    }
    assert!(service.delete(&versions, &name, &DeleteOptions::default()).unwrap().is_marker);
    for _ in 0..GATEWAYS {
        let missing = service.head(&versions, &name, &GetOptions::default()).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NoSuchKey);
        let listed = service.list_versions(&versions, &VersionsQuery::default()).unwrap();
        assert_eq!(listed.versions.len(), made.len() + 1, "{listed:?}");
    }
}

fn share_tags(service: &dyn Store) {
    let tags = Tags::from([("of".to_owned(), "both".to_owned())]);
    for round in 0..GATEWAYS {
        let name = key(&format!("gateways/tags{round}"));
        service.put(&bucket(), &name, b"1", &PutOptions::default()).unwrap();
        service.set_tags(&bucket(), &name, None, &tags).unwrap();
        for _ in 0..GATEWAYS {
            assert_eq!(service.tags(&bucket(), &name, None).unwrap(), tags);
        }
    }
}

/// Increments an object that all racers increment, and creates names that all racers try to create.
pub(crate) fn race_through_gateways(member: &Member) {
    let service = round_robin();
    let count = key("gateways/count");
    let first = put_if(Conditions::create_only());
    match service.put(&bucket(), &count, b"0", &first) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}"),
    }
    let mut left = at_length(INCREMENTS);
    while left > 0 {
        let object = service.get(&bucket(), &count, &GetOptions::default()).unwrap();
        let only_if = put_if(Conditions::only_if(object.info.etag));
        let seen: u64 = String::from_utf8(object.content.into_vec().unwrap()).unwrap().parse().unwrap();
        match service.put(&bucket(), &count, (seen + 1).to_string().as_bytes(), &only_if) {
            Ok(_) => left -= 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}"),
        }
    }
    for number in 0..at_length(CREATED_KEYS) {
        let name = format!("created/{number}");
        match service.put(&bucket(), &key(&name), b"", &put_if(Conditions::create_only())) {
            Ok(_) => report(name),
            Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}"),
        }
    }
    fs::write(control(&format!("raced.{}", member.number)), "").unwrap();
}

/// Kills a gateway between two parts of an upload and during puts, and continues through the other gateway.
pub(crate) fn kill_a_gateway(_: &Member) {
    let [(process, doomed), (_, other)] = <[_; GATEWAYS]>::try_from(gateways()).ok().unwrap();
    let (name, size) = (key("gateways/killed"), MIN_PART_BYTES as usize);
    let upload = doomed.create_upload(&bucket(), &name, &PutOptions::default()).unwrap();
    let bodies: Vec<_> = [b'a', b'b'].map(|byte| vec![byte; size]).into();
    let sent = send_parts(&doomed, &name, &upload, &bodies[..1]);
    let fill = |byte: u8| vec![byte; 3 << 20];
    doomed.put(&bucket(), &key("gateways/whole"), &fill(b'a'), &PutOptions::default()).unwrap();
    let putting = std::thread::spawn(move || {
        let put = |round: u8| {
            doomed.put(&bucket(), &key("gateways/whole"), &fill(b'a' + round % 26), &PutOptions::default())
        };
        // A put fails after the gateway has been killed.
        (0..=u8::MAX).take_while(|round| put(*round).is_ok()).count()
    });
    std::thread::sleep(Duration::from_millis(500));
    let killed = Command::new("kill").args(["-9", &process.to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(putting.join().unwrap() <= usize::from(u8::MAX), "the gateway lives on");
    let mut body = Vec::new();
    other.read(&bucket(), &key("gateways/whole"), &GetOptions::default(), &mut body).unwrap();
    assert!(body == fill(body[0]), "{} bytes of several versions", body.len());
    // The killed gateway's locks have been released.
    other.put(&bucket(), &key("gateways/whole"), b"new", &PutOptions::default()).unwrap();
    let again = send_parts(&other, &name, &upload, &bodies);
    assert_eq!(again[0].etag, sent[0].etag, "both are the MD5 of the content");
    other.complete_upload(&bucket(), &name, &upload, &again, &CompleteOptions::default()).unwrap();
    let mut body = Vec::new();
    other.read(&bucket(), &name, &GetOptions::default(), &mut body).unwrap();
    assert!(body == bodies.concat());
    end_gateways();
}

/// Stops the file server of one bucket of a local root. Another bucket is on a local file system.
pub(crate) fn outlast_a_silent_server(cluster: &SharedFileSystemFixture) {
    let signal = |signal: &str, programs: &str| format!("kill -{signal} $(pgrep -x \"{programs}\")");
    let of_programs = |programs: &str| [signal("STOP", programs), signal("CONT", programs)];
    let [silence, speech] = match cluster.name {
        "glusterfs" => of_programs("glusterfsd"),
        "moosefs" => of_programs("mfsmaster|mfschunkserver"),
        "cephfs" => of_programs("ceph-mds|ceph-osd"),
        // The server and the clients share one kernel, so the network is interrupted instead.
        _ => ["down", "up"].map(|state| format!("for node in 1 2; do ip link set v$node {state}; done")),
    };
    mount_buckets(cluster);
    let settings = format!("{ON_LOCAL_ROOTS}=1 {SILENCE}='{silence}' {SPEECH}='{speech}'");
    run_with_gateways(cluster, &settings, &["gateway-staller"]);
}

fn shell(variable: &str) {
    let command = std::env::var(variable).unwrap();
    let status = Command::new("bash").args(["-c", &command]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// While the file server sends no responses, calls that need it fail with `Unavailable` within [`REFUSED`]. Other calls
/// succeed.
pub(crate) fn use_gateway_of_a_silent_server(_: &Member) {
    let (_, address) = find_gateway(0);
    let config = S3Config { max_retries: 0, timeout: Some(2 * REFUSED), ..client_config(&address) };
    let client = Arc::new(S3Store::new(config).unwrap());
    let local = Bucket::new("local").unwrap();
    client.create_bucket(&local).unwrap();
    let large = vec![b'x'; 4 << 20];
    for bucket in [&local, &bucket()] {
        client.put(bucket, &key("small"), b"small", &PutOptions::default()).unwrap();
        client.put(bucket, &key("large"), &large, &PutOptions::default()).unwrap();
    }
    shell(SILENCE);
    // Wait until the caches of the GlusterFS client have expired. Cached entries are valid for one second.
    std::thread::sleep(Duration::from_secs(2));
    let end = Instant::now() + Duration::from_secs(at_length(SILENCE_S) as u64);
    std::thread::scope(|scope| {
        for number in 0..2 * CALLS.len() {
            let client = &client;
            scope.spawn(move || {
                while Instant::now() < end {
                    let (call, began) = (CALLS[number % CALLS.len()], Instant::now());
                    let done = call(client, &bucket());
                    let took = began.elapsed();
                    assert_eq!(done, Err(ErrorKind::Unavailable), "call {number} after {took:?}");
                    assert!(took < REFUSED, "call {number} took {took:?}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
        for call in CALLS {
            let (client, local) = (&client, &local);
            scope.spawn(move || {
                while Instant::now() < end {
                    let began = Instant::now();
                    call(client, local).unwrap();
                    assert!(began.elapsed() < SERVED, "a local call took {:?}", began.elapsed());
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
    });
    shell(SPEECH);
    let begin = Instant::now();
    for call in CALLS {
        while call(&client, &bucket()).is_err() {
            assert!(begin.elapsed() < RECOVERED, "the gateway does not recover");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let mut body = Vec::new();
    client.read(&bucket(), &key("large"), &GetOptions::default(), &mut body).unwrap();
    assert!(body == large);
    end_gateways();
}

type Call = fn(&S3Store, &Bucket) -> Result<(), ErrorKind>;

const CALLS: [Call; 7] = [
    |client, bucket| {
        let got = client.read(bucket, &key("small"), &GetOptions::default(), &mut Vec::new());
        got.map(drop).map_err(|error| error.kind())
    },
    |client, bucket| {
        let got = client.read(bucket, &key("large"), &GetOptions::default(), &mut Vec::new());
        got.map(drop).map_err(|error| error.kind())
    },
    |client, bucket| {
        client.head(bucket, &key("small"), &GetOptions::default()).map(drop).map_err(|error| error.kind())
    },
    |client, bucket| {
        let made = client.put(bucket, &key("new"), b"new", &PutOptions::default());
        made.map(drop).map_err(|error| error.kind())
    },
    |client, bucket| {
        let made = client.put(bucket, &key("large-new"), &vec![b'y'; 2 << 20], &PutOptions::default());
        made.map(drop).map_err(|error| error.kind())
    },
    |client, bucket| {
        let listed = client.list(bucket, &ListQuery::default());
        listed.map(drop).map_err(|error| error.kind())
    },
    |client, bucket| {
        let deleted = client.delete(bucket, &key("gone"), &DeleteOptions::default());
        deleted.map(drop).map_err(|error| error.kind())
    },
];

/// Creates a root with two gateways, one on each mount. Calls alternate between the gateways.
pub(crate) fn in_turn() -> StoreFixture {
    let dir = tempfile::tempdir_in(SharedFileSystemFixture::MOUNTS[0]).unwrap();
    let name = dir.path().file_name().unwrap();
    let gateways = SharedFileSystemFixture::MOUNTS.map(|mount| open_gateway(&Path::new(mount).join(name)));
    let clients =
        gateways.iter().map(|gateway| Arc::new(client(gateway.local_addr())) as Arc<dyn Store>).collect();
    StoreFixture::new(RoundRobinStore::new(clients), (gateways, dir))
}
