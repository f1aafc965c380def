//! `metalink`: creates and shows descriptions of files with replicas.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fordway_command::units::human_bytes;
use fordway_command::{CommandContext, CommandExit, IncompleteFileKind, file_error, shown_name};
use fordway_http::replicas::{check_replica, discover, is_metalink_name};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::file_hash::FileHasher;
use fordway_wire::metalink::{
    DOCUMENT_BYTES_MAX, FileHashAlgorithm, Metalink, MetalinkFile, MetalinkUrl, PRIORITY_LAST, PieceHashes,
};
use fordway_wire::uri::without_secrets;
use rustix::fs::OFlags;
use serde::Serialize;

use crate::args::{MetalinkArgs, MetalinkMakeArgs, MetalinkShowArgs, MetalinkSubcommand, ReplicaArgs};
use crate::replicas::ReplicaOpener;
use crate::transfer::{
    MadeDirectories, SourceFate, check_unchanged, finish_file, open_special, temporary_beside,
};
use crate::web;

/// The smallest default size of a piece, in bytes. Smaller pieces would add digests to the Metalink for little benefit.
const PIECE_BYTES_MIN: u64 = 256 << 10;
const PIECES_MAX: u64 = 4_096;
const READ_BYTES: usize = 256 << 10;
/// The number of bytes of a document for each piece: the digest, its element and a line feed.
const DOCUMENT_BYTES_PER_PIECE: u64 = 96;

pub(super) fn run(args: &MetalinkArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.action {
        MetalinkSubcommand::Make(args) => make(args, context),
        MetalinkSubcommand::Show(args) => show(args, context),
    }
    .map(|()| CommandExit::Ok)
}

/// The output of `metalink make` for one Metalink.
#[derive(Serialize)]
struct MetalinkMakeOutput {
    action: &'static str,
    to: String,
    files: usize,
}

impl fmt::Display for MetalinkMakeOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "made: {}", self.to)
    }
}

fn make(args: &MetalinkMakeArgs, context: &CommandContext) -> Result<()> {
    let mut replicas: Vec<UrlWithCountry> = Vec::new();
    for text in &args.replicas {
        let replica = UrlWithCountry::parse(text)?;
        if !replicas.iter().any(|known| known.url == replica.url) {
            replicas.push(replica);
        }
    }
    if let Some(place) = replicas.iter().find(|place| args.files.len() > 1 && !place.url.ends_with('/')) {
        let why = format!("{} is the URL of one file; for several files, end it with /", place.url);
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let mut files = Vec::new();
    for path in &args.files {
        context.interrupt.check()?;
        files.push(describe(path, &replicas, args.piece_size, context)?);
    }
    match &args.out {
        Some(path) if path.as_os_str() == "-" => context.output.data(document(files)?.as_bytes()),
        Some(path) => write(path, files, context),
        None => files.into_iter().zip(&args.files).try_for_each(|(file, path)| {
            let mut name = path.clone().into_os_string();
            name.push(".meta4");
            write(Path::new(&name), vec![file], context)
        }),
    }
}

/// Returns the document that describes `files`. Errors: `InvalidArgument` if a reader would refuse the document, or
/// would read different values from it, for example because a name contains a control character.
fn document(files: Vec<MetalinkFile>) -> Result<String> {
    let metalink = Metalink { files };
    let document = metalink.to_xml();
    match Metalink::parse(document.as_bytes())? == metalink {
        true => Ok(document),
        false => {
            let why =
                "a file name or a URL contains characters that a Metalink cannot contain; rename the file";
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
    }
}

fn write(path: &Path, files: Vec<MetalinkFile>, context: &CommandContext) -> Result<()> {
    let count = files.len();
    let document = document(files)?;
    let failed = |error| file_error("writing", path.display(), error);
    let fill = |file: &mut File| {
        file.write_all(document.as_bytes())?;
        finish_file(file, SourceFate::Kept)
    };
    match open_special(path, &context.output) {
        Some(opened) => opened.and_then(|mut file| fill(&mut file)).map_err(failed)?,
        None => {
            // An existing document is replaced only by a complete document. A link to it is kept.
            let path = path.canonicalize().unwrap_or(path.to_owned());
            let mut file = temporary_beside(&path, &MadeDirectories::default())?;
            let _removed_by_signals = context.interrupt.temporary(file.path(), IncompleteFileKind::Useless);
            fill(file.as_file_mut()).map_err(failed)?;
            file.persist(&path).map_err(|error| failed(error.error))?;
        }
    }
    let to = path.display().to_string();
    context.output.event(&MetalinkMakeOutput { action: "make", to, files: count })
}

/// The URL of a directory or file, with its country.
struct UrlWithCountry {
    url: String,
    location: Option<String>,
}

impl UrlWithCountry {
    /// Parses a URL, optionally followed by a country, such as `@ch`. Errors: `InvalidArgument`.
    fn parse(text: &str) -> Result<Self> {
        let is_country = |text: &str| text.len() == 2 && text.bytes().all(|b| b.is_ascii_alphabetic());
        let (url, location) = match text.rsplit_once('@') {
            Some((url, country)) if is_country(country) => (url, Some(country.to_ascii_lowercase())),
            _ => (text, None),
        };
        if !url.contains("://") || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
            let why = format!("{text:?} is not a URL; write https://HOST/PATH");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        check_replica(url)?;
        Ok(UrlWithCountry { url: url.to_owned(), location })
    }
}

fn describe(
    path: &Path,
    places: &[UrlWithCountry],
    piece_size: Option<u64>,
    context: &CommandContext,
) -> Result<MetalinkFile> {
    // XML cannot represent most control characters.
    let is_unfit = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.contains(is_unfit));
    let name = name.ok_or_else(|| {
        let why = format!("the name {:?} cannot be used in a Metalink", path.display().to_string());
        Error::new(ErrorKind::InvalidArgument, why)
    })?;
    let file = open_regular(path)?;
    let before = file.metadata().map_err(|error| file_error("reading", path.display(), error))?;
    let size = before.len();
    let length_bytes = piece_length(size, piece_size)?;
    let replicas = (1..).zip(places).map(|(priority, place)| MetalinkUrl {
        url: if place.url.ends_with('/') {
            format!("{}{}", place.url, encoded(name))
        } else {
            place.url.clone()
        },
        priority,
        location: place.location.clone(),
    });
    let mut described =
        MetalinkFile { name: name.to_owned(), replicas: replicas.collect(), ..MetalinkFile::default() };
    // The name and the addresses are checked before the file is read, because reading may take a long time.
    document(vec![described.clone()])?;
    add_digests(&mut described, (&file, path), length_bytes, context)?;
    check_unchanged(&path.display().to_string(), &before, &file)?;
    Ok(described)
}

/// Opens a regular file. Errors: `InvalidArgument` for any other kind of file, without waiting for the writer of a
/// pipe.
fn open_regular(path: &Path) -> Result<File> {
    let failed = |error| file_error("reading", path.display(), error);
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    match file.metadata().map_err(failed)?.is_file() {
        true => Ok(file),
        false => {
            let why = format!("{} is not a regular file", path.display());
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
    }
}

/// Returns the length of the pieces of a file of `size` bytes. Errors: `InvalidArgument` if `wanted` is 0, or so small
/// that readers would refuse the document because of its size.
fn piece_length(size: u64, wanted: Option<u64>) -> Result<u64> {
    // The length of a piece is a power of two that keeps the file within `PIECES_MAX` pieces.
    let enough = size.div_ceil(PIECES_MAX).next_power_of_two().max(PIECE_BYTES_MIN);
    let length = wanted.unwrap_or(enough);
    let most = DOCUMENT_BYTES_MAX as u64 / DOCUMENT_BYTES_PER_PIECE;
    if length == 0 || size.div_ceil(length) > most {
        let least = size.div_ceil(most).max(1);
        let why = format!(
            "pieces of {length} bytes are too small for {size} bytes; use --piece-size {least} or more"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(length)
}

/// Adds the size and the digests of the file and of its pieces of `length_bytes` bytes.
fn add_digests(
    described: &mut MetalinkFile,
    (mut file, path): (&File, &Path),
    length_bytes: u64,
    context: &CommandContext,
) -> Result<()> {
    let new = || FileHasher::new(FileHashAlgorithm::Sha256);
    let (mut whole, mut hex, mut total) = (new(), Vec::new(), 0);
    let (mut piece, mut piece_bytes) = (new(), 0);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        context.interrupt.check()?;
        let got = file.read(&mut buffer).map_err(|error| file_error("reading", path.display(), error))?;
        whole.update(&buffer[..got]);
        total += got as u64;
        let mut rest = &buffer[..got];
        while !rest.is_empty() {
            let room = usize::try_from(length_bytes - piece_bytes).unwrap_or(READ_BYTES).min(rest.len());
            piece.update(&rest[..room]);
            (rest, piece_bytes) = (&rest[room..], piece_bytes + room as u64);
            if piece_bytes == length_bytes {
                hex.push(std::mem::replace(&mut piece, new()).finish().hex);
                piece_bytes = 0;
            }
        }
        if got == 0 {
            break;
        }
    }
    // The last piece may be shorter.
    if piece_bytes > 0 {
        hex.push(piece.finish().hex);
    }
    described.size_bytes = Some(total);
    described.hashes = vec![whole.finish()];
    described.pieces =
        (!hex.is_empty()).then_some(PieceHashes { length_bytes, kind: FileHashAlgorithm::Sha256, hex });
    Ok(())
}

fn encoded(name: &str) -> String {
    let mut path = String::new();
    fordway_wire::uri::push_path(&mut path, name);
    path
}

/// The description of a file that `show` prints.
#[derive(Serialize)]
struct MetalinkFileOutput {
    name: String,
    size_bytes: Option<u64>,
    /// The digests by algorithm, in hexadecimal.
    hashes: std::collections::BTreeMap<&'static str, String>,
    pieces: Option<MetalinkPiecesOutput>,
    replicas: Vec<MetalinkReplicaOutput>,
    /// How the description was found, if it was requested from a server.
    found_by: Option<&'static str>,
}

#[derive(Serialize)]
struct MetalinkPiecesOutput {
    kind: &'static str,
    length_bytes: u64,
    count: usize,
}

#[derive(Serialize)]
struct MetalinkReplicaOutput {
    url: String,
    priority: u32,
    location: Option<String>,
}

impl MetalinkFileOutput {
    fn of(file: MetalinkFile, found_by: Option<&'static str>) -> Self {
        let mut replicas: Vec<_> = file.replicas.into_iter().collect();
        replicas.sort_by_key(|replica| replica.priority);
        let shown = |replica: MetalinkUrl| {
            let MetalinkUrl { url, priority, location } = replica;
            MetalinkReplicaOutput { url, priority, location }
        };
        let pieces = file.pieces.map(|pieces| MetalinkPiecesOutput {
            kind: pieces.kind.name(),
            length_bytes: pieces.length_bytes,
            count: pieces.hex.len(),
        });
        MetalinkFileOutput {
            name: file.name,
            size_bytes: file.size_bytes,
            hashes: file.hashes.into_iter().map(|hash| (hash.kind.name(), hash.hex)).collect(),
            pieces,
            replicas: replicas.into_iter().map(shown).collect(),
            found_by,
        }
    }
}

impl fmt::Display for MetalinkFileOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "(not named)" } else { &self.name };
        write!(f, "      File: {}", shown_name(name))?;
        if let Some(size) = self.size_bytes {
            write!(f, "\n      Size: {} ({size} bytes)", human_bytes(size))?;
        }
        for (kind, hex) in &self.hashes {
            write!(f, "\n{kind:>10}: {hex}")?;
        }
        if let Some(MetalinkPiecesOutput { kind, length_bytes, count }) = &self.pieces {
            write!(f, "\n    Pieces: {count} of {length_bytes} bytes, by {kind}")?;
        }
        if let Some(found_by) = self.found_by {
            write!(f, "\n  Found by: {found_by}")?;
        }
        for MetalinkReplicaOutput { url, priority, location } in &self.replicas {
            let rank = if *priority == PRIORITY_LAST { "last".to_owned() } else { priority.to_string() };
            let place = location.as_deref().map(|place| format!(" ({place})")).unwrap_or_default();
            write!(f, "\n{rank:>10}: {}{}", shown_name(url), shown_name(&place))?;
        }
        Ok(())
    }
}

fn show(args: &MetalinkShowArgs, context: &CommandContext) -> Result<()> {
    let replicas = ReplicaArgs::default();
    let places = ReplicaOpener::usual(&replicas, true);
    if web::is_address(&args.source) && !is_metalink_name(&args.source) {
        let found = discover(context.web()?, &web::http_url(&args.source), context.metalinks.as_ref())
            .ok_or_else(|| {
                let why =
                    format!("no replicas of {} are known; give a Metalink", without_secrets(&args.source));
                Error::new(ErrorKind::NoSuchKey, why)
            })?;
        return context.output.record(&MetalinkFileOutput::of(found.file, Some(found.from)));
    }
    let metalink = places.read_uncached(&args.source, context)?;
    metalink.files.into_iter().try_for_each(|file| context.output.record(&MetalinkFileOutput::of(file, None)))
}
