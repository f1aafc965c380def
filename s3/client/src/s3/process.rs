//! Gets keys from the program that a profile names as its `credential_process`, and gets new keys before the current
//! keys expire.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{after_signal, wait_at_most};
use fordway_wire::date::parse_printed_iso8601;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::S3Credentials;
use super::profile::shell_words;
use super::renewal::{ExpiringKeys, RenewedKeys};

/// The maximum time for which the program may run.
pub(super) const RUN_MAX: Duration = Duration::from_secs(60);
/// The maximum size of the program's output.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// The time after which keys are fetched again if the expiry time that the program prints cannot be parsed.
const UNKNOWN_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// The maximum time until the exit of the program is noticed if its output stays open.
const EXIT_NOTICE: Duration = Duration::from_millis(20);

/// Runs the program, without a shell, and returns the keys that it prints. If the program prints the expiry time of the
/// keys, it runs again before that time. Errors: `InvalidArgument` if the program cannot be run, fails, or does not
/// print valid keys; `Timeout` if it does not exit within a minute; `Interrupted`.
pub(super) fn credentials(command: &str, profile: &str) -> Result<S3Credentials> {
    let process = CredentialProcess { source: format!("the credential_process of profile `{profile}`") };
    let words = shell_words(command).ok_or_else(|| process.failed("has a quote that is not closed"))?;
    let (keys, expires) = process.run(&words, RUN_MAX)?;
    let Some(expires) = expires else { return Ok(keys) };
    let first = ExpiringKeys { keys, fetched: SystemTime::now(), expires };
    let renewed = RenewedKeys::new(first, move |limit| {
        let (keys, expires) = process.run(&words, limit.min(RUN_MAX))?;
        let fetched = SystemTime::now();
        // Keys that never expire are fetched again after a day.
        let expires = expires.unwrap_or(fetched + Duration::from_secs(24 * 60 * 60));
        Ok(ExpiringKeys { keys, fetched, expires })
    });
    Ok(S3Credentials::Renewed(renewed))
}

struct CredentialProcess {
    /// A phrase that describes the process in messages.
    source: String,
}

impl CredentialProcess {
    fn failed(&self, why: &str) -> Error {
        Error::new(ErrorKind::InvalidArgument, format!("{} {why}", self.source))
    }

    fn run(&self, words: &[String], limit: Duration) -> Result<(S3Credentials, Option<SystemTime>)> {
        let (program, arguments) = words.split_first().ok_or_else(|| self.failed("is empty"))?;
        // The program does not inherit standard input, because standard input may be the content of an object.
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let (status, output) = RunningProcess::start(&mut command)
            .map_err(|error| self.failed("cannot be run").caused_by(error))?
            .finish(limit)
            .map_err(|why| why.error(self))?;
        if !status.success() {
            return Err(self.failed(&format!("failed ({status})")));
        }
        printed(&output, &self.source, SystemTime::now()).map_err(|why| self.failed(&why))
    }
}

/// Why a program was killed.
enum KillReason {
    TookTooLong(Duration),
    PrintedTooMuch,
    Interrupted(rustix::io::Errno),
    Io(std::io::Error),
}

impl KillReason {
    fn error(self, process: &CredentialProcess) -> Error {
        match self {
            KillReason::TookTooLong(limit) => {
                let source = &process.source;
                let seconds = limit.as_secs_f64();
                let why = format!(
                    "{source} did not end within {seconds:.0} s, and was killed; run its command by hand to see \
                     what it waits for"
                );
                Error::new(ErrorKind::Timeout, why)
            }
            KillReason::PrintedTooMuch => {
                process.failed(&format!("printed more than {} KiB, and was killed", OUTPUT_BYTES_MAX >> 10))
            }
            KillReason::Interrupted(errno) => Error::new(ErrorKind::Interrupted, "").caused_by(errno),
            KillReason::Io(error) => process.failed("cannot be read").caused_by(error),
        }
    }
}

/// A program that has started. Dropping this value kills the program.
struct RunningProcess {
    child: Child,
    has_own_group: bool,
    is_over: bool,
}

impl RunningProcess {
    /// Starts the program in a process group of its own, so that the programs that it starts can be killed with it. If
    /// there is a terminal, the program stays in the group of this process, because it may ask a question on the
    /// terminal. The kernel stops programs of other groups that read from the terminal.
    fn start(command: &mut Command) -> std::io::Result<Self> {
        let has_own_group = File::open("/dev/tty").is_err();
        if has_own_group {
            command.process_group(0);
        }
        Ok(RunningProcess { child: command.spawn()?, has_own_group, is_over: false })
    }

    /// Waits until the program exits, and returns its status and output. Another program that it has started may still
    /// keep the output open.
    fn finish(mut self, limit: Duration) -> Result<(ExitStatus, Vec<u8>), KillReason> {
        let end = Instant::now() + limit;
        let mut output = Vec::new();
        let mut is_open = true;
        loop {
            // Check the status before the last read: when the program has exited, everything that it has printed is in
            // the pipe.
            let status = match self.child.try_wait() {
                // This process ignores SIGCHLD or waits for all of its children, so the kernel no longer has the status
                // of the program, which has exited. The output then shows whether the program succeeded.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error()) => {
                    Some(ExitStatus::default())
                }
                waited => waited.map_err(KillReason::Io)?,
            };
            let left = end.saturating_duration_since(Instant::now());
            let wait = if status.is_some() { Duration::ZERO } else { EXIT_NOTICE.min(left) };
            is_open = is_open && self.read_output(&mut output, wait)?;
            if !is_open && status.is_none() {
                std::thread::sleep(wait_at_most(wait));
            }
            if let Some(status) = status {
                self.is_over = true;
                return Ok((status, output));
            }
            if left.is_zero() {
                return Err(KillReason::TookTooLong(limit));
            }
            after_signal().map_err(KillReason::Interrupted)?;
        }
    }

    /// Waits for output for at most `wait`, and reads all output that is available. Returns whether more output may
    /// follow.
    fn read_output(&mut self, output: &mut Vec<u8>, wait: Duration) -> Result<bool, KillReason> {
        let pipe = self.child.stdout.as_mut().expect("its output is a pipe");
        let mut wait = wait;
        loop {
            let timeout = Timespec::try_from(wait).expect("a short time");
            match poll(&mut [PollFd::new(&*pipe, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(true),
                Ok(_) => {}
                Err(errno) => return Err(KillReason::Io(errno.into())),
            }
            let mut chunk = [0; 4096];
            match pipe.read(&mut chunk).map_err(KillReason::Io)? {
                0 => return Ok(false),
                count => output.extend_from_slice(&chunk[..count]),
            }
            if output.len() > OUTPUT_BYTES_MAX {
                return Err(KillReason::PrintedTooMuch);
            }
            wait = Duration::ZERO;
        }
    }

    /// Kills the program, and all programs that it has started.
    fn kill(&mut self) {
        let id = self.child.id();
        let pid = |id: u32| i32::try_from(id).ok().and_then(Pid::from_raw);
        if self.has_own_group {
            let _ = pid(id).map(|group| kill_process_group(group, Signal::KILL));
        } else {
            let family = fordway_sys::descendants(id).unwrap_or_else(|_| vec![id]);
            for member in family.into_iter().filter_map(pid) {
                let _ = kill_process(member, Signal::KILL);
            }
        }
        let _ = self.child.wait();
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}

/// Parses the output of a program.
#[cfg(feature = "fuzzing")]
pub(super) fn printed_keys(output: &[u8]) -> Result<(S3Credentials, Option<SystemTime>), String> {
    printed(output, "the input", SystemTime::now())
}

/// Returns the keys, and the time at which they expire.
fn printed(
    output: &[u8],
    source: &str,
    now: SystemTime,
) -> Result<(S3Credentials, Option<SystemTime>), String> {
    // The output is never part of a message, because it contains the secret key.
    let printed: Value = serde_json::from_slice(output).map_err(|_| "did not print a JSON object")?;
    let text = |name: &str| printed[name].as_str().filter(|value| !value.is_empty()).map(str::to_owned);
    let required = |name: &str| text(name).ok_or_else(|| format!("printed no {name}"));
    if printed["Version"] != 1 {
        return Err("printed an unknown version of keys; only version 1 is known".to_owned());
    }
    let expires = expiration(&printed["Expiration"], source, now)?;
    let keys = S3Credentials::Keys {
        access_key: required("AccessKeyId")?,
        secret_key: required("SecretAccessKey")?,
        session_token: text("SessionToken"),
        source: source.to_owned(),
    };
    Ok((keys, expires))
}

/// Returns the time at which keys expire; `None` if the program states no expiration. Errors: the keys have expired.
fn expiration(stated: &Value, source: &str, now: SystemTime) -> Result<Option<SystemTime>, String> {
    let text = match stated {
        Value::Null => return Ok(None),
        Value::String(text) if text.is_empty() => return Ok(None),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match parse_printed_iso8601(&text) {
        Some(time) if time > now => Ok(Some(time)),
        Some(_) => Err(format!("printed keys that expired at {text}")),
        // The keys are used, because the service also checks the expiration. They must not be used forever.
        None => {
            let minutes = UNKNOWN_LIFETIME.as_secs() / 60;
            tracing::warn!(
                expiration = text,
                "{source} prints an expiration that cannot be parsed; its keys are fetched again within {minutes} min"
            );
            Ok(Some(now + UNKNOWN_LIFETIME))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn run(command: &str, limit: Duration) -> Result<S3Credentials> {
        let process = CredentialProcess { source: "the test".to_owned() };
        process.run(&shell_words(command).unwrap(), limit).map(|(keys, _)| keys)
    }

    #[test]
    fn keys_come_from_the_output() {
        let found = credentials(
            r#"printf '{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "%s", "SessionToken": "T"}' 'a b'"#,
            "p",
        );
        let S3Credentials::Keys { access_key, secret_key, session_token, source } = found.unwrap() else {
            panic!("keys")
        };
        assert_eq!(
            (access_key.as_str(), secret_key.as_str(), session_token.as_deref()),
            ("AK", "a b", Some("T"))
        );
        assert_eq!(source, "the credential_process of profile `p`");
    }

    #[test]
    fn failures_are_named_and_show_no_secret() {
        for (command, why) in [
            ("", "is empty"),
            ("'", "has a quote that is not closed"),
            ("/nonexistent/program", "cannot be run"),
            ("false", "failed (exit status: 1)"),
            ("echo SECRET", "did not print a JSON object"),
            ("echo {}", "printed an unknown version"),
            (r#"echo '{"Version": 1, "SecretAccessKey": "SECRET"}'"#, "printed no AccessKeyId"),
            ("yes SECRET", "printed more than 64 KiB, and was killed"),
        ] {
            let error = credentials(command, "p").unwrap_err();
            assert!(error.detail().contains(why), "{command}: {error}");
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        let files = tempfile::tempdir().unwrap();
        let pids = files.path().join("pids");
        let script = format!("sleep 1000 & echo $$ $! > {}; wait", pids.display());
        let begin = Instant::now();
        let error = run(&format!("sh -c '{script}'"), Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.detail().contains("did not end within 1 s, and was killed"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(30));
        let started = std::fs::read_to_string(pids).unwrap();
        assert_eq!(started.split_whitespace().count(), 2);
        let is_running = |pid: &str| {
            // A killed process may remain as a zombie until init has collected it.
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !state.is_empty() && !state.rsplit_once(") ").unwrap().1.starts_with('Z')
        };
        while started.split_whitespace().any(is_running) {
            assert!(begin.elapsed() < Duration::from_secs(30), "a process is still running");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_program_that_closes_its_output_is_waited_for() {
        let keys = r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "S"}"#;
        let command = format!("sh -c 'echo \"$0\"; exec >&-; sleep 0.2' '{keys}'");
        assert!(run(&command, RUN_MAX).is_ok());
    }

    /// A program may start an agent that keeps the output open.
    #[test]
    fn a_program_that_leaves_another_behind_is_not_waited_for() {
        let keys = r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "S"}"#;
        let command = format!("sh -c 'sleep 20 & echo \"$0\"' '{keys}'");
        let begin = Instant::now();
        assert!(run(&command, RUN_MAX).is_ok());
        assert!(begin.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn expired_keys_are_refused() {
        let now = UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        let keys = |end: &str| {
            let keys = r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "S", "Expiration": "END"}"#;
            printed(keys.replace("END", end).as_bytes(), "", now)
        };
        assert!(keys("2017-07-14T02:39:59Z").is_err());
        assert!(keys("2017-07-14T02:40:01Z").is_ok());
        assert!(keys("2017-07-14T02:40:01+00:00").is_ok());
        assert!(keys("2017-07-14 02:39:59+0000").is_err());
    }

    #[test]
    fn keys_with_an_expiration_that_cannot_be_parsed_are_not_kept() {
        let now = UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        let expires = |end: &str| {
            let keys = r#"{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "S", "Expiration": END}"#;
            printed(keys.replace("END", end).as_bytes(), "the test", now).unwrap().1
        };
        for end in [r#""in an hour""#, "1500003600", r#""2017-07-14T03:00:00""#] {
            assert_eq!(expires(end), Some(now + UNKNOWN_LIFETIME), "{end}");
        }
        assert_eq!([expires("null"), expires(r#""""#)], [None, None]);
    }

    #[test]
    fn keys_that_expire_are_fetched_again() {
        // The forms in which `date`, Python's `str(datetime)` and other programs print times.
        for form in ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%:z"] {
            fetch_again(form);
        }
    }

    /// Fetches keys from a program that prints their expiration in the given `form` of `date`.
    fn fetch_again(form: &str) {
        let files = tempfile::tempdir().unwrap();
        let calls = files.path().join("calls");
        std::fs::write(&calls, "").unwrap();
        let script = format!(
            r#"echo >> {0}; n=$(wc -l < {0}); end=$(date -u -d "+$((n * n * 2)) seconds" "+{1}"); printf "%s" "{{\"Version\": 1, \"AccessKeyId\": \"AK$n\", \"SecretAccessKey\": \"S\", \"Expiration\": \"$end\"}}""#,
            calls.display(),
            form
        );
        let program = files.path().join("keys.sh");
        std::fs::write(&program, script).unwrap();
        let credentials = credentials(&format!("sh {}", program.display()), "p").unwrap();
        let name = |of: &S3Credentials| of.described();
        assert!(name(&credentials.last()).contains("AK1"), "{credentials:?}");
        std::thread::sleep(Duration::from_secs(3));
        let current = credentials.current(RUN_MAX).unwrap();
        assert!(name(&current).contains("AK2"), "{form}: {}", name(&current));
        assert_eq!(std::fs::read_to_string(&calls).unwrap().lines().count(), 2);
    }
}
