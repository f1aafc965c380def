//! Tests the properties of labs by measuring them with ordinary sockets and programs. Namespaces require root; without
//! root, these tests are skipped with a message.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fordway_netlab::{CLIENT_ADDRESS, LabConfig, LinkConfig, NetworkLab, NetworkNamespace, SERVER_ADDRESS};
use fordway_store::ErrorKind;

fn is_root() -> bool {
    fordway_needs::root("make network namespaces")
}

fn lab(link: LinkConfig) -> NetworkLab {
    let tcp_buffer_bytes = Some(64 << 20);
    NetworkLab::new(&LabConfig { link: Some(link), tcp_buffer_bytes, congestion_control: None }).unwrap()
}

fn gigabit(rtt_ms: u64) -> LinkConfig {
    LinkConfig {
        rtt: Duration::from_millis(rtt_ms),
        rate_bits_per_s: Some(1_000_000_000),
        queue_bytes: Some(64 << 20),
        ..LinkConfig::default()
    }
}

/// Returns the time, in milliseconds, of the fastest of 21 exchanges of one byte over TCP. Other processes on this
/// machine can only make exchanges slower.
fn echo_ms(lab: &NetworkLab) -> f64 {
    let listener = lab.server.run(|| TcpListener::bind((SERVER_ADDRESS, 0)).unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 {
            stream.write_all(&byte).unwrap();
        }
    });
    let mut stream = lab.client.run(|| TcpStream::connect((SERVER_ADDRESS, port)).unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    let once = |_| {
        let start = Instant::now();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        start.elapsed().as_secs_f64() * 1e3
    };
    let shortest = (0..21).map(once).fold(f64::INFINITY, f64::min);
    drop(stream);
    echo.join().unwrap();
    shortest
}

/// Returns whether at least one of 20 measurements is correct. Other processes on this machine may disturb many
/// measurements, but a bug affects all of them.
fn sooner_or_later<T>(measure: impl FnMut(u32) -> T, is_right: impl Fn(&T) -> bool) -> bool {
    (0..20).map(measure).any(|measured| is_right(&measured))
}

#[test]
fn a_round_trip_takes_what_was_asked_for() {
    if !is_root() {
        return;
    }
    for rtt_ms in [2, 30, 120] {
        let lab = lab(gigabit(rtt_ms));
        let over = |_| echo_ms(&lab) - rtt_ms as f64;
        let is_exact = sooner_or_later(over, |over| {
            assert!(*over >= 0.0, "{rtt_ms} ms was shortened by {} ms", -over);
            // On a busy virtual machine, longer sleeps overshoot by more.
            *over <= 0.5 + 0.02 * rtt_ms as f64
        });
        assert!(is_exact, "{rtt_ms} ms is always more");
    }
}

/// Downloads from the server for `seconds`. Returns two rates in bytes per second: over the whole time, and without the
/// first quarter of the time.
fn rates_of_a_download(lab: &NetworkLab, seconds: f64) -> (f64, f64) {
    let listener = lab.server.run(|| TcpListener::bind((SERVER_ADDRESS, 0)).unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let block = vec![7; 1 << 20];
        while stream.write_all(&block).is_ok() {}
    });
    let mut stream = lab.client.run(|| TcpStream::connect((SERVER_ADDRESS, port)).unwrap()).unwrap();
    let mut block = vec![0; 1 << 20];
    let (start, mut bytes) = (Instant::now(), 0u64);
    let mut measured_from = None;
    while start.elapsed().as_secs_f64() < seconds {
        bytes += stream.read(&mut block).unwrap() as u64;
        if measured_from.is_none() && start.elapsed().as_secs_f64() > seconds / 4.0 {
            measured_from = Some((Instant::now(), bytes));
        }
    }
    let (since, before) = measured_from.unwrap();
    let rates = (
        bytes as f64 / start.elapsed().as_secs_f64(),
        (bytes - before) as f64 / since.elapsed().as_secs_f64(),
    );
    drop(stream);
    server.join().unwrap();
    rates
}

#[test]
fn the_rate_is_held() {
    if !is_root() {
        return;
    }
    let lab = lab(gigabit(2));
    let floor = 125e6 * 1448.0 / 1500.0;
    let is_reached = sooner_or_later(
        |_| rates_of_a_download(&lab, 1.2),
        |(in_all, later)| {
            // A late reader finds bytes waiting, so a part of the download may exceed the line's rate. The rate of the
            // whole download cannot exceed the line's rate.
            assert!(*in_all < 1.01 * floor, "{in_all} bytes/s over a line of {floor}");
            *later > 0.98 * floor
        },
    );
    assert!(is_reached, "the line is never full");
    let stats = lab.stats().unwrap();
    assert!(stats.back.bytes > 100_000_000, "{stats:?}");
    assert!(stats.back.packets >= stats.back.bytes / 1500, "{stats:?}");
    assert_eq!((stats.back.lost, stats.back.refused, stats.there.refused), (0, 0, 0));
}

/// Sends `count` datagrams of 1,000 bytes to the server at once; returns how many arrived, and how long the sending
/// took.
fn datagrams(lab: &NetworkLab, count: u32) -> (u32, Duration) {
    let receiver = lab.server.run(|| UdpSocket::bind((SERVER_ADDRESS, 0)).unwrap()).unwrap();
    let to = receiver.local_addr().unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    // Make room for all datagrams, because datagrams dropped by a slow receiver would count as lost.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&receiver, 64 << 20).unwrap();
    let sender = lab.client.run(|| UdpSocket::bind((CLIENT_ADDRESS, 0)).unwrap()).unwrap();
    let start = Instant::now();
    for _ in 0..count {
        sender.send_to(&[7; 1_000], to).unwrap();
    }
    let sending = start.elapsed();
    let mut buf = [0; 2_000];
    ((0..count).take_while(|_| receiver.recv(&mut buf).is_ok()).count() as u32, sending)
}

#[test]
fn what_is_lost_is_counted() {
    if !is_root() {
        return;
    }
    let lose = |seed| {
        let lab = lab(LinkConfig { loss: 0.1, seed, ..LinkConfig::default() });
        let (arrived, _) = datagrams(&lab, 5_000);
        let stats = lab.stats().unwrap();
        assert_eq!(u64::from(arrived) + stats.there.lost, 5_000, "{stats:?}");
        // The tolerance is 5 standard deviations.
        assert!((394..=606).contains(&stats.there.lost), "{stats:?}");
        stats.there.lost
    };
    assert_eq!(lose(1), lose(1));
}

#[test]
fn what_the_queue_has_no_room_for_is_counted() {
    if !is_root() {
        return;
    }
    // A hundred datagrams wait for a line that needs 8 ms for each datagram.
    let link =
        LinkConfig { rate_bits_per_s: Some(1_000_000), queue_bytes: Some(20_000), ..LinkConfig::default() };
    let lab = lab(link);
    let (arrived, sending) = datagrams(&lab, 100);
    let stats = lab.stats().unwrap();
    assert_eq!(u64::from(arrived) + stats.there.dropped_by_queue, 100, "{stats:?}");
    // The queue has room for 19 datagrams, and the line carries one more datagram for every 8 ms of sending. The limits
    // tolerate a few datagrams more or less.
    let most = 24 + sending.as_millis() as u32 / 8;
    assert!((18..=most).contains(&arrived), "{arrived} arrived");
}

#[test]
fn without_a_link_there_is_ethernet() {
    if !is_root() {
        return;
    }
    let lab =
        NetworkLab::new(&LabConfig { tcp_buffer_bytes: Some(64 << 20), ..LabConfig::default() }).unwrap();
    assert!(sooner_or_later(|_| echo_ms(&lab), |ms| *ms < 2.0));
    assert_eq!(lab.stats(), None);
    let settings = lab.settings().unwrap();
    assert_eq!(settings["net/ipv4/tcp_rmem"], "4096 131072 67108864");
}

#[test]
fn what_cannot_be_is_said() {
    if !is_root() {
        return;
    }
    let refused = |config: LabConfig| NetworkLab::new(&config).expect_err("this cannot be");
    let of = |link: LinkConfig| refused(LabConfig { link: Some(link), ..LabConfig::default() });
    let loss = of(LinkConfig { loss: 1.5, ..LinkConfig::default() });
    assert_eq!(loss.kind(), ErrorKind::InvalidArgument);
    assert!(loss.to_string().contains("loss"), "{loss}");
    let congestion_control = Some("telepathy".to_owned());
    let unknown = refused(LabConfig { congestion_control, ..LabConfig::default() });
    assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
    assert!(unknown.to_string().contains("no congestion control telepathy"), "{unknown}");
    let namespace = NetworkNamespace::new().unwrap();
    let ip = namespace.ip("link set nothing up").expect_err("there is no such device");
    assert!(ip.to_string().contains("nothing"), "{ip}");
    let program = namespace.start(Command::new("no-such-program-at-all")).expect_err("there is none");
    assert!(program.to_string().contains("no-such-program-at-all"), "{program}");
}

/// By default, the kernel allows `reno` and one other algorithm. Any further algorithm must be allowed only while it is
/// being set.
#[test]
fn every_congestion_control_of_the_kernel_can_be_taken() {
    if !is_root() {
        return;
    }
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap();
    let allowed = read("tcp_allowed_congestion_control");
    for algorithm in read("tcp_available_congestion_control").split_ascii_whitespace() {
        let congestion_control = Some(algorithm.to_owned());
        match NetworkLab::new(&LabConfig { congestion_control, ..LabConfig::default() }) {
            Ok(lab) => assert_eq!(lab.settings().unwrap()["net/ipv4/tcp_congestion_control"], algorithm),
            // The list can be written only in the machine's initial network namespace.
            Err(refused) if refused.kind() == ErrorKind::NotImplemented => fordway_needs::skip(refused),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(read("tcp_allowed_congestion_control"), allowed, "the machine is as it was");
    }
}

#[test]
fn a_contained_program_takes_its_descendants_along() {
    if !is_root() {
        return;
    }
    let namespace = NetworkNamespace::new().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "setsid sleep 1000 & wait"]);
    let process = namespace.start_contained(shell).unwrap();
    let is_there = || fordway_sys::descendants(process.id()).unwrap().len() == 2;
    assert!(comes_true(is_there), "the shell starts its child");
    let family = fordway_sys::descendants(process.id()).unwrap();
    drop(process);
    assert!(comes_true(|| family.iter().all(|pid| fordway_sys::usage_of(*pid).is_err())));
}

#[test]
fn a_program_sees_the_namespace_and_no_other() {
    if !is_root() {
        return;
    }
    let namespace = NetworkNamespace::new().unwrap();
    let mut ip = Command::new("cat");
    ip.arg("/proc/self/net/dev").stdout(Stdio::piped());
    let inside = namespace.run(|| ip.output().unwrap()).unwrap();
    let devices = String::from_utf8(inside.stdout).unwrap();
    assert_eq!(devices.lines().filter(|line| line.contains(':')).count(), 1, "{devices}");
    let by_path = std::fs::File::open(namespace.path()).unwrap();
    std::thread::spawn(move || fordway_sys::enter_network_namespace(by_path).unwrap()).join().unwrap();
}

fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(30) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
