//! Tests reads from real servers: nginx, Apache httpd, lighttpd, XRootD, and Fordway's gateway.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_http::vector::{HttpTrafficCounts, RemoteFile};
use fordway_http::{ProxySettings, SessionCredentials, TlsRoots};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_store::{Bucket, ByteRange, ErrorKind, GetOptions, Key, Objects, PutOptions};
use fordway_testkit::proxy::{ProxyBehaviour, ProxyServer};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;

use crate::shared::read_by_many_threads;
use crate::{expected, file, patient, read, session, some_ranges, spread};

/// A server that serves one file. The server is killed when this value is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts `program` with the configuration that `configure` returns for a directory and a port. In `arguments`, the
    /// path of the configuration file replaces `CONFIG`, and the directory and the port replace `DIR` and `PORT`.
    pub(crate) fn start(
        program: &Path,
        arguments: &[&str],
        configure: impl FnOnce(&str, u16) -> String,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        std::fs::write(dir.path().join("files/f"), file()).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (place, config) = (dir.path().to_str().unwrap(), dir.path().join("config"));
        std::fs::write(&config, configure(place, port)).unwrap();
        // The servers may run as another user.
        for path in [dir.path().to_owned(), dir.path().join("files")] {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let filled_in = |argument: &&str| {
            let argument = argument.replace("CONFIG", config.to_str().unwrap());
            argument.replace("PORT", &port.to_string()).replace("DIR", place)
        };
        let arguments = arguments.iter().map(filled_in);
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server =
            Server { child: command.spawn().unwrap(), url: format!("http://127.0.0.1:{port}/f"), dir };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "{} did not start", program.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

/// Checks reads of random ranges, and a read of many ranges. After the client has detected the server's limits, no
/// request may be refused.
fn holds_for(server: &Server, most_ranges: usize) {
    let content = file();
    let first = spread(400, 300);
    let (unknown, ticket) =
        RemoteFile::open_reading(&session(patient), &server.url, &first, Vec::new()).unwrap();
    assert!(unknown.wait(ticket).unwrap().bytes == expected(&content, &first).concat());
    let opened = RemoteFile::open(&session(patient), &server.url).unwrap();
    let mut runner = TestRunner::new(ProptestConfig { cases: 200, ..ProptestConfig::default() });
    let tested = runner.run(&some_ranges(60), |ranges| {
        let found = read(&opened, &ranges).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(found == expected(&content, &ranges), "other bytes");
        Ok(())
    });
    tested.unwrap();
    let many = spread(1_200, 200);
    for _ in 0..2 {
        assert!(read(&opened, &many).unwrap() == expected(&content, &many));
    }
    let before = opened.traffic();
    assert!(read(&opened, &many).unwrap() == expected(&content, &many));
    let after = opened.traffic();
    assert_eq!(opened.learned().ranges_per_request, most_ranges);
    // Either the server or the length of the `Range` header limits the number of ranges per request. The header has
    // room for about 500 ranges of at least 14 bytes each.
    let expected_requests = 1_200_usize.div_ceil(most_ranges).max(3) as u64;
    assert!(after.requests - before.requests <= expected_requests + 1, "{before:?} {after:?}");
}

/// Starts nginx. `listen` returns the directives for the address.
pub(crate) fn start_nginx(program: &Path, listen: impl FnOnce(&str, u16) -> String) -> Server {
    Server::start(program, &["-c", "CONFIG", "-e", "stderr"], |dir, port| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"))
            .concat();
        format!(
            "daemon off; master_process off; pid {dir}/pid; error_log stderr; events {{}}\n\
             http {{ access_log off;\n{temporary} server {{ {} root {dir}/files; }} }}",
            listen(dir, port)
        )
    })
}

#[test]
fn nginx() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let server = start_nginx(&program, |_, port| format!("listen 127.0.0.1:{port};"));
    holds_for(&server, 1_000);
    // After 1,000 requests, nginx closes a connection, even if requests are in progress on it.
    let reads_each = if std::env::var_os("FORDWAY_SOAK").is_some() { 10_000 } else { 100 };
    let opened = read_by_many_threads(&server.url, reads_each);
    let least = 64 * reads_each as u64 / 1_000;
    let made = opened.traffic().connections;
    assert!((least..=least + 4).contains(&made), "{made} connections");
}

#[test]
fn nginx_with_tls() {
    let Some(program) = fordway_needs::program("nginx") else { return };
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let server = start_nginx(&program, |dir, port| {
        std::fs::write(format!("{dir}/cert"), made.cert.pem()).unwrap();
        std::fs::write(format!("{dir}/key"), made.signing_key.serialize_pem()).unwrap();
        format!("listen 127.0.0.1:{port} ssl; ssl_certificate {dir}/cert; ssl_certificate_key {dir}/key;")
    });
    let url = server.url.replace("http://", "https://");
    let trusting = session(|options| {
        patient(options);
        options.tls_roots = TlsRoots::File(server.dir.path().join("cert"));
    });
    let opened = RemoteFile::open(&trusting, &url).unwrap();
    let content = file();
    for ranges in [spread(900, 300), vec![(7, 400_000), (3, 5), (399_000, 200_000)]] {
        assert!(read(&opened, &ranges).unwrap() == expected(&content, &ranges));
        let tickets: Vec<_> = (0..4).map(|_| opened.submit(&ranges, Vec::new()).unwrap()).collect();
        for ticket in tickets {
            assert!(opened.wait(ticket).unwrap().bytes == expected(&content, &ranges).concat());
        }
    }
    assert_eq!(opened.traffic().connections, 1);
    let proxy = ProxyServer::start(ProxyBehaviour::default());
    let variable = format!("{}", proxy.address());
    let tunnelled = session(|options| {
        options.tls_roots = TlsRoots::File(server.dir.path().join("cert"));
        options.proxies = ProxySettings::resolve(&|name| (name == "HTTPS_PROXY").then(|| variable.clone()));
        options.credentials = SessionCredentials::none().with_bearer_token("ours");
    });
    let opened = RemoteFile::open(&tunnelled, &url).unwrap();
    assert!(read(&opened, &spread(900, 300)).unwrap() == expected(&content, &spread(900, 300)));
    let heads = proxy.heads();
    assert!(heads.len() == 1 && heads[0].starts_with("CONNECT 127.0.0.1:"), "{heads:?}");
    assert!(!heads[0].contains("ours"), "{heads:?}");
    let stranger = RemoteFile::open(&session(|_| {}), &url).err().map(|error| error.kind());
    assert_eq!(stranger, Some(ErrorKind::BadResponse), "a certificate that nobody vouches for");
}

#[test]
fn our_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(PosixStore::open(dir.path(), PosixConfig::default()).unwrap());
    let identity = AccessKeyPair::generate().unwrap();
    let keys = S3Credentials::keys(&identity.access_key, &identity.secret_key, "the test");
    let config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
    let gateway = Gateway::bind(Users::one(identity, store), config).unwrap().spawn().unwrap();
    let endpoint = format!("http://{}", gateway.local_addr());
    let config = S3Config::new(endpoint, "us-east-1", keys);
    let client = S3Store::new(config.clone()).unwrap();
    let (bucket, key, content) = (Bucket::new("bkt").unwrap(), Key::new("a b/k").unwrap(), file());
    client.create_bucket(&bucket).unwrap();
    client.put(&bucket, &key, &content, &PutOptions::default()).unwrap();
    let opened = S3Store::new(config).unwrap().open_file(&bucket, &key).unwrap();
    assert_eq!(opened.traffic(), HttpTrafficCounts { requests: 1, connections: 1 }, "the HEAD");
    opened.wait(opened.submit(&[(0, 10)], Vec::new()).unwrap()).unwrap();
    assert_eq!(opened.traffic(), HttpTrafficCounts { requests: 2, connections: 1 });
    let mut runner = TestRunner::new(ProptestConfig { cases: 100, ..ProptestConfig::default() });
    let tested = runner.run(&some_ranges(60), |mut ranges| {
        ranges.retain(|(_, length)| *length > 0);
        let last = |(offset, length): &(u64, usize)| offset + *length as u64 - 1;
        let wanted: Vec<_> = ranges.iter().map(|range| ByteRange::Inclusive(range.0, last(range))).collect();
        let found = client.read_ranges(&bucket, &key, &wanted, &GetOptions::default());
        let found = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(found == expected(&content, &ranges), "other bytes");
        Ok(())
    });
    tested.unwrap();
}

#[test]
fn apache() {
    let Some(program) = fordway_needs::program("apache2") else { return };
    let server = Server::start(&program, &["-X", "-f", "CONFIG"], |dir, port| {
        format!(
            "ServerName localhost\nServerRoot {dir}\nListen 127.0.0.1:{port}\nPidFile {dir}/pid\n\
             ErrorLog {dir}/log\nDocumentRoot {dir}/files\n\
             LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
             LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n"
        )
    });
    holds_for(&server, 200);
}

#[test]
fn lighttpd() {
    let Some(program) = fordway_needs::program("lighttpd") else { return };
    let server = Server::start(&program, &["-D", "-f", "CONFIG"], |dir, port| {
        format!(
            "server.document-root = \"{dir}/files\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\n\
             server.errorlog = \"{dir}/log\"\n"
        )
    });
    holds_for(&server, 10);
}

/// Returns the user and group that Debian's package creates for XRootD, which refuses to run as root.
fn user_of_xrootd() -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find_map(|line| line.strip_prefix("xrootd:"))?;
    let mut fields = line.split(':').skip(1).map(|field| field.parse().ok());
    Some((fields.next()??, fields.next()??))
}

/// Tests XRootD over HTTP. XRootD ignores a request that arrives together with another request. XRootD refuses requests
/// for digests if it stores no digests, and sends neither an `ETag` nor `Last-Modified`.
#[test]
fn xrootd() {
    let Some(program) = fordway_needs::program("xrootd") else { return };
    let is_root = fordway_sys::user_id() == 0;
    let mut arguments = vec!["-c", "CONFIG", "-I", "v4", "-n", "test", "-p", "PORT", "-l", "DIR/own/log"];
    if is_root {
        arguments.extend(["-R", "xrootd"]);
    }
    let server = Server::start(&program, &arguments, |dir, port| {
        std::fs::create_dir(format!("{dir}/own")).unwrap();
        if is_root {
            let (user, group) = user_of_xrootd().expect("the user xrootd, whom Debian's package makes");
            std::os::unix::fs::chown(format!("{dir}/own"), Some(user), Some(group)).unwrap();
        }
        format!(
            "all.export /\noss.localroot {dir}/files\nall.adminpath {dir}/own\nall.pidpath {dir}/own\n\
             xrd.network nodnr\nxrd.protocol XrdHttp:{port} libXrdHttp.so\n"
        )
    });
    let patient = session(|options| {
        options.patience = Duration::from_millis(100);
        options.timeouts.first_byte = Duration::from_secs(60);
        options.max_retries = 0;
    });
    let found_out = RemoteFile::open(&patient, &server.url).unwrap();
    // These ranges do not fit into one request, so the client sends two requests together.
    let many = spread(1_500, 100);
    assert!(read(&found_out, &many).unwrap() == expected(&file(), &many));
    assert!(!found_out.learned().pipelines);
    holds_for(&server, 1_000);
    // XRootD sometimes responds to requests that arrive in quick succession, and sometimes does not.
    let other = session(|options| {
        options.patience = Duration::from_millis(50);
        options.timeouts.first_byte = Duration::from_secs(60);
        options.max_retries = 0;
    });
    let windowed = RemoteFile::open(&other, &server.url.replace("127.0.0.1", "localhost")).unwrap();
    for length in 1..30 {
        let ranges = spread(100, length);
        let tickets: Vec<_> = (0..4).map(|_| windowed.submit(&ranges, Vec::new()).unwrap()).collect();
        for ticket in tickets {
            assert!(windowed.wait(ticket).unwrap().bytes == expected(&file(), &ranges).concat());
        }
    }
    let mut copied = Vec::new();
    let copy = found_out.copy_verified(0, &|| unreachable!("nothing came before"), &mut |bytes| {
        copied.extend_from_slice(bytes);
        Ok(())
    });
    assert_eq!(copy.unwrap(), None);
    assert!(copied == file());
}
