//! Tests `netlab` as a user would run it: the link, exit codes, and the clean-up after it is killed. Namespaces require
//! root. Without root, these tests are skipped with a message.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fordway_testkit::foreign::SelfSignedCertificate;

fn is_root() -> bool {
    fordway_needs::root("make network namespaces")
}

fn netlab(options: &[&str], client: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.arg("netlab").args(options).args(["--", "sh", "-c", client]);
    command
        .env("AWS_ACCESS_KEY_ID", "AKIANETLABTEST000000")
        .env("AWS_SECRET_ACCESS_KEY", "a-secret-of-this-test");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the path of the gateway program, which is next to the program under test; `cargo build` builds both.
fn fordway() -> String {
    Path::new(env!("CARGO_BIN_EXE_fordway-lab")).with_file_name("fordway").display().to_string()
}

#[test]
fn a_client_reads_from_a_server_through_the_link() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bucket")).unwrap();
    std::fs::write(dir.path().join("bucket/object"), vec![b'x'; 1_000_000]).unwrap();
    let stats = dir.path().join("stats.json");
    let fordway = fordway();
    let server = format!("'{fordway}' serve --listen $FORDWAY_NETLAB_SERVER:9000 {}", dir.path().display());
    let client = format!("'{fordway}' --endpoint http://$FORDWAY_NETLAB_SERVER:9000 cat s3://bucket/object");
    let options = ["--rtt", "40ms", "--rate", "100mbit", "--ready-port", "9000", "--server", &server];
    let started = Instant::now();
    let stats_path = stats.to_str().unwrap();
    let output = netlab(&[&options[..], &["--stats", stats_path]].concat(), &client).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(output.stdout.len(), 1_000_000);
    // The transmission takes 80 ms, and each of the two round trips takes 40 ms.
    assert!(started.elapsed() >= Duration::from_millis(160));
    assert!(said(&output).contains("fordway: link: to the server "), "{}", said(&output));
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    assert!(stats["link"]["back"]["bytes"].as_u64().unwrap() > 1_000_000, "{stats}");
    assert_eq!(stats["setup"]["rtt_ns"], 40_000_000);
    assert_eq!(stats["setup"]["queue_bytes"], 500_000, "what the line carries in a round trip");
    assert_eq!(stats["parameters"]["net/ipv4/tcp_rmem"], "4096 131072 67108864");
}

/// A connection is not idle while a client still receives the end of a response, although the gateway has sent all
/// bytes and has no request in progress.
#[test]
fn a_slow_link_takes_longer_than_an_idle_connection_may_last() {
    if !is_root() || fordway_needs::program("openssl").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bucket")).unwrap();
    std::fs::write(dir.path().join("bucket/object"), vec![b'x'; 1 << 20]).unwrap();
    let authority = SelfSignedCertificate::of(fordway_netlab::SERVER_ADDRESS);
    let (fordway, cert) = (fordway(), authority.file());
    let (cert, key, log) = (cert.display(), authority.key(), dir.path().join("log"));
    let server = format!(
        "'{fordway}' serve --listen $FORDWAY_NETLAB_SERVER:9000 --http3 --tls-cert {cert} --tls-key {} \
         --header-timeout 1s --access-log {} {}",
        key.display(),
        log.display(),
        dir.path().display(),
    );
    let client = format!("'{fordway}' --endpoint https://$FORDWAY_NETLAB_SERVER:9000 cat s3://bucket/object");
    // The transfer of the object takes 8.4 s, which is longer than the gateway waits for a client after closing an idle
    // connection.
    let options = ["--rtt", "10ms", "--rate", "1mbit", "--ready-port", "9000", "--server", &server];
    let mut command = netlab(&options, &client);
    command.env("AWS_CA_BUNDLE", authority.file()).env("FORDWAY_HTTP_VERSION", "3");
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 1 << 20), "{}", said(&output));
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(
        log.matches("GetObject").count(),
        1,
        "the client asks again for what it did not receive: {log}"
    );
}

/// A server that closes each connection after its response costs each request a second round trip, but no request waits
/// for the round trips of the others.
#[test]
fn connections_over_a_long_link_are_opened_at_the_same_time() {
    if !is_root() || fordway_needs::program("python3").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_fordway-lab");
    // With its default, HTTP/1.0, this server closes each connection.
    let server = format!(
        "exec python3 -m http.server 9000 --bind $FORDWAY_NETLAB_SERVER --directory {} 2>/dev/null",
        dir.path().display()
    );
    let client = format!(
        "'{program}' bench rest http://$FORDWAY_NETLAB_SERVER:9000/ --connections 8 --requests 80 --warm-up 0s \
         --json --force"
    );
    let options = ["--rtt", "50ms", "--ready-port", "9000", "--server", &server];
    let output = netlab(&options, &client).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["operations"], &summary["load"]["reconnects"]), (&80.into(), &72.into()));
    // One after the other, the connections of eight requests would take 400 ms.
    let median_ns = summary["latency"]["p50_ns"].as_u64().unwrap();
    assert!((95_000_000..250_000_000).contains(&median_ns), "{median_ns}");
}

#[test]
fn failures_are_told() {
    if !is_root() {
        return;
    }
    let client = netlab(&[], "exit 3").output().unwrap();
    assert_eq!(client.status.code(), Some(1));
    assert!(said(&client).contains("the client exited with exit status: 3"), "{}", said(&client));
    let server = netlab(&["--server", "exit 4", "--ready-port", "80"], "true").output().unwrap();
    assert_eq!(server.status.code(), Some(7));
    assert!(said(&server).contains("the server exited (exit status: 4)"), "{}", said(&server));
    let unwritable = netlab(&["--stats", "/nonexistent/stats.json"], "echo started").output().unwrap();
    assert_eq!(unwritable.status.code(), Some(3));
    assert_eq!(unwritable.stdout, b"", "the client was started");
    let usage = netlab(&["--rate", "fast"], "true").output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn a_user_is_told_what_to_do() {
    if !is_root() {
        return;
    }
    // Run a copy, because another user might have no access to the directory in which the binary was built.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("fordway");
    std::fs::copy(env!("CARGO_BIN_EXE_fordway-lab"), &copy).unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output =
        Command::new(copy).args(["netlab", "--", "true"]).uid(54_321).current_dir("/").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("`unshare --map-root-user`"), "{}", said(&output));
}

/// Returns whether any process of the machine is in this network namespace.
fn is_inhabited(namespace: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.flatten().any(|process| {
        std::fs::read_link(process.path().join("ns/net")).is_ok_and(|net| net.as_os_str() == namespace)
    })
}

/// Starts a lab whose server and client start processes. Stops the lab with `end`, and waits until no process remains
/// in the lab.
fn nothing_is_left_after(end: impl Fn(&mut Child)) {
    let show = "readlink /proc/self/ns/net";
    let server = format!("{show} >&2; setsid sleep 1000 & wait");
    let mut command = netlab(&["--rtt", "2ms", "--server", &server], &format!("{show}; sleep 1000; true"));
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let first_line = |from: &mut dyn Read| {
        let mut line = String::new();
        BufReader::new(from).read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let client = first_line(running.stdout.as_mut().unwrap());
    let server = first_line(running.stderr.as_mut().unwrap());
    assert_ne!(client, server);
    let namespaces = [client, server];
    assert!(namespaces.iter().all(|namespace| namespace.starts_with("net:[") && is_inhabited(namespace)));
    end(&mut running);
    let since = Instant::now();
    while namespaces.iter().any(|namespace| is_inhabited(namespace)) {
        assert!(since.elapsed() < Duration::from_secs(30), "a process remains in a namespace");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The namespaces never had names, so the kernel removed them when their last process exited.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(namespaces.iter().all(|namespace| !mounts.contains(namespace)));
}

#[test]
fn nothing_is_left_after_the_client_has_exited() {
    if !is_root() {
        return;
    }
    // A process in the background keeps no output open, so that only the lab can end it.
    let client = "readlink /proc/self/ns/net; setsid sleep 1000 < /dev/null > /dev/null 2>&1 & exit 0";
    let output = netlab(&["--rtt", "2ms"], client).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let namespace = String::from_utf8(output.stdout).unwrap();
    assert!(namespace.starts_with("net:[") && !is_inhabited(namespace.trim()), "{namespace}");
}

/// Instruments find their own counters under their process IDs.
#[test]
fn a_client_finds_itself_in_proc() {
    if !is_root() {
        return;
    }
    let output = netlab(&[], "exec grep ^Name: /proc/$$/status").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Name:\tgrep\n", "{}", said(&output));
}

#[test]
fn nothing_is_left_after_a_kill() {
    if is_root() {
        nothing_is_left_after(|running| {
            running.kill().unwrap();
            running.wait().unwrap();
        });
    }
}

#[test]
fn nothing_is_left_after_a_request_to_end() {
    if is_root() {
        nothing_is_left_after(|running| {
            fordway_sys::terminate(running.id()).unwrap();
            assert_eq!(running.wait().unwrap().code(), Some(130));
        });
    }
}
