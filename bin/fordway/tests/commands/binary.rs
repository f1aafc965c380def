//! Tests the binary itself: help, completions, manual pages, and commands from PATH.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use fordway_testkit::hostile::{HostileServer, ResponseFaultScript};

pub(crate) fn fordway(words: &[&str], path: impl AsRef<OsStr>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(words)
        .env("PATH", path)
        .env_remove("AWS_ENDPOINT_URL")
        .env_remove("AWS_ENDPOINT_URL_S3")
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Writes a shell script from a separate process. If this process wrote the script, processes that other tests start at
/// the same time would inherit the open file. The kernel would then refuse to run the script ("text file busy").
fn script(path: &Path, lines: &str) {
    let write = "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod +x \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(path).arg(lines).status().unwrap().success());
}

const COMMANDS: [&str; 19] = [
    "ls",
    "cp",
    "cat",
    "read",
    "mv",
    "mkdir",
    "rm",
    "stat",
    "mb",
    "rb",
    "du",
    "sync",
    "presign",
    "node",
    "gc",
    "fsck",
    "doctor",
    "completions",
    "man",
];

#[test]
fn help_names_every_command_and_its_examples() {
    let top = fordway(&["--help"], "");
    assert!(top.status.success());
    for command in COMMANDS {
        assert!(text(&top.stdout).contains(&format!("\n  {command} ")), "{command}");
        let help = fordway(&[command, "--help"], "");
        assert!(help.status.success(), "{command}");
        assert!(text(&help.stdout).contains(&format!("\n  fordway {command}")), "{command}");
        assert_eq!(text(&fordway(&["help", command], "").stdout), text(&help.stdout), "help {command}");
    }
    assert!(text(&top.stdout).contains("Exit codes: 0 done"));
}

#[test]
fn wrong_options_are_usage_errors() {
    for words in [&[][..], &["cp", "one"], &["ls", "--nonsense"], &["cat", "s3://b/k", "--range", "9-1"]] {
        let ran = fordway(words, "");
        assert_eq!(ran.status.code(), Some(2), "{words:?}");
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn sizes_for_people_have_the_letter_of_the_system_tools() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bkt")).unwrap();
    std::fs::write(dir.path().join("bkt/k"), vec![0; 2048]).unwrap();
    let endpoint = dir.path().to_str().unwrap();
    for words in [["ls", "s3://bkt", "-h"], ["ls", "s3://bkt", "-H"], ["du", "s3://bkt", "-h"]] {
        let ran = fordway(&[&["--endpoint", endpoint][..], &words].concat(), "");
        assert!(
            text(&ran.stdout).contains("2.0 KiB"),
            "{words:?}: {}{}",
            text(&ran.stdout),
            text(&ran.stderr)
        );
    }
    for command in ["ls", "du", "cp"] {
        let help = text(&fordway(&[command, "--help"], "").stdout);
        assert!(help.contains(&format!("Usage: fordway {command}")), "{help}");
    }
    assert!(text(&fordway(&["cp", "-h"], "").stdout).contains("Usage: fordway cp"));
}

/// The library that writes help texts replaces `{n}` with a line break, so the help texts use other words in braces.
#[test]
fn help_shows_what_stands_for_a_number() {
    let help = text(&fordway(&["bench", "rest", "--help"], "").stdout);
    assert!(help.contains("/bucket/o-{number}' --method PUT") && help.contains("{size}"), "{help}");
}

#[test]
fn usage_errors_say_what_is_wanted() {
    let says = [
        (&["serve", ".", "--listen", "localhost:9000"][..], "such as 127.0.0.1:9000"),
        (&["node", ".", "--tcp", "9000"], "such as 127.0.0.1:9000"),
        (
            &["cp", "f", "s3://b/k", "--storage-class", "GLACIER"],
            "only the storage class STANDARD is supported",
        ),
        (&["sync", "d", "s3://b/k", "--acl", "public-read"], "only `private` is supported"),
        (&["sync", "d", "s3://b/k", "--sse", "AES256"], "encryption by the server is not supported"),
        (&["cp", "--debug", "f", "s3://b/k"], "FORDWAY_LOG=debug"),
        (&["mv", "--validate-same-s3-paths", "s3://a/k", "s3://b/k"], "access points are not resolved"),
        (&["ls", "--bucket-name-prefix", "x"], "`grep`"),
        (&["ls", "s3://b", "--output", "json"], "use --json"),
        (&["read", "s3://b/k"], "<--ranges <FILE>|--sequential <SIZE>>"),
        (&["read", "s3://b/k", "--sequential", "0"], "a block must have at least one byte"),
    ];
    for (words, wanted) in says {
        let ran = fordway(words, "");
        assert_eq!(ran.status.code(), Some(2), "{words:?}");
        assert!(text(&ran.stderr).contains(wanted), "{}", text(&ran.stderr));
    }
}

/// Without an endpoint, the request is sent to AWS, and the message reports that no endpoint is set. If there are no
/// keys either, the request is not retried.
#[test]
fn without_an_endpoint_the_message_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
    // The proxy does not exist, so that no request reaches AWS.
    command.args(["ls"]).env_clear().env("HOME", "/nonexistent").env("https_proxy", "http://127.0.0.1:1");
    let ran = command.output().unwrap();
    let said = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(7), "{said}");
    assert!(said.contains("no endpoint is set, so the request went to AWS"), "{said}");
    assert!(said.contains("--endpoint or AWS_ENDPOINT_URL") && !said.contains(" tries"), "{said}");
}

#[test]
fn settings_in_json_are_one_object() {
    let ran = fordway(&["--json", "--endpoint", "http://h:1", "--no-sign-request", "env"], "");
    let object: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("the output is JSON");
    assert_eq!(object["endpoint_url"], "http://h:1");
    assert!(object["secret_access_key"].is_null(), "{object}");
    assert!(object["text"].as_str().unwrap().contains("export AWS_ENDPOINT_URL='http://h:1'"), "{object}");
}

#[test]
fn version_says_commit_and_features() {
    let short = text(&fordway(&["-V"], "").stdout);
    assert_eq!(short, concat!("fordway ", env!("CARGO_PKG_VERSION"), "\n"));
    let commit =
        option_env!("FORDWAY_COMMIT").map_or("development build".to_owned(), |it| format!("commit {it}"));
    let features = if cfg!(feature = "http3") { "http3" } else { "none" };
    let long = text(&fordway(&["--version"], "").stdout);
    assert_eq!(long, format!("{} ({commit}, features: {features})\n", short.trim_end()));
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = fordway(&["completions", shell], "");
        assert!(ran.status.success(), "{shell}");
        let script = text(&ran.stdout);
        assert!(script.contains("presign") && script.contains("multipart-threshold"), "{shell}");
        assert!(!script.contains("sse-kms"), "{shell}: options that are refused");
    }
}

/// In bash, fordway completes the options of the measuring commands, and the names of the commands in the Python
/// package.
#[test]
fn completions_include_other_programs() {
    let completed = |words: &[&str]| {
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let script = format!(
            "source <(\"$0\" completions bash); COMP_WORDS=({}); COMP_CWORD={}; \
             _fordway_or_lab fordway '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1
        );
        let ran = Command::new("bash").args(["-c", &script, env!("CARGO_BIN_EXE_fordway")]).output().unwrap();
        text(&ran.stdout)
    };
    let options = completed(&["fordway", "--endpoint", "x", "--json", "compare", "--ro"]);
    assert_eq!(options, "--root\n--rounds\n");
    assert!(completed(&["fordway", "bench", "re"]).contains("rest\n"));
    assert_eq!(completed(&["fordway", "mo"]), "model\n");
    assert!(completed(&["fordway", "cp", "--mul"]).contains("--multipart-threshold"));
    for (name, _) in fordway_command::external::PYTHON_COMMANDS {
        for shell in ["zsh", "fish"] {
            let script = text(&fordway(&["completions", shell], "").stdout);
            assert!(
                script.contains(&format!("{name}:")) || script.contains(&format!("-a \"{name}\"")),
                "{name}"
            );
        }
    }
}

#[test]
fn help_is_that_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let overview = text(&fordway(&["--help"], "").stdout);
    assert!(overview.contains("\nPython package:\n  run "), "{overview}");
    for name in ["run", "report", "model", "diff"] {
        assert!(overview.contains(&format!("\n  {name} ")), "{overview}");
        script(&dir.path().join(format!("fordway-{name}")), &format!("echo \"{name} $*\""));
        let ran = fordway(&["help", name], dir.path());
        assert_eq!(text(&ran.stdout), format!("{name} --help\n"), "{}", text(&ran.stderr));
    }
}

#[test]
fn manual_pages() {
    let front = fordway(&["man"], "");
    assert!(front.status.success() && text(&front.stdout).contains(".TH fordway 1"));
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    let ran = fordway(&["man", "--out", out.to_str().unwrap()], "");
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    for command in COMMANDS {
        let page = std::fs::read_to_string(out.join(format!("fordway-{command}.1"))).unwrap();
        // Only `fordway-lab` defines the options of its commands.
        let refers = page.contains(&format!("\\fBfordway\\-lab\\-{command}\\fR(1)"));
        assert_eq!(refers, command == "doctor", "{command}");
        assert!(refers != page.contains("Examples:"), "{command}");
        assert!(!refers || !page.contains("GLOBAL OPTIONS"), "{command}");
    }
    assert!(std::fs::read_to_string(out.join("fordway.1")).unwrap().contains(".TH fordway 1"));
}

#[test]
fn other_names_run_from_path() {
    let dir = tempfile::tempdir().unwrap();
    script(&dir.path().join("fordway-hello"), "echo \"hello $*\"\nexit 9");
    let ran = fordway(&["hello", "a", "--json", "b"], dir.path());
    assert_eq!((text(&ran.stdout).as_str(), ran.status.code()), ("hello a --json b\n", Some(9)));

    let ran = fordway(&["nothing"], dir.path());
    assert_eq!(ran.status.code(), Some(2));
    assert!(
        text(&ran.stderr).contains("there is no fordway-nothing next to fordway or in PATH"),
        "{}",
        text(&ran.stderr)
    );
    for command in ["report", "model"] {
        let ran = fordway(&[command], dir.path());
        assert_eq!(ran.status.code(), Some(2));
        assert!(
            text(&ran.stderr).contains("is part of the Python package; install that"),
            "{}",
            text(&ran.stderr)
        );
    }
}

/// The directory of an inactive Python environment is not in PATH. A program in this directory must still find the
/// other programs in the directory.
#[test]
fn other_names_run_from_the_directory_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("fordway");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_fordway")).arg(&program).status().unwrap();
    assert!(copied.success());
    script(&dir.path().join("fordway-hello"), "echo hello");
    let ran = std::process::Command::new(&program).arg("hello").env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(text(&ran.stdout), "hello\n", "{}", text(&ran.stderr));
}

#[test]
fn local_work_needs_no_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "abc").unwrap();
    let ran = fordway(&["ls", dir.path().to_str().unwrap()], "");
    assert!(ran.status.success() && text(&ran.stdout).ends_with("         3 file\n"));
    let ran = fordway(&["ls", "--endpoint", "unix:///no/such/socket"], "");
    assert_eq!(ran.status.code(), Some(7));
    assert!(text(&ran.stderr).contains("there is no socket /no/such/socket"), "{}", text(&ran.stderr));
    let ran = fordway(&["ls", "--endpoint", "nonsense"], "");
    assert_eq!(ran.status.code(), Some(2));
}

/// The metadata of an object must be requested once, not for every call.
#[test]
fn ranges_of_an_object_by_http_cost_one_head() {
    let content: Vec<u8> = (0..90_000_u32).map(|number| number as u8).collect();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    std::fs::write(&list, "7 9\n50000 3\n80000 100\n").unwrap();
    let endpoint = format!("http://{}", server.address());
    let common = ["--endpoint", &endpoint, "read", "s3://bkt/key"];
    let ranges = ["--ranges", list.to_str().unwrap(), "--per-call", "1", "--window", "2"];
    let read = fordway(&[&common[..], &ranges].concat(), "");
    assert_eq!(text(&read.stderr), "");
    assert!(read.stdout == [&content[7..16], &content[50_000..50_003], &content[80_000..80_100]].concat());
    let methods = || server.requests().iter().map(|request| request.method.clone()).collect::<Vec<_>>();
    assert_eq!(methods(), ["HEAD", "GET", "GET", "GET"]);
    let read = fordway(&[&common[..], &["--sequential", "1KiB"]].concat(), "");
    assert!(read.stdout == content, "{}", text(&read.stderr));
}
