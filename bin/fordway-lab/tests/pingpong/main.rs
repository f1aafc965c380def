//! Tests ping-pong as a user would run it: both ends, the benchmark over set-ups, and the clean-up after the benchmark
//! is killed. Namespaces require root. Without root, the tests that need namespaces are skipped with a message.

mod setups;
mod templates;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn is_root() -> bool {
    fordway_needs::root("make network namespaces")
}

fn fordway(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args(words);
    command
}

fn bench(words: &[&str]) -> Output {
    fordway(&[&["bench", "pingpong", "--json", "--seed", "1"], words].concat()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A running end of a ping-pong, which is stopped when the test ends.
struct End(Child, String);

impl End {
    fn start(words: &[&str]) -> Self {
        let mut command = fordway(&[&["pingpong"], words, &["--until-eof"]].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{line}");
        End(child, url)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Returns the head and the body of the response to GET `path`.
fn get(url: &str, path: &str) -> (String, Vec<u8>) {
    let mut socket = std::net::TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
    std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    (String::from_utf8_lossy(&answer[..end]).into_owned(), answer[end..].to_vec())
}

#[test]
fn ping_answers_with_what_pong_answers() {
    let pong = End::start(&["pong"]);
    let ping = End::start(&["ping", "--pong", &pong.1]);
    let sizes = [0, 1, 1_000, 3_000_000];
    for size in sizes {
        let (head, body) = get(&ping.1, &format!("/ping/{size}"));
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("fordway-retries: 0\r\n"), "{head}");
        assert_eq!(body.len(), size);
        assert_eq!(body, get(&pong.1, &format!("/pong/{size}")).1);
    }
    assert!(get(&ping.1, "/ping/x").0.starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_ping_without_a_pong_says_so_and_counts_its_tries() {
    let url = End::start(&["pong"]).1.clone();
    let ping = End::start(&["ping", "--pong", &url, "--retries", "3"]);
    let (head, body) = get(&ping.1, "/ping/10");
    assert!(head.starts_with("HTTP/1.1 502 ") && head.contains("fordway-retries: 3\r\n"), "{head}");
    assert!(String::from_utf8_lossy(&body).contains("ping received no response from pong"));
}

/// Options for a short run: one round with few messages.
const SHORT: [&str; 6] = ["--rounds", "1", "--points", "20", "--warm-up", "0s"];

#[test]
fn a_run_without_root_measures_the_loopback_device_and_any_pong() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("x.run");
    let pong = End::start(&["pong"]);
    let words = ["--setup", "loopback", "--set", "port=28180", "--set", "ping-port=28181", "--min", "0"];
    let more = ["--pong", &pong.1, "--out", run.to_str().unwrap()];
    let output = bench(&[&SHORT[..], &words, &more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = rows(&output);
    let phases: Vec<_> = rows.iter().map(|row| row["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["per-request c=4", "kept c=4"], "the connections are always named");
    for row in &rows {
        assert_eq!((row["operations"].as_u64(), row["errors"].as_u64()), (Some(40), Some(0)), "{row}");
        assert_eq!(row["load"]["header_sent_bytes_per_op"], Value::Null, "that was not measured");
    }
    assert_eq!(rows[0]["load"]["reconnects"], 40);
    assert!(rows[1]["load"]["reconnects"].as_u64().unwrap() <= 4);
    let info: Value = serde_json::from_slice(&std::fs::read(run.join("run.json")).unwrap()).unwrap();
    assert_eq!((info["kind"].as_str(), info["parameters"]["seed"].as_u64()), (Some("pingpong"), Some(1)));
}

/// Serves requests for any number of bytes, and after `answers` responses accepts requests without answering them.
fn a_pong_that_dies(answers: usize) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{{size}}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            reader.read_line(&mut line).unwrap();
            let path = line.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
            let bytes: usize = path.parse().unwrap_or(0);
            // The connection must stay open, and the whole request must be read.
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {}
            if number < answers {
                let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n");
                let answer = [head.as_bytes(), &vec![b'x'; bytes]].concat();
                std::io::Write::write_all(&mut stream, &answer).unwrap();
            } else {
                open.push(stream);
            }
        }
    });
    url
}

/// Each message of a set-up that no longer answers takes the whole time limit, so the run must end.
#[test]
fn a_run_ends_when_pong_stops_answering() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x.run");
    let (pong, out) = (a_pong_that_dies(250), out.to_str().unwrap());
    let words =
        ["--setup", "loopback", "--pong", &pong, "--connection-policy", "per-request", "--retries", "0"];
    let few = ["--points", "100", "--repetitions", "1", "--rounds", "50", "--warm-up", "0s", "--max", "1000"];
    let ports = ["--set", "port=28880", "--set", "ping-port=28881", "--timeout", "400ms", "--out", out];
    let since = std::time::Instant::now();
    let output = bench(&[&words[..], &few, &ports].concat());
    assert!(since.elapsed() < std::time::Duration::from_secs(60), "{:?}", since.elapsed());
    assert!(said(&output).contains("10 messages in a row were not answered"), "{}", said(&output));
    assert!(![Some(0), Some(1), Some(2)].contains(&output.status.code()), "{output:?}");
    let row = &rows(&output)[0];
    assert_eq!((row["operations"].as_u64(), row["errors"].as_u64()), (Some(200), Some(0)), "{row}");
    assert!(std::path::Path::new(out).join("run.json").exists());
}

#[test]
fn wrong_words_are_refused() {
    for (words, reason) in [
        (&["--setup", "moon"][..], "there is no set-up"),
        (&["--min", "5", "--max", "4"][..], "swap them"),
        (&["--setup", "bare,bare"][..], "two set-ups called"),
        (&["--concurrency", "4,4"][..], "contains a value twice"),
        (&["--cores", "4096"][..], "processors of this machine"),
        (&["--setup", "bare", "--pong", "http://h"][..], "--setup loopback"),
    ] {
        let output = bench(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{words:?}: {}", said(&output));
    }
}

#[test]
fn what_does_not_start_is_a_row_that_says_why() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ends =
        "[pong]\nin = \"pong\"\naddress = \"{pong-host}\"\n[ping]\nin = \"ping\"\naddress = \"127.0.0.1\"\n";
    let need = "[[needs]]\nprogram = \"no-such-program\"\npackage = \"no-package\"\n";
    let missing = file("missing.toml", &format!("description = \"d\"\n{need}{ends}"));
    let broken = file(
        "broken.toml",
        &format!("description = \"d\"\n[[steps]]\nin = \"ping\"\nip = \"link add x type y\"\n{ends}"),
    );
    let setups = format!("bare,{missing},{broken}");
    let output = bench(&[&SHORT[..], &["--setup", &setups]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("there is no program `no-such-program`; install no-package"),
        "{}",
        said(&output)
    );
    assert!(
        said(&output).contains("skipped broken: ") && said(&output).contains("step 1: "),
        "{}",
        said(&output)
    );
    let rows = rows(&output);
    assert!(rows.iter().all(|row| row["lane"] == "bare" && row["operations"] == 40), "{rows:?}");
    assert_eq!(rows.len(), 2);
}

/// The wire must also limit messages that are much shorter than what the line sends in a kernel tick.
#[test]
fn short_messages_are_not_faster_than_the_wire() {
    if !is_root() {
        return;
    }
    let line = 100e6 / 8.0;
    let words = ["--setup", "bare", "--rate", "100mbit", "--min", "34000", "--max", "68000", "--points", "2"];
    let output =
        bench(&[&words[..], &["--rounds", "1", "--repetitions", "50", "--concurrency", "1"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = rows(&output);
    assert!(!rows.is_empty());
    for row in rows {
        let number = |field: &Value| field.as_f64().unwrap();
        let rate = number(&row["bytes_per_s"]);
        assert!(rate < 1.1 * line, "{rate} bytes/s over a line of {line}: {row}");
        // The median, because other work on the machine can delay some of the messages by any time.
        let median_s = number(&row["latency"]["p50_ns"]) / 1e9;
        let usual = number(&row["bytes"]) / number(&row["operations"]) / median_s;
        assert!(usual > 0.3 * line, "{usual} bytes/s over a line of {line}: {row}");
    }
}

#[test]
fn set_ups_of_the_kernel_and_our_own_lose_no_message() {
    if !is_root() {
        return;
    }
    let output = bench(&[&SHORT[..], &["--setup", "bare,routed,vxlan,tunnel", "--rate", "1gbit"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = rows(&output);
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|row| row["operations"] == 40 && row["errors"] == 0), "{rows:?}");
}
