//! Makes requests with a C program while the root directory is replaced, with little memory, and for a bucket in
//! another region.

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use harness::{Lane, Program, run};

#[test]
fn a_replaced_root_is_noticed() {
    let directory = tempfile::TempDir::new().unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir_all(root.join("bkt")).unwrap();
    let said = run(Program::compile("machine.c", &[]).command(&[]).arg("roots").arg(&root));
    let expected = [
        "put: OK",
        "put after the replacement: OK",
        "bucket other",
        "list after the replacement: OK",
        "test after the replacement: OK",
        "create after the replacement: OK",
        "bucket bkt",
        "list after the renaming: OK",
        "put after the renaming: OK",
        "list without a root: FailedToConnect",
        "create without a root: FailedToConnect",
        "put after the restoration: OK",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

/// A large part passes through the program's memory piece by piece, and fails for the same reasons as a small part.
#[test]
fn a_large_part_needs_little_memory() {
    const MIB: u64 = 100;
    let lane = Lane::http();
    std::fs::create_dir(lane.root.path().join("bkt")).unwrap();
    let program = Program::compile("machine.c", &[]);
    let mut command = program.command(&[]);
    command.args(["part", &lane.host, &lane.access_key, &lane.secret_key, "bkt", &MIB.to_string()]);
    let said = run(&mut command);
    let lines: Vec<_> = said.lines().collect();
    let used: u64 = lines[1].strip_prefix("mebibytes: ").unwrap().parse().unwrap();
    assert!(used < MIB / 2, "{used} MiB");
    assert_eq!(lines[0], "part: OK");
    let expected = [
        "aborted: AbortedByCallback",
        "short: ErrorIncompleteBody",
        "wrong MD5: ErrorBadDigest",
        "missing upload: ErrorNoSuchUpload",
        "complete: OK",
        &format!("get: OK, {} bytes, right", MIB << 20),
    ];
    assert_eq!(lines[2..], expected);
}

/// Returns the lines of the program for a bucket.
fn of_bucket(program: &Program, host: &str, keys: [&str; 2], bucket: &str) -> Vec<String> {
    let mut command: Command = program.command(&[]);
    let said = run(command.args(["bucket", host]).args(keys).arg(bucket));
    said.lines().map(str::to_owned).collect()
}

#[test]
fn a_bucket_has_a_location_and_a_url() {
    let (lane, program) = (Lane::http(), Program::compile("machine.c", &[]));
    std::fs::create_dir(lane.root.path().join("bkt")).unwrap();
    std::fs::write(lane.root.path().join("bkt/the-key"), "x").unwrap();
    let lines = of_bucket(&program, &lane.host, [&lane.access_key, &lane.secret_key], "bkt");
    assert_eq!((&*lines[0], &*lines[1], &*lines[3]), ("test: OK", "location: ", "post: NotSupported"));
    let address = lines[2].strip_prefix("url: http://").unwrap().strip_prefix(&*lane.host).unwrap();
    let mut connection = TcpStream::connect(&lane.host).unwrap();
    write!(connection, "GET {address} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", lane.host).unwrap();
    let mut listing = String::new();
    connection.read_to_string(&mut listing).unwrap();
    assert!(listing.contains("<Key>the-key</Key>"), "{listing}");

    let embedded = Lane::embedded();
    std::fs::create_dir(embedded.root.path().join("bkt")).unwrap();
    let lines = of_bucket(&program, &embedded.host, ["", ""], "bkt");
    assert_eq!(lines, ["test: OK", "location: ", "url: NotSupported", "post: NotSupported"]);
}

#[test]
fn the_location_is_the_region_of_the_bucket() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&connection).lines().map_while(Result::ok);
            lines.find(String::is_empty);
            let head = b"HTTP/1.1 200 OK\r\nx-amz-bucket-region: eu-west-1\r\ncontent-length: 0\r\n\r\n";
            let _ = connection.write_all(head);
        }
    });
    let lines = of_bucket(&Program::compile("machine.c", &[]), &host, ["key", "secret"], "bkt");
    assert_eq!(&lines[..2], ["test: OK", "location: eu-west-1"]);
}
