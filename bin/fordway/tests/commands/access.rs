//! Tests which credentials the program uses to sign requests, and which servers it trusts.

use std::path::Path;
use std::process::{Command, Output};

use fordway_testkit::foreign::{ExternalServerProcess, SelfSignedCertificate};
use fordway_testkit::hostile::{HostileServer, ResponseFaultScript};

use crate::binary::text;

/// Runs the program with keys in the environment, and with `config` as the content of the AWS configuration file.
fn fordway(dir: &Path, config: &str, words: &[&str]) -> Output {
    let file = dir.join("config");
    std::fs::write(&file, config).unwrap();
    Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(words)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("AWS_CONFIG_FILE", file)
        .env("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
        .env("AWS_SECRET_ACCESS_KEY", "S")
        .output()
        .unwrap()
}

#[test]
fn an_explicit_profile_goes_before_the_environment_and_both_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = HostileServer::start("content", ResponseFaultScript::honest());
    let endpoint = format!("http://{}", server.address());
    let profile = "[profile other]\naws_access_key_id = PROFILE\naws_secret_access_key = S\n";
    let role = "[profile other]\nrole_arn = arn:aws:iam::1:role/r\n";
    for (config, options, key) in [
        (profile, &[][..], Some("ENVIRONMENT")),
        (profile, &["--profile", "other"], Some("PROFILE")),
        (profile, &["--profile", "other", "--no-sign-request"], None),
        (role, &["--profile", "other", "--no-sign-request"], None),
        (role, &[], Some("ENVIRONMENT")),
    ] {
        let ran =
            fordway(dir.path(), config, &[&["cat", "s3://bkt/k", "--endpoint", &endpoint], options].concat());
        assert_eq!((text(&ran.stdout).as_str(), text(&ran.stderr).as_str()), ("content", ""), "{options:?}");
        let requests = server.requests();
        let signed = requests.last().unwrap().header("authorization");
        assert_eq!(signed.is_some(), key.is_some(), "{options:?}: {signed:?}");
        let credential = format!("Credential={}/", key.unwrap_or_default());
        assert!(signed.is_none_or(|header| header.contains(&credential)), "{options:?}: {signed:?}");
    }
    let before = server.requests().len();
    let ran =
        fordway(dir.path(), role, &["cat", "s3://bkt/k", "--endpoint", &endpoint, "--profile", "other"]);
    assert!(
        text(&ran.stderr).contains("has role_arn, which this client does not support"),
        "{}",
        text(&ran.stderr)
    );
    assert_eq!(server.requests().len(), before, "nothing was sent with other keys");
    // A profile with `role_arn` can still be used for an endpoint that needs no keys.
    let local = format!("{role}endpoint_url = {}\n", dir.path().display());
    let ran = fordway(dir.path(), &local, &["ls", "--profile", "other"]);
    assert_eq!(text(&ran.stderr), "");
}

/// A daemon may ignore SIGCHLD, and the programs that it starts inherit this setting. The kernel then discards the exit
/// statuses of child processes, but the program must still accept the keys from a credential process.
#[test]
fn a_credential_process_works_where_sigchld_is_ignored() {
    let server = HostileServer::start("content", ResponseFaultScript::honest());
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("keys");
    std::fs::write(&program, r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "SK"}"#).unwrap();
    let config = dir.path().join("config");
    let profile = format!("[profile p]\ncredential_process = cat {}\n", program.display());
    std::fs::write(&config, profile).unwrap();
    let ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let ran = Command::new("python3")
        .args(["-c", ignore, env!("CARGO_BIN_EXE_fordway")])
        .args(["cat", "s3://bkt/k", "--profile", "p", "--endpoint", &format!("http://{}", server.address())])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("AWS_CONFIG_FILE", &config)
        .output()
        .unwrap();
    assert_eq!((text(&ran.stdout).as_str(), text(&ran.stderr).as_str()), ("content", ""));
    let signed = server.requests()[0].header("authorization").map(str::to_owned);
    assert!(signed.is_some_and(|header| header.contains("Credential=AK/")));
}

#[test]
fn certificates_are_verified_unless_that_is_turned_off() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::nginx_with_tls(&authority) else { return };
    std::fs::write(server.files().join("f"), "content").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let url = server.url("f");
    for words in [&["cat", &url][..], &["read", &url, "--sequential", "1KiB"]] {
        let refused = fordway(dir.path(), "", words);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{words:?}");
        let ran = fordway(dir.path(), "", &[words, &["--no-verify-ssl"]].concat());
        let said = text(&ran.stderr);
        assert_eq!(text(&ran.stdout), "content", "{words:?}: {said}");
        assert!(said.contains("certificates are not verified"), "{said}");
    }
    // The server is not an S3 service, but `cat` needs only GET.
    std::fs::create_dir(server.files().join("bkt")).unwrap();
    std::fs::write(server.files().join("bkt/k"), "object").unwrap();
    let endpoint = server.url("");
    let words = ["cat", "s3://bkt/k", "--endpoint", &endpoint, "--no-sign-request"];
    assert!(!fordway(dir.path(), "", &words).status.success());
    let ran = fordway(dir.path(), "", &[&words[..], &["--no-verify-ssl"]].concat());
    assert_eq!(text(&ran.stdout), "object", "{}", text(&ran.stderr));
}
