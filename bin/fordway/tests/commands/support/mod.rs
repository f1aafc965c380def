//! An in-memory store, a directory, and captured streams for running commands.

mod faulty;

use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use fordway_cli::CommandLine;
use fordway_command::{CommandContext, CommandExit, CommandOutputStreams, InterruptFlag, OutputFormat};
use fordway_http::replicas::MetalinkCache;
use fordway_http::vector::SessionOptions;
use fordway_http::{HttpVersion, TlsRoots};
use fordway_lanes::{Lane, Presigner};
use fordway_store::{
    Bucket, GetOptions, Key, ListQuery, MemoryStore, ObjectContent, Objects, OpenObject, PutOptions, Result,
    Store,
};
use tempfile::TempDir;

pub(crate) use faulty::{Fault, FaultyStore};

/// The exit code and the output of a command.
pub(crate) struct Ran {
    pub(crate) exit: CommandExit,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Fails the test with the command's output, unless the command ended with `exit`.
    #[track_caller]
    pub(crate) fn ended(self, exit: CommandExit) -> Self {
        assert_eq!(self.exit, exit, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        let ran = self.ended(CommandExit::Ok);
        assert_eq!(ran.stderr, "");
        ran
    }

    /// Returns the lines in byte order, because threads finish in any order.
    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }
}

pub(crate) struct Rig {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) memory: MemoryStore,
    pub(crate) dir: TempDir,
    pub(crate) interrupt: InterruptFlag,
    pub(crate) input: Vec<u8>,
    pub(crate) multipart_threshold_bytes: Option<u64>,
    pub(crate) presigner: Option<Arc<dyn Presigner>>,
    /// The options for connections to web servers; `None` for the options from the environment.
    pub(crate) web: Option<SessionOptions>,
    /// The cache of Metalinks.
    pub(crate) metalinks: Option<MetalinkCache>,
}

impl Rig {
    /// Creates a rig with the empty bucket `bkt` in memory.
    pub(crate) fn new() -> Self {
        Self::over(|memory| Arc::new(memory))
    }

    /// Like [`new`](Self::new), with a wrapper around the store.
    pub(crate) fn over(wrap: impl FnOnce(MemoryStore) -> Arc<dyn Store>) -> Self {
        let memory = MemoryStore::default();
        memory.create_bucket(&bucket("bkt")).unwrap();
        Rig {
            store: wrap(memory.clone()),
            memory,
            dir: TempDir::new().unwrap(),
            interrupt: InterruptFlag::default(),
            input: Vec::new(),
            multipart_threshold_bytes: None,
            presigner: None,
            web: None,
            metalinks: None,
        }
    }

    /// Uses HTTP version `http` with web servers, and trusts the certificate in this file, if any.
    pub(crate) fn over_http(self, http: HttpVersion, certificate: Option<PathBuf>) -> Self {
        let tls_roots = certificate.map_or(TlsRoots::System, TlsRoots::File);
        Rig { web: Some(SessionOptions { http, tls_roots, ..SessionOptions::default() }), ..self }
    }

    /// Runs `fordway WORDS`. Replaces `DIR` in each word with the path of the temporary directory.
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        let (stdout, stderr) = (Captured::default(), Captured::default());
        let exit = self.run_with_streams(words, stdout.clone(), stderr.clone());
        Ran { exit, stdout: stdout.text(), stderr: stderr.text() }
    }

    pub(crate) fn run_with_streams(
        &self,
        words: &[&str],
        stdout: impl Write + Send + 'static,
        stderr: Captured,
    ) -> CommandExit {
        let input = Cursor::new(self.input.clone());
        self.run_with_input(words, input, stdout, stderr)
    }

    pub(crate) fn run_with_input(
        &self,
        words: &[&str],
        input: impl Read + Send + 'static,
        stdout: impl Write + Send + 'static,
        stderr: Captured,
    ) -> CommandExit {
        let dir = self.dir.path().to_str().unwrap();
        let words = words.iter().map(|word| word.replace("DIR", dir));
        let cli = CommandLine::try_parse_from(["fordway".to_owned()].into_iter().chain(words)).unwrap();
        let format = if cli.global.json { OutputFormat::Json } else { OutputFormat::Text };
        let output = CommandOutputStreams::to(stdout, stderr, format, cli.global.quiet);
        if cli.global.only_show_errors {
            output.withhold_events();
        }
        let lane = Lane {
            presigner: self.presigner.clone(),
            multipart_threshold_bytes: self.multipart_threshold_bytes,
            ..Lane::local(Arc::clone(&self.store))
        };
        let mut context =
            CommandContext::new(move |_| Ok(lane.clone()), output, input, self.interrupt.clone());
        context.metalinks.clone_from(&self.metalinks);
        self.web.iter().for_each(|options| context.use_web_options(options.clone()));
        fordway_cli::run(cli, &context)
    }

    pub(crate) fn put(&self, key: &str, body: impl AsRef<[u8]>) {
        self.memory.put(&bucket("bkt"), &name(key), body.as_ref(), &PutOptions::default()).unwrap();
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let object = self.memory.get(&bucket("bkt"), &name(key), &GetOptions::default()).ok()?;
        Some(object.content.into_vec().unwrap())
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let page = self.memory.list(&bucket("bkt"), &ListQuery::default()).unwrap();
        page.entries.iter().map(|entry| entry.name().to_owned()).collect()
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    pub(crate) fn write(&self, relative: &str, body: impl AsRef<[u8]>) {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, body).unwrap();
    }

    /// Returns all files below the temporary directory, including hidden files.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(self.dir.path(), self.dir.path(), &mut found);
        found.sort();
        found
    }
}

fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) {
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => walk(root, &path, found),
            false => found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned()),
        }
    }
}

pub(crate) fn bucket(text: &str) -> Bucket {
    Bucket::new(text).unwrap()
}

pub(crate) fn name(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// All text that was written to a stream.
#[derive(Clone, Default)]
pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Captured {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pipe whose reader exits after this many bytes.
pub(crate) struct ShortPipe(pub(crate) usize);

impl Write for ShortPipe {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let taken = data.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A long input during which the user presses Ctrl-C. Counts the bytes that are read after Ctrl-C.
pub(crate) struct InterruptedInput {
    pub(crate) interrupt: InterruptFlag,
    pub(crate) bytes_before: usize,
    pub(crate) bytes_after: Arc<AtomicUsize>,
}

impl Read for InterruptedInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes_before > 0 {
            self.bytes_before = self.bytes_before.saturating_sub(buffer.len());
            return Ok(buffer.len());
        }
        self.interrupt.raise();
        let left = (50 << 20) - self.bytes_after.load(Ordering::Relaxed);
        let taken = buffer.len().min(left);
        self.bytes_after.fetch_add(taken, Ordering::Relaxed);
        Ok(taken)
    }
}

/// A presigner whose URLs contain the parameters of the request.
pub(crate) struct PlainPresigner;

impl Presigner for PlainPresigner {
    fn presign(
        &self,
        method: &'static str,
        bucket: &Bucket,
        key: &Key,
        lifetime: Duration,
    ) -> Result<String> {
        Ok(format!("https://host/{bucket}/{key}?method={method}&expires={}", lifetime.as_secs()))
    }
}

/// Changes an object's bytes, so that they no longer match its ETag.
pub(crate) fn corrupted(object: OpenObject) -> Result<OpenObject> {
    let mut body = object.content.into_vec()?;
    if let Some(first) = body.first_mut() {
        *first ^= 1;
    }
    Ok(OpenObject { content: ObjectContent::Bytes(body.into()), ..object })
}
