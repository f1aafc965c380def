//! `metalink`: creates and shows descriptions of files with replicas.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use fordway_command::units::human_bytes;
use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_http::replicas::{discover, is_metalink_name};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::file_hash::FileHasher;
use fordway_wire::metalink::{
    FileHash, FileHashAlgorithm, Metalink, MetalinkFile, MetalinkUrl, PRIORITY_LAST, PieceHashes,
};
use fordway_wire::uri::without_secrets;
use serde::Serialize;

use crate::args::{MetalinkArgs, MetalinkMakeArgs, MetalinkShowArgs, MetalinkSubcommand, ReplicaArgs};
use crate::replicas::ReplicaOpener;
use crate::web;

/// The smallest default size of a piece, in bytes. Smaller pieces would add digests to the Metalink for little benefit.
const PIECE_BYTES_MIN: u64 = 256 << 10;
const PIECES_MAX: u64 = 4_096;
const READ_BYTES: usize = 256 << 10;

pub(super) fn run(args: &MetalinkArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.action {
        MetalinkSubcommand::Make(args) => make(args, context),
        MetalinkSubcommand::Show(args) => show(args, context),
    }
    .map(|()| CommandExit::Ok)
}

/// The output of `make`.
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
    let replicas: Vec<UrlWithCountry> =
        args.replicas.iter().map(|text| UrlWithCountry::parse(text)).collect::<Result<_>>()?;
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
        Some(path) if path.as_os_str() == "-" => context.output.data(Metalink { files }.to_xml().as_bytes()),
        Some(path) => write(path, &Metalink { files }, context),
        None => files.into_iter().zip(&args.files).try_for_each(|(file, path)| {
            let mut name = path.clone().into_os_string();
            name.push(".meta4");
            write(Path::new(&name), &Metalink { files: vec![file] }, context)
        }),
    }
}

fn write(path: &Path, metalink: &Metalink, context: &CommandContext) -> Result<()> {
    std::fs::write(path, metalink.to_xml()).map_err(|error| file_error("writing", path.display(), error))?;
    let to = path.display().to_string();
    context.output.event(&MetalinkMakeOutput { action: "make", to, files: metalink.files.len() })
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
        if !url.contains("://") || url.contains(char::is_whitespace) {
            let why = format!("{text:?} is not a URL; write https://HOST/PATH");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(UrlWithCountry { url: url.to_owned(), location })
    }
}

fn describe(
    path: &Path,
    places: &[UrlWithCountry],
    piece_size: Option<u64>,
    context: &CommandContext,
) -> Result<MetalinkFile> {
    let failed = |error| file_error("reading", path.display(), error);
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        let why = format!("the name of {} cannot be used in a Metalink", path.display());
        Error::new(ErrorKind::InvalidArgument, why)
    })?;
    let mut file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    // The length of a piece is a power of two that keeps the file within `PIECES_MAX` pieces.
    let enough = size.div_ceil(PIECES_MAX).next_power_of_two().max(PIECE_BYTES_MIN);
    let length_bytes = piece_size.unwrap_or(enough).max(1);
    let (mut whole, mut hex, mut total) = (FileHasher::new(FileHashAlgorithm::Sha256), Vec::new(), 0);
    let (mut piece, mut piece_bytes) = (FileHasher::new(FileHashAlgorithm::Sha256), 0);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        context.interrupt.check()?;
        // Limit each read to the rest of the piece, because each piece has its own digest.
        let room = usize::try_from(length_bytes - piece_bytes).unwrap_or(READ_BYTES).min(READ_BYTES);
        let got = file.read(&mut buffer[..room]).map_err(failed)?;
        whole.update(&buffer[..got]);
        piece.update(&buffer[..got]);
        (total, piece_bytes) = (total + got as u64, piece_bytes + got as u64);
        // The last piece may be shorter.
        if piece_bytes == length_bytes || got == 0 && piece_bytes > 0 {
            let ended = std::mem::replace(&mut piece, FileHasher::new(FileHashAlgorithm::Sha256));
            hex.push(ended.finish().hex);
            piece_bytes = 0;
        }
        if got == 0 {
            break;
        }
    }
    let pieces =
        (!hex.is_empty()).then_some(PieceHashes { length_bytes, kind: FileHashAlgorithm::Sha256, hex });
    let hashes: Vec<FileHash> = vec![whole.finish()];
    let replicas = (1..).zip(places).map(|(priority, place)| MetalinkUrl {
        url: if place.url.ends_with('/') {
            format!("{}{}", place.url, encoded(name))
        } else {
            place.url.clone()
        },
        priority,
        location: place.location.clone(),
    });
    let replicas = replicas.collect();
    Ok(MetalinkFile {
        name: name.to_owned(),
        size_bytes: Some(total),
        hashes,
        pieces,
        replicas,
        described_by: Vec::new(),
    })
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
        write!(f, "      File: {}", if self.name.is_empty() { "(not named)" } else { &self.name })?;
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
            write!(f, "\n{rank:>10}: {url}{place}")?;
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
    let metalink = places.read(&args.source, context)?;
    metalink.files.into_iter().try_for_each(|file| context.output.record(&MetalinkFileOutput::of(file, None)))
}
