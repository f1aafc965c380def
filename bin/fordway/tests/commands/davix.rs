//! Tests the binary under the names of davix's tools, against third-party servers. If Debian's davix is installed, the
//! tests compare our tools with Debian's tools.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fordway_testkit::foreign::{ExternalServerProcess, SelfSignedCertificate};
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use fordway_testkit::socks::{SocksBehaviour, SocksServer};
use tempfile::TempDir;

const TOOLS: [&str; 8] =
    ["davix-get", "davix-put", "davix-ls", "davix-rm", "davix-mkdir", "davix-mv", "davix-cp", "davix-http"];

/// The exit code and output of a tool.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    #[track_caller]
    fn with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that the tool succeeded without a message; returns its standard output.
    #[track_caller]
    fn ok(self) -> String {
        let ended = self.with(0);
        assert_eq!(ended.stderr, "");
        ended.stdout
    }

    /// Returns the lines in byte order, because servers list in any order.
    fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }
}

/// A directory with a link to the binary for each name, and with local files.
struct Rig {
    dir: TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        for tool in TOOLS {
            symlink(env!("CARGO_BIN_EXE_fordway"), dir.path().join("bin").join(tool)).unwrap();
        }
        let rig = Rig { dir };
        rig.write("f", "hello");
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs our tool in the directory. The first word is the name of the tool.
    fn run(&self, words: &[&str]) -> Ended {
        self.run_program(&self.path("bin").join(words[0]), &words[1..])
    }

    /// Runs a program in the directory, without the machine's settings.
    fn run_program(&self, program: &Path, words: &[&str]) -> Ended {
        let ran = Command::new(program)
            .args(words)
            .current_dir(self.dir.path())
            .env_clear()
            .envs([("HOME", "/nonexistent"), ("PATH", "/nonexistent"), ("TZ", "UTC")])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { code: ran.status.code().unwrap(), stdout: text(ran.stdout), stderr: text(ran.stderr) }
    }
}

fn dav(server: &ExternalServerProcess, path: &str) -> String {
    server.url(path).replacen("http", "dav", 1)
}

/// Returns the address of a port at which nothing listens.
fn nobody() -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("dav://127.0.0.1:{port}/f")
}

#[test]
fn files_and_collections_take_every_way() {
    let Some(server) = ExternalServerProcess::nginx_with_listings() else { return };
    let (rig, url) = (Rig::new(), |path: &str| dav(&server, path));
    assert_eq!(rig.run(&["davix-mkdir", &url("d/")]).ok(), "");
    assert_eq!(rig.run(&["davix-put", "f", &url("d/f")]).ok(), "");
    assert_eq!(rig.run(&["davix-get", &url("d/f")]).ok(), "hello");
    assert_eq!(rig.run(&["davix-get", &url("d/f"), "out"]).ok(), "");
    assert_eq!(rig.read("out"), "hello");
    assert_eq!(rig.run(&["davix-get", "-o", "named", &url("d/f")]).ok(), "");
    assert_eq!(rig.read("named"), "hello");
    assert_eq!(rig.run(&["davix-get", &url("d/f"), "/dev/null"]).ok(), "");
    assert_eq!(rig.run(&["davix-get", &server.url("d/f"), "/dev/stdout"]).ok(), "hello");
    assert_eq!(rig.run(&["davix-ls", &url("d")]).ok(), "f\n");
    assert_eq!(rig.run(&["davix-ls", &url("d/f")]).ok(), format!("{}\n", url("d/f")));
    assert_eq!(rig.run(&["davix-mv", &url("d/f"), &url("d/g")]).ok(), "");
    assert_eq!(rig.run(&["davix-mv", &url("d"), &url("e")]).ok(), "");
    let copied = rig.run(&["davix-cp", &url("e/g"), &url("e/h")]).with(0);
    assert!(copied.stdout.starts_with("copy: "), "{}", copied.stdout);
    assert_eq!(rig.run(&["davix-ls", &url("e")]).ok(), "g\nh\n");
    assert_eq!(rig.run(&["davix-rm", &url("e/g")]).ok(), "");
    assert_eq!(rig.run(&["davix-rm", &url("e/")]).ok(), "");
    assert_eq!(rig.run(&["davix-ls", &url("")]).ok(), "");
}

#[test]
fn trees_are_copied_listed_and_removed() {
    let Some(server) = ExternalServerProcess::nginx_with_listings() else { return };
    let (rig, url) = (Rig::new(), |path: &str| dav(&server, path));
    rig.write("tree/a b", "1");
    rig.write("tree/sub/c", "22");
    assert_eq!(rig.run(&["davix-put", "-r", "2", "tree", &url("up")]).ok(), "");
    assert_eq!(rig.run(&["davix-ls", "-r", "2", &url("up")]).ok(), "up/a%20b\nup/sub\nup/sub/c\n");
    assert_eq!(rig.run(&["davix-get", "-r", "2", &url("up"), "down"]).ok(), "");
    assert_eq!((rig.read("down/a b"), rig.read("down/sub/c")), ("1".to_owned(), "22".to_owned()));
    assert_eq!(rig.run(&["davix-get", "-r2", &url("up/")]).ok(), "");
    assert_eq!(rig.read("up/sub/c"), "22");
    assert_eq!(rig.run(&["davix-get", "-r2", &url("up/sub/c")]).ok(), "22", "a file is only read");
    let long = rig.run(&["davix-ls", "-l", &url("up/sub")]).ok();
    let columns: Vec<&str> = long.split_whitespace().collect();
    assert_eq!((columns.len(), columns[0], columns[2], columns[5]), (6, "-rwxrwxrwx", "2", "c"), "{long}");
    assert_eq!(rig.run(&["davix-rm", "-r", "2", &url("up")]).ok(), "");
    rig.run(&["davix-ls", &url("up")]).with(255);
}

#[test]
fn failures_have_the_codes_that_scripts_know() {
    let Some(server) = ExternalServerProcess::nginx_with_listings() else { return };
    let rig = Rig::new();
    let places = [
        ("HTTP status 404", dav(&server, "none")),
        ("HTTP status 403", dav(&server, "forbidden")),
        ("127.0.0.1", nobody()),
    ];
    for (said, url) in &places {
        for (words, code) in [
            (vec!["davix-get", url], 255),
            (vec!["davix-get", url, "got"], 255),
            (vec!["davix-ls", url], 255),
            (vec!["davix-ls", "-l", "-r", "2", url], 255),
            (vec!["davix-rm", url], 1),
            (vec!["davix-mv", url, url], 255),
            (vec!["davix-cp", url, url], 255),
        ] {
            let words = [&words[..], &["--retry", "0"]].concat();
            let ended = rig.run(&words).with(code);
            assert!(ended.stdout.is_empty() && !ended.stderr.is_empty(), "{words:?}: {ended:?}");
            let is_same = words.get(1) == words.get(2);
            assert!(ended.stderr.contains(said) || is_same, "{words:?}: {}", ended.stderr);
        }
    }
    for url in [&places[1].1, &places[2].1] {
        rig.run(&["davix-put", "f", url, "--retry", "0"]).with(255);
        rig.run(&["davix-mkdir", url, "--retry", "0"]).with(255);
    }
    assert!(!rig.path("got").exists(), "nothing is left of a failed download");
    // davix-http exits with code 0 after every response whose status is neither 401 nor 403.
    let missing = rig.run(&["davix-http", &places[0].1]).with(0);
    assert!(
        missing.stdout.contains("404 Not Found") && missing.stderr.contains("HTTP status 404"),
        "{missing:?}"
    );
    rig.run(&["davix-http", &places[1].1]).with(255);
    rig.run(&["davix-http", &places[2].1, "--retry", "0"]).with(255);
    rig.run(&["davix-put", "missing", &dav(&server, "x")]).with(255);
}

#[test]
fn requests_of_any_method_are_sent() {
    let Some(server) = ExternalServerProcess::nginx_with_listings() else { return };
    let rig = Rig::new();
    assert_eq!(rig.run(&["davix-http", "-X", "PUT", "--data", "abc", &server.url("f")]).ok(), "");
    assert_eq!(rig.run(&["davix-http", &server.url("f")]).ok(), "abc");
    assert_eq!(rig.run(&["davix-http", "-X", "HEAD", &server.url("f")]).ok(), "");
    assert_eq!(rig.run(&["davix-http", "-H", "Range: bytes=1-", &server.url("f")]).ok(), "bc");
    assert_eq!(rig.run(&["davix-http", &server.url("moved")]).ok(), "abc");
    let seen = rig.run(&["davix-http", "--redirection", "no", &server.url("moved")]).ok();
    assert!(seen.contains("302 Found"), "{seen}");
    rig.run(&["davix-http", "-o", "kept", &server.url("f")]).ok();
    assert_eq!(rig.read("kept"), "abc");
    let found = rig.run(&["davix-http", "--request", "PROPFIND", "-H", "Depth: 0", &dav(&server, "f")]).ok();
    assert!(found.contains("multistatus"), "{found}");
    rig.run(&["davix-http", "-X", "DELETE", &server.url("f")]).ok();
    assert!(!server.files().join("f").exists());
    let refused = rig.run(&["davix-http", "-X", "FROB", &server.url("f")]).with(255);
    assert!(refused.stderr.contains("use curl"), "{}", refused.stderr);
}

#[test]
fn credentials_of_the_command_line_are_sent() {
    let Some(server) = ExternalServerProcess::nginx_with_listings() else { return };
    let rig = Rig::new();
    for name in ["own", "login"] {
        std::fs::write(server.files().join(name), name).unwrap();
        rig.run(&["davix-get", &server.url(name)]).with(255);
    }
    let token = "Authorization: Bearer token";
    assert_eq!(rig.run(&["davix-get", "-H", token, &server.url("own")]).ok(), "own");
    assert_eq!(rig.run(&["davix-get", &server.url("own"), "o", "--header", token]).ok(), "");
    assert_eq!(rig.run(&["davix-put", "f", &dav(&server, "own"), "-H", token]).ok(), "");
    assert_eq!(
        rig.run(&["davix-ls", "-H", token, &dav(&server, "own")]).ok(),
        format!("{}\n", dav(&server, "own"))
    );
    rig.run(&["davix-get", "-H", "Authorization: Bearer other", &server.url("own")]).with(255);
    let login = ["--userlogin", "me", "--userpass", "secret"];
    let url = server.url("login");
    let words = [&["davix-get"][..], &login, &[&url]].concat();
    assert_eq!(rig.run(&words).ok(), "login");
    let half = rig.run(&["davix-get", "--userlogin", "me", &server.url("login")]).with(255);
    assert!(half.stderr.contains("--userpass"), "{}", half.stderr);
}

#[test]
fn options_are_accepted_or_refused_by_name() {
    let server = HostileServer::start("hello", ResponseFaultScript::honest());
    let (rig, url) = (Rig::new(), server.url());
    for option in [
        "--retry 3",
        "--retry-delay 1",
        "--conn-timeout 5",
        "--timeout 60",
        "--metalink no",
        "--metalink auto",
        "--redirection yes",
        "--redirect yes",
        "-P grid",
        "-k",
        "--insecure",
        "--verbose",
        "-v",
        "--accepted-retry 1",
        "--accepted-retry-delay 1",
        "-r 2",
        "--capath /",
        "--s3alternate",
        "--s3region here",
    ] {
        let words: Vec<&str> =
            ["davix-get"].into_iter().chain(option.split(' ')).chain([url.as_str()]).collect();
        assert_eq!(rig.run(&words).with(0).stdout, "hello", "{option}");
    }
    for option in ["--debug", "--trace=header"] {
        let ended = rig.run(&["davix-get", option, &url]).with(0);
        assert!(ended.stdout == "hello" && ended.stderr.contains("DEBUG"), "{option}: {ended:?}");
    }
    for option in [
        "--azurekey k",
        "--gcloud-creds f",
        "--ostoken t",
        "--osprojectid p",
        "--swiftaccount a",
        "--infile f",
        "--redirection no",
        "--module lcgdm",
        "--header nonsense",
        "--header Host:x",
        "--key k",
        "--proxy nowhere",
    ] {
        let words: Vec<&str> =
            ["davix-get"].into_iter().chain(option.split(' ')).chain([url.as_str()]).collect();
        let ended = rig.run(&words).with(255);
        let name = option.split(' ').next().unwrap();
        assert!(ended.stdout.is_empty() && ended.stderr.contains(name), "{option}: {ended:?}");
    }
    for tool in TOOLS {
        let unknown = rig.run(&[tool, "--nonsense", &url]).with(1);
        assert!(unknown.stderr.contains("--nonsense"), "{tool}: {}", unknown.stderr);
        rig.run(&[tool]).with(255);
        rig.run(&[tool, &url, &url, &url]).with(255);
        rig.run(&[tool, "--retry", "x", &url]).with(255);
        let help = rig.run(&[tool, "--help"]).ok();
        assert!(help.contains(&format!("Example:\n  {tool} ")) && help.contains("--s3accesskey"), "{help}");
        assert!(rig.run(&[tool, "-V"]).ok().starts_with(&format!("{tool} ")));
    }
    // Every tool accepts these options, so the command fails only because nothing is there.
    let none = nobody();
    for line in [
        "davix-mv -r 4 -X MOVE -o x --data y N N",
        "davix-mkdir -r 2 -X MKCOL -o x --data y N",
        "davix-rm -X DELETE -o x --request DELETE --data y N",
        "davix-cp -X COPY -o x --data y N N",
        "davix-http -r 2 N",
        "davix-ls --no-cap 1 N",
    ] {
        let words: Vec<&str> = line.split(' ').map(|word| if word == "N" { &none } else { word }).collect();
        let ended = rig.run(&words);
        assert!(ended.code != 0 && !ended.stderr.contains("Usage"), "{line}: {ended:?}");
    }
    let scheme = rig.run(&["davix-get", "swift://h/f"]).with(255);
    assert!(scheme.stderr.contains("a scheme other than"), "{}", scheme.stderr);
}

/// A server that fetches files from tape responds with status 202 and a message in the meantime.
#[test]
fn a_file_that_is_staged_is_waited_for() {
    let staged =
        |requests| ResponseFaultScript::honest().on_requests(0..requests, ResponseFault::Status(202, None));
    let (rig, server) = (Rig::new(), HostileServer::start("hello", staged(20)));
    let words = ["davix-get", "--accepted-retry-delay", "0", "--retry", "0"];
    let get = |more: &[&str]| rig.run(&[&words[..], more, &[&server.url()]].concat());
    assert_eq!(get(&[]).ok(), "hello");
    server.follow(staged(1_000));
    let ended = get(&["--accepted-retry", "2"]).with(255);
    assert!(ended.stdout.is_empty() && ended.stderr.contains("HTTP status 202"), "{ended:?}");
    rig.run(&["davix-get", "--accepted-retry", "0", "--retry", "0", &server.url(), "out"]).with(255);
    assert!(!rig.path("out").exists());
}

/// Starts a server that refuses requests without this token, and otherwise copies files of 5 bytes. Returns its URL,
/// and the heads of the requests so far.
fn guarded(token: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap());
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(&stream);
            let head: String = reader
                .by_ref()
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .fold(String::new(), |head, line| head + &line + "\n");
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let _ = reader.take(length.unwrap_or(0)).read_to_end(&mut Vec::new());
            let (status, body) = match head.split(' ').next().unwrap_or_default() {
                _ if !head.contains(&format!("\nAuthorization: {token}\n")) => (401, String::new()),
                "PROPFIND" => (
                    207,
                    "<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>/f</D:href><D:propstat><D:prop>\
                     <D:resourcetype/><D:getcontentlength>5</D:getcontentlength></D:prop><D:status>HTTP/1.1 200 OK</D:status>\
                     </D:propstat></D:response></D:multistatus>"
                        .to_owned(),
                ),
                "OPTIONS" => (200, String::new()),
                _ => (202, "success: Created\n".to_owned()),
            };
            seen.lock().unwrap().push(head);
            let text = format!(
                "HTTP/1.1 {status} Told\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = (&stream).write_all(text.as_bytes());
        }
    });
    (url, heads)
}

/// The usual two tokens of a third-party copy: each server gets only the token that is meant for it.
#[test]
fn a_copy_tells_each_server_its_own_token() {
    let rig = Rig::new();
    for (mode, theirs) in [("pull", true), ("push", true), ("pull", false), ("push", false)] {
        let (active, asked) = guarded("Bearer OURS");
        let (passive, other) = guarded("Bearer THEIRS");
        let (from, to) = if mode == "pull" { (&passive, &active) } else { (&active, &passive) };
        let ours = ["davix-cp", "--copy-mode", mode, "-H", "Authorization: Bearer OURS"];
        let passed = ["-H", "TransferHeaderAuthorization: Bearer THEIRS"];
        rig.run(&[&ours[..], &passed[..if theirs { 2 } else { 0 }], &[from, to]].concat()).with(0);
        let orders = asked.lock().unwrap().iter().filter(|head| head.starts_with("COPY ")).count();
        assert_eq!(orders, 1, "{mode}");
        for head in other.lock().unwrap().iter() {
            assert!(head.starts_with("PROPFIND ") && !head.contains("OURS"), "{mode}: {head}");
            assert_eq!(head.contains("\nAuthorization: Bearer THEIRS\n"), theirs, "{mode}: {head}");
            assert!(!head.contains("TransferHeaderAuthorization"), "{mode}: {head}");
        }
    }
    let ((active, asked), (passive, other)) = (guarded("Basic bWU6c2VjcmV0"), guarded("Bearer x"));
    rig.run(&["davix-cp", "--userlogin", "me", "--userpass", "secret", &active, &passive]).with(0);
    assert!(asked.lock().unwrap().iter().any(|head| head.starts_with("COPY ")));
    assert!(other.lock().unwrap().iter().all(|head| !head.contains("Authorization")), "a password");
}

#[test]
fn uploads_ask_first_unless_told_not_to() {
    let rig = Rig::new();
    rig.write("big", vec![b'x'; 200_000]);
    for (option, asks) in [(&[][..], true), (&["--no-100-continue"], false)] {
        let (url, asked) = guarded("Bearer t");
        let words = [&["davix-put", "-H", "Authorization: Bearer t"], option, &["big", &url]].concat();
        // The status 202 of this server does not mean that it has stored the file.
        rig.run(&words).with(255);
        let heads = asked.lock().unwrap();
        let put = heads.iter().find(|head| head.starts_with("PUT ")).unwrap();
        assert_eq!(put.contains("Expect: 100-continue"), asks, "{put}");
    }
}

#[test]
fn client_certificates_are_shown() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::nginx_with_tls(&authority) else { return };
    let rig = Rig::new();
    std::fs::write(server.files().join("cert"), "seen").unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["me".to_owned()]).unwrap();
    rig.write("cert.pem", made.cert.pem());
    rig.write("key.pem", made.signing_key.serialize_pem());
    rig.write("proxy.pem", made.cert.pem() + &made.signing_key.serialize_pem());
    // With umask 077, nobody else could read the file.
    std::fs::set_permissions(rig.path("proxy.pem"), Permissions::from_mode(0o644)).unwrap();
    let url = server.url("cert");
    let nothing = rig.run(&["davix-get", "-k", &url]).with(255);
    assert!(nothing.stderr.contains("HTTP status 403"), "{}", nothing.stderr);
    let open = rig.run(&["davix-get", "-k", "-E", "proxy.pem", &url]).with(255);
    assert!(open.stderr.contains("chmod 600"), "{}", open.stderr);
    for name in ["key.pem", "proxy.pem"] {
        std::fs::set_permissions(rig.path(name), Permissions::from_mode(0o600)).unwrap();
    }
    let trusted = authority.file().parent().unwrap().to_str().unwrap().to_owned();
    for words in [
        &["-k", "-E", "proxy.pem"][..],
        &["--capath", &trusted, "--cert", "proxy.pem"],
        &["-k", "--cert=cert.pem", "--key", "key.pem"],
        &["-P", "grid", "-k", "-E", "proxy.pem"],
    ] {
        assert_eq!(rig.run(&[&["davix-get", &url], words].concat()).ok(), "seen", "{words:?}");
    }
    rig.run(&["davix-get", "-k", "-E", "missing.pem", &url]).with(255);
}

/// `--copy-mode` selects the server that makes the copy. With `push`, the source writes to the destination. With
/// `pull`, the destination reads from the source.
#[test]
fn servers_copy_to_one_another() {
    let authority = SelfSignedCertificate::new();
    let start = || ExternalServerProcess::xrootd(&authority);
    let (Some(one), Some(two)) = (start(), start()) else { return };
    let rig = Rig::new();
    let trusted = authority.file().parent().unwrap().to_str().unwrap().to_owned();
    let run = |words: &[&str]| rig.run(&[words, &["--capath", &trusted]].concat());
    let from = dav(&one, "f");
    run(&["davix-put", "f", &from]).ok();
    for (mode, said) in
        [("push", "third-party copy, pushed"), ("pull", "third-party copy, pulled"), ("", "pushed")]
    {
        let to = dav(&two, &format!("of-{mode}"));
        let words =
            [&["davix-cp"][..], &["--copy-mode", mode][..if mode.is_empty() { 0 } else { 2 }]].concat();
        let told = run(&[&words[..], &[&from, &to]].concat()).ok();
        assert!(told.contains(said), "{told}");
        assert_eq!(run(&["davix-get", &to]).ok(), "hello");
    }
    let quiet = run(&["davix-cp", "--quiet", &from, &dav(&two, "quiet")]).ok();
    assert_eq!(quiet, "");
    run(&["davix-cp", &dav(&one, "none"), &dav(&two, "x")]).with(255);
}

#[test]
fn proxies_of_the_command_line_are_used() {
    let server = HostileServer::start("hello", ResponseFaultScript::honest());
    let (rig, proxy) = (Rig::new(), SocksServer::start(SocksBehaviour::default()));
    let option = format!("socks5://{}", proxy.address());
    assert_eq!(rig.run(&["davix-get", "-x", &option, &server.url()]).ok(), "hello");
    assert_eq!(proxy.asked().len(), 1, "{:?}", proxy.asked());
    rig.run(&["davix-get", "--retry", "0", "--proxy", "socks5://127.0.0.1:1", &server.url()]).with(255);
}

#[test]
fn settings_that_are_not_read_are_named() {
    let server = HostileServer::start("hello", ResponseFaultScript::honest());
    let rig = Rig::new();
    rig.write(".davixrc", "machine 127.0.0.1 login me");
    let ran = Command::new(rig.path("bin/davix-get"))
        .arg(server.url())
        .env_clear()
        .env("HOME", rig.dir.path())
        .output()
        .unwrap();
    assert_eq!(ran.stdout, b"hello");
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.starts_with("davix-get: ~/.davixrc is not read"), "{said}");
}

/// A gateway that is killed when the test ends.
struct Gateway {
    child: Child,
    address: String,
}

impl Gateway {
    fn start(root: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fordway"))
            .args(["serve", root.to_str().unwrap(), "--listen", "127.0.0.1:0"])
            .env_clear()
            .envs([("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "secret")])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once(" at http://").expect(&line).1.to_owned();
        Gateway { child, address }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const S3_KEYS: [&str; 5] = ["--s3accesskey", "me", "--s3secretkey", "secret", "--s3alternate"];

#[test]
fn objects_take_every_way() {
    let (rig, root) = (Rig::new(), tempfile::tempdir().unwrap());
    let gateway = Gateway::start(root.path());
    let run = |words: &[&str]| {
        let words: Vec<String> =
            words.iter().map(|word| word.replace("S3:", &format!("s3://{}", gateway.address))).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        rig.run(&[&words[..1], &S3_KEYS, &words[1..]].concat())
    };
    run(&["davix-mkdir", "S3:/bkt"]).ok();
    run(&["davix-put", "f", "S3:/bkt/d/f"]).ok();
    run(&["davix-put", "f", "S3:/bkt/d/a%20b"]).ok();
    assert!(root.path().join("bkt/d/a b").is_file());
    assert_eq!(run(&["davix-get", "S3:/bkt/d/f"]).ok(), "hello");
    run(&["davix-get", "S3:/bkt/d/f", "got"]).ok();
    assert_eq!(rig.read("got"), "hello");
    let http = format!("http://{}/bkt/d/f", gateway.address);
    assert_eq!(run(&["davix-get", &http]).ok(), "hello", "keys make an object of a plain URL");
    assert_eq!(run(&["davix-ls", "S3:/bkt"]).ok(), "d\n");
    assert_eq!(run(&["davix-ls", "S3:/bkt/d/"]).ok(), "a b\nf\n");
    assert_eq!(run(&["davix-ls", "-r", "2", "S3:/bkt/"]).ok(), "d/a b\nd/f\n");
    let long = run(&["davix-ls", "-l", "S3:/bkt/d/f"]).ok();
    assert!(long.starts_with("-rwxr-xr-x 0     5          20") && long.ends_with(" f\n"), "{long}");
    run(&["davix-mv", "S3:/bkt/d/f", "S3:/bkt/e/f"]).ok();
    run(&["davix-cp", "S3:/bkt/e/f", "S3:/bkt/e/g"]).with(0);
    run(&["davix-get", "-r", "2", "S3:/bkt/e", "down"]).ok();
    assert_eq!(rig.read("down/e/g"), "hello", "the path of the whole key, as in davix");
    run(&["davix-get", "-r", "2", "S3:/bkt/e/"]).ok();
    assert_eq!(rig.read("e/e/g"), "hello");
    run(&["davix-get", "-r", "2", "S3:/bkt/..", "down"]).with(255);
    rig.write("tree/x", "1");
    run(&["davix-put", "-r", "2", "tree", "S3:/bkt/up"]).ok();
    run(&["davix-rm", "S3:/bkt/e/f"]).ok();
    run(&["davix-rm", "-r", "2", "S3:/bkt/up"]).ok();
    assert_eq!(run(&["davix-ls", "-r", "2", "S3:/bkt"]).ok(), "d/a b\ne/g\n");
    run(&["davix-get", "S3:/bkt/none"]).with(255);
    run(&["davix-ls", "S3:/bkt/none"]).with(255);
    run(&["davix-ls", "S3:/none/"]).with(255);
    let url = format!("s3://{}/bkt/e/g", gateway.address);
    let wrong =
        rig.run(&["davix-get", "--s3accesskey", "me", "--s3secretkey", "x", "--s3alternate", &url]).with(255);
    assert!(wrong.stderr.contains("--s3accesskey"), "{}", wrong.stderr);
    let bare = rig.run(&["davix-get", "--s3accesskey", "me", "--s3secretkey", "secret", &url]).with(255);
    assert!(bare.stderr.contains("--s3alternate"), "{}", bare.stderr);
    run(&["davix-get", "-H", "X: y", "S3:/bkt/e/g"]).with(255);
}

#[test]
fn servers_are_verified_as_the_options_say() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::xrootd(&authority) else { return };
    let (rig, url) = (Rig::new(), dav(&server, "f"));
    let trusted = authority.file().parent().unwrap().to_str().unwrap().to_owned();
    let unknown = rig.run(&["davix-put", "f", &url, "--retry", "0"]).with(255);
    assert!(unknown.stderr.contains("no trusted authority"), "{}", unknown.stderr);
    rig.run(&["davix-put", "--capath", &trusted, "f", &url]).ok();
    assert_eq!(rig.run(&["davix-get", "-k", &url]).ok(), "hello");
    assert_eq!(rig.run(&["davix-ls", "--insecure", &dav(&server, "")]).ok(), "f\n");
}

/// Our tools and Debian's tools, which run the same command lines.
struct Pair {
    rig: Rig,
    theirs: PathBuf,
}

impl Pair {
    /// Returns `None` if Debian's tools are not installed.
    fn new() -> Option<Self> {
        let tool = fordway_needs::program_from("davix-get", "it is in Debian's package davix")?;
        Some(Pair { rig: Rig::new(), theirs: tool.parent().unwrap().to_owned() })
    }

    /// Runs command lines with both sets of tools, and compares the exit codes, standard output and the file `out`. For
    /// command lines that end in `!`, compares only the exit codes, because the messages differ. `word` replaces
    /// placeholders; its second argument is the name of a tree or bucket that only one set of tools changes.
    fn compare(&self, lines: &[&str], word: &dyn Fn(&str, &str) -> String) {
        for line in lines {
            let run = |directory: &Path, tree: &str| {
                let words: Vec<String> =
                    line.trim_end_matches(" !").split(' ').map(|w| word(w, tree)).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let _ = std::fs::remove_file(self.rig.path("out"));
                let ended = self.rig.run_program(&directory.join(words[0]), &words[1..]);
                (ended, std::fs::read_to_string(self.rig.path("out")).unwrap_or_default())
            };
            let (own, own_file) = run(&self.rig.path("bin"), "ours");
            let (other, other_file) = run(&self.theirs, "theirs");
            assert_eq!(own.code, other.code, "{line}\n{own:?}\n{other:?}");
            if !line.ends_with('!') {
                assert_eq!((own.sorted(), own_file), (other.sorted(), other_file), "{line}");
            }
        }
    }
}

/// Writes files with fixed modification times.
fn write_dated(root: &Path, names: &[&str]) {
    for name in names {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, name).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
    }
}

#[test]
fn outputs_and_codes_are_those_of_davix() {
    let Some(server) = ExternalServerProcess::nginx_with_listings() else { return };
    let Some(pair) = Pair::new() else { return };
    write_dated(&server.files(), &["list/a", "list/b%c", "list/sub/d e"]);
    for tree in ["ours", "theirs"] {
        std::fs::create_dir(server.files().join(tree)).unwrap();
        std::fs::set_permissions(server.files().join(tree), Permissions::from_mode(0o777)).unwrap();
    }
    let (base, nobody) = (dav(&server, ""), nobody());
    // In each line, U is replaced with the URL of a directory that only one set of tools changes, B with the URL of the
    // server, and N with an address where nothing listens.
    let lines = [
        "davix-ls B/list",
        "davix-ls B/list/",
        "davix-ls -l B/list/",
        "davix-ls --long-list B/list/",
        "davix-ls B/list/a",
        "davix-ls -l B/list/a",
        "davix-ls -r 2 B/list",
        "davix-ls -l -r2 B/list/",
        "davix-ls B/none",
        "davix-ls B/forbidden",
        "davix-ls N",
        "davix-get B/list/a",
        "davix-get B/list/sub/d%20e",
        "davix-get B/list/a out",
        "davix-get -o out B/list/a",
        "davix-get B/list/a /dev/null",
        "davix-get B/none",
        "davix-get B/forbidden",
        "davix-get N",
        "davix-get B/list/a /none/out",
        "davix-mkdir U/d/",
        "davix-mkdir U/d/",
        "davix-mkdir U/none/d/",
        "davix-put f U/d/f",
        "davix-put f U/none/f",
        "davix-put none U/d/f",
        "davix-put f B/forbidden",
        "davix-put f N",
        "davix-ls U/d",
        "davix-rm U/d/f",
        "davix-rm U/d/f",
        "davix-rm B/forbidden",
        "davix-rm N",
        "davix-ls U/d",
        "davix-rm U/d/",
        "davix-http -X PUT --data abc U/h",
        "davix-http U/h",
        "davix-http -X HEAD U/h",
        "davix-http U/none",
        "davix-http B/forbidden",
        "davix-http --redirection no B/moved",
        "davix-http -X PROPFIND -H Depth:0 B/list/a",
        "davix-http -o out U/h",
        "davix-http N",
        "davix-get !",
        "davix-get --nonsense B/list/a !",
        "davix-get --retry x B/list/a !",
        "davix-get --metalink x B/list/a !",
        "davix-get -P grid B/list/a",
        "davix-get --redirect yes B/list/a",
        "davix-get -k --conn-timeout 5 --timeout 9 --retry-delay 0 B/list/a",
        "davix-get B/list/a -H X:y",
        "davix-ls a b !",
        "davix-rm --nonsense x !",
    ];
    pair.compare(&lines, &|word, tree| match word.split_at(1) {
        ("B", rest) if rest.starts_with('/') => base.trim_end_matches('/').to_owned() + rest,
        ("U", rest) if rest.starts_with('/') => format!("{base}{tree}{rest}"),
        ("N", "") => nobody.clone(),
        _ => word.to_owned(),
    });
}

#[test]
fn objects_look_as_in_davix() {
    let Some(pair) = Pair::new() else { return };
    let root = tempfile::tempdir().unwrap();
    write_dated(root.path(), &["list/d/a b", "list/d/f", "list/top"]);
    let gateway = Gateway::start(root.path());
    let host = format!("s3://{}", gateway.address);
    // In each line, B is replaced with the URL of the service, and U with a bucket that only one set of tools changes.
    let lines = [
        "davix-ls B/list",
        "davix-ls B/list/",
        "davix-ls B/list/d",
        "davix-ls -l B/list/",
        "davix-ls -l B/list/d/f",
        "davix-ls B/list/d/f",
        "davix-ls -r 2 B/list/",
        "davix-ls --s3-listing semi B/list/d",
        "davix-ls B/list/none",
        "davix-ls B/none/",
        "davix-get B/list/d/f",
        "davix-get B/list/d/a%20b out",
        "davix-get B/list/none",
        "davix-mkdir U",
        "davix-mkdir U",
        "davix-mkdir U/new",
        "davix-put f U/x/f",
        "davix-put f U/g",
        "davix-put f B/none/f",
        "davix-ls -r 2 U/x",
        "davix-ls U/",
        "davix-rm U/g",
        "davix-rm U/g",
        "davix-ls U/",
    ];
    let region = ["--s3region", "us-east-1"];
    for line in lines {
        let (tool, rest) = line.split_once(' ').unwrap();
        let keyed = format!("{tool} {} {} {rest}", S3_KEYS.join(" "), region.join(" "));
        pair.compare(&[&keyed], &|word, tree| match word.split_at(1) {
            ("B", rest) if rest.starts_with('/') => format!("{host}{rest}"),
            ("U", rest) if rest.is_empty() || rest.starts_with('/') => format!("{host}/{tree}{rest}"),
            _ => word.to_owned(),
        });
    }
}

#[test]
fn encrypted_connections_are_treated_as_by_davix() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::xrootd(&authority) else { return };
    let Some(pair) = Pair::new() else { return };
    write_dated(&server.files(), &["list/a", "list/sub/b"]);
    let (base, trusted) = (dav(&server, ""), authority.file().parent().unwrap().to_owned());
    // In each line, B is replaced with the URL of the server, and C with the directory of certificates.
    let lines = [
        "davix-get --retry 0 B/list/a",
        "davix-get -k B/list/a",
        "davix-get --capath C B/list/a",
        "davix-ls --insecure B/list",
        "davix-ls -l -k B/list/a",
        "davix-ls -r 2 -k B/list",
        "davix-http -k B/list/a",
        "davix-get -k B/none",
        "davix-rm -k B/list/none",
    ];
    pair.compare(&lines, &|word, _| match word.split_at(1) {
        ("B", rest) if rest.starts_with('/') => base.trim_end_matches('/').to_owned() + rest,
        ("C", "") => trusted.to_str().unwrap().to_owned(),
        _ => word.to_owned(),
    });
}

/// The calls of XRootD's HTTP test (`tests/XRootD/http.sh` in XRootD's repository), in the same order. They use paths
/// with two slashes, a file in a collection that does not exist yet, and a listing of the root.
#[test]
fn the_calls_of_xrootds_own_test_work() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::xrootd(&authority) else { return };
    let rig = Rig::new();
    // XRootD's test uses plain HTTP; this server uses TLS.
    let host = server.url("").trim_end_matches('/').to_owned();
    let url = |path: &str| format!("{host}//t/{path}");
    let run = |words: &[&str]| rig.run(&[words, &["-k"]].concat());
    for number in ["01", "02", "03"] {
        rig.write(&format!("{number}.ref"), number.repeat(4000));
        run(&["davix-put", &format!("{number}.ref"), &url(&format!("{number}.ref"))]).ok();
    }
    rig.write("large", "blah".repeat(262_144));
    run(&["davix-put", "large", &url("large")]).ok();
    run(&["davix-put", "03.ref", &url("listings/01.ref")]).ok();
    let listed = run(&["davix-ls", &url("")]).ok();
    assert_eq!(listed, "01.ref\n02.ref\n03.ref\nlarge\nlistings\n");
    for number in ["01", "02", "03"] {
        run(&["davix-get", &url(&format!("{number}.ref")), &format!("{number}.dat")]).ok();
        assert_eq!(rig.read(&format!("{number}.dat")), rig.read(&format!("{number}.ref")));
    }
    assert_eq!(run(&["davix-ls", &format!("{host}/")]).ok(), "t\n");
    for number in ["01", "02", "03"] {
        run(&["davix-rm", &url(&format!("{number}.ref"))]).ok();
    }
    run(&["davix-put", "large", &url("large")]).ok();
    assert_eq!(run(&["davix-ls", &url("")]).ok(), "large\nlistings\n");
}

/// Reads a recursive long listing as Rucio's consistency checker does (`davs_scanner.py` in the checker's repository).
/// The checker expects exit code 0, six columns in each line, and a path that begins with a slash because the URL has
/// two slashes.
#[test]
fn a_catalogue_of_files_can_be_read_from_a_listing() {
    let Some(server) = ExternalServerProcess::nginx_with_listings() else { return };
    let rig = Rig::new();
    for (name, size) in [("root/a b", 1), ("root/x/y", 22), ("root/x/z/w", 333)] {
        let path = server.files().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x".repeat(size)).unwrap();
    }
    let listed = rig.run(&["davix-ls", "-l", "-r3", &dav(&server, "/root")]).ok();
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    for line in listed.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [kind, _links, size, _date, _time, path] = columns[..] else { panic!("{line}") };
        assert!(path.starts_with('/'), "{line}");
        match kind.starts_with('d') {
            true => directories.push(path.to_owned()),
            false => files.push((path.to_owned(), size.parse::<u64>().unwrap())),
        }
    }
    directories.sort();
    files.sort();
    assert_eq!(directories, ["/root/x", "/root/x/z"]);
    let expected = [("/root/a%20b", 1), ("/root/x/y", 22), ("/root/x/z/w", 333)];
    assert_eq!(files, expected.map(|(path, size)| (path.to_owned(), size)));
}
