//! `multipart/form-data` (RFC 7578) as S3's form uploads use it: fields, and then one file. All parts after the file
//! are ignored. The fields are kept in memory, up to [`FIELDS_BYTES_MAX`]; the file is not.

use std::ops::Range;

use memchr::memmem;

/// The maximum number of bytes before the content of the file, including boundaries and part headers (S3's limit).
pub const FIELDS_BYTES_MAX: usize = 20 * 1024;

/// The maximum length of a boundary (RFC 2046 section 5.1.1).
const BOUNDARY_BYTES_MAX: usize = 70;
/// The name of the field that contains the file.
const FILE: &str = "file";

/// The reason why a form is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormError {
    /// The content type is not `multipart/form-data`.
    NotAForm,
    /// The form does not have the required format; the value is the reason.
    Malformed(&'static str),
    /// The parts before the file are larger than [`FIELDS_BYTES_MAX`].
    FieldsTooLarge,
    /// The form has no field with the name `file`.
    NoFile,
}

type Result<T> = std::result::Result<T, FormError>;

/// Returns the boundary in a `Content-Type`. Errors: `NotAForm`, `Malformed`.
pub fn boundary(content_type: &str) -> Result<String> {
    let kind = content_type.split(';').next().unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(FormError::NotAForm);
    }
    let boundary = parameter(&parameters(content_type)?, "boundary")?;
    let boundary = boundary.ok_or(FormError::Malformed("Content-Type states no boundary"))?;
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    let is_whole = (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) && !boundary.ends_with(' ');
    match is_whole && boundary.bytes().all(is_fit) {
        true => Ok(boundary),
        false => Err(FormError::Malformed("the boundary has characters or a length that RFC 2046 forbids")),
    }
}

/// A field before the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormField {
    /// The name, in lower case.
    pub name: String,
    /// The value, unchanged.
    pub value: String,
}

/// The part of a form before the content of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadFormFields {
    /// The fields, in the order of the form. A name may occur several times.
    pub fields: Vec<FormField>,
    /// The file name that the browser sent; empty if it sent no file name.
    pub file_name: String,
}

/// Reads the fields of a form, whose bytes arrive in pieces of any size. Cost: linear in the number of bytes,
/// regardless of the size of the pieces.
pub struct FormReader {
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    /// The offset of the item that is being read.
    at: usize,
    /// The offset from which to search for the end of that item.
    searched: usize,
    item: FormReaderState,
    fields: Vec<FormField>,
}

/// What the reader expects next.
enum FormReaderState {
    /// The first boundary.
    Start,
    /// The head of a part.
    Head,
    /// The value of the field with this name.
    Value(String),
    /// The content of the file with this name.
    File(String),
}

impl FormReader {
    /// Creates a reader for a form with this boundary.
    pub fn new(boundary: &str) -> Self {
        FormReader {
            delimiter: delimiter(boundary),
            // No line break precedes the first boundary. A line break is added here, so that all boundaries have the
            // same form.
            buffer: b"\r\n".to_vec(),
            at: 0,
            searched: 0,
            item: FormReaderState::Start,
            fields: Vec::new(),
        }
    }

    /// Reads the next bytes. When the start of the form is complete, returns the start, and the number of bytes in
    /// `bytes` that belong to the start. The content of the file follows those bytes. Do not call this function again
    /// after it has returned the start or an error. Errors: `Malformed`, `FieldsTooLarge`, `NoFile`.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<(UploadFormFields, usize)>> {
        let before = self.buffer.len();
        let taken = bytes.len().min(FIELDS_BYTES_MAX - before);
        self.buffer.extend_from_slice(&bytes[..taken]);
        while self.step()? {
            if let FormReaderState::File(file_name) = &mut self.item {
                let file_name = std::mem::take(file_name);
                let start = UploadFormFields { fields: std::mem::take(&mut self.fields), file_name };
                return Ok(Some((start, self.at - before)));
            }
        }
        match self.buffer.len() < FIELDS_BYTES_MAX {
            true => Ok(None),
            false => Err(FormError::FieldsTooLarge),
        }
    }

    /// Reads one item; returns false if the item is not complete yet.
    fn step(&mut self) -> Result<bool> {
        match &self.item {
            FormReaderState::Head => {
                let Some(end) = self.find(b"\r\n\r\n") else { return Ok(false) };
                let (name, file_name) = read_head(&self.buffer[self.at..end])?;
                let is_file = name == FILE;
                self.go_on(
                    end + 4,
                    if is_file { FormReaderState::File(file_name) } else { FormReaderState::Value(name) },
                );
                Ok(true)
            }
            FormReaderState::Start | FormReaderState::Value(_) => self.step_value(),
            FormReaderState::File(_) => Ok(false),
        }
    }

    fn step_value(&mut self) -> Result<bool> {
        let Some(end) = self.find(&self.delimiter.clone()) else { return Ok(false) };
        let mut line = BoundaryLineState::default();
        let mut after = end + self.delimiter.len();
        while !line.is_over() {
            let Some(byte) = self.buffer.get(after) else { return Ok(false) };
            line.read(*byte)?;
            after += 1;
        }
        if line.is_last() {
            return Err(FormError::NoFile);
        }
        match std::mem::replace(&mut self.item, FormReaderState::Head) {
            FormReaderState::Value(name) => {
                let value = String::from_utf8(self.buffer[self.at..end].to_vec());
                let value = value.map_err(|_| FormError::Malformed("the value of a field is not UTF-8"))?;
                self.fields.push(FormField { name, value });
            }
            // Some clients send an empty line first.
            _ if end <= 2 => {}
            _ => return Err(FormError::Malformed("the body does not begin with its boundary")),
        }
        self.go_on(after, FormReaderState::Head);
        Ok(true)
    }

    /// Returns the offset of the next `end`. If there is no further `end`, records where to continue the search.
    fn find(&mut self, end: &[u8]) -> Option<usize> {
        let found = memmem::find(&self.buffer[self.searched..], end).map(|at| self.searched + at);
        let unsearched = self.buffer.len().saturating_sub(end.len() - 1).max(self.searched);
        self.searched = found.unwrap_or(unsearched);
        found
    }

    fn go_on(&mut self, at: usize, item: FormReaderState) {
        (self.at, self.searched, self.item) = (at, at, item);
    }
}

/// Returns the bytes that follow a part: a line break, two hyphens and the boundary.
fn delimiter(boundary: &str) -> Vec<u8> {
    [b"\r\n--", boundary.as_bytes()].concat()
}

/// Reads the head of a part. Returns the name of the part in lower case, and the name of its file, which is empty if
/// the head contains no file name.
fn read_head(head: &[u8]) -> Result<(String, String)> {
    let head =
        std::str::from_utf8(head).map_err(|_| FormError::Malformed("the head of a part is not UTF-8"))?;
    let mut disposition = None;
    for line in head.split("\r\n") {
        if line.contains(|character: char| character.is_control() && character != '\t') {
            return Err(FormError::Malformed("the head of a part has a control character"));
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(FormError::Malformed("a line in the head of a part is not a header"));
        }
        if name.eq_ignore_ascii_case("content-disposition") && disposition.replace(value).is_some() {
            return Err(FormError::Malformed("a part has two Content-Disposition headers"));
        }
        let is_identity =
            ["7bit", "8bit", "binary"].iter().any(|known| value.trim().eq_ignore_ascii_case(known));
        if name.eq_ignore_ascii_case("content-transfer-encoding") && !is_identity {
            return Err(FormError::Malformed("a part has a transfer encoding; send its bytes unencoded"));
        }
    }
    let disposition = disposition.ok_or(FormError::Malformed("a part has no Content-Disposition header"))?;
    if !disposition.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("form-data") {
        return Err(FormError::Malformed("the Content-Disposition of a part is not form-data"));
    }
    let stated = parameters(disposition)?;
    let name = parameter(&stated, "name")?.filter(|name| !name.is_empty());
    let name = name.ok_or(FormError::Malformed("a part has no name"))?.to_ascii_lowercase();
    Ok((name, parameter(&stated, "filename")?.unwrap_or_default()))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Reads the parameters of a header after its first value: `form-data; name="a"; filename=b`. Names are in lower case.
/// Errors: `Malformed`.
fn parameters(header: &str) -> Result<Vec<(String, String)>> {
    const BAD: FormError =
        FormError::Malformed("the parameters of a header are not NAME=VALUE; NAME=\"VALUE\"");
    let (_, mut rest) = header.split_once(';').unwrap_or((header, ""));
    let mut found = Vec::new();
    loop {
        rest = rest.trim_matches([' ', '\t']);
        if rest.is_empty() {
            return Ok(found);
        }
        let (name, value) = rest.split_once('=').ok_or(BAD)?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(BAD);
        }
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => unquoted(quoted).ok_or(BAD)?,
            None => {
                let end = value.find([';', ' ', '\t']).unwrap_or(value.len());
                (value[..end].to_owned(), &value[end..])
            }
        };
        found.push((name.to_ascii_lowercase(), value));
        let after = after.trim_start_matches([' ', '\t']);
        rest = match after.strip_prefix(';') {
            Some(rest) => rest,
            None if after.is_empty() => after,
            None => return Err(BAD),
        };
    }
}

/// Reads text up to its closing quote. Returns the text, and the text after the quote. A backslash is special only
/// before a quote or another backslash, because old browsers send complete Windows paths.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.char_indices().peekable());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => {
                let next = characters.next_if(|(_, next)| matches!(next, '"' | '\\'));
                value.push(next.map_or('\\', |(_, next)| next));
            }
            _ => value.push(character),
        }
    }
    None
}

/// Returns the value of a parameter. Errors: `Malformed` if the parameter occurs twice.
fn parameter(stated: &[(String, String)], wanted: &str) -> Result<Option<String>> {
    let mut values = stated.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(FormError::Malformed("a parameter of a header occurs twice")),
    }
}

/// The rest of a line after a boundary: nothing, or two hyphens after the last part.
#[derive(Default)]
enum BoundaryLineState {
    #[default]
    Begun,
    Hyphen,
    Blank,
    CarriageReturn,
    Over,
    Last,
}

impl BoundaryLineState {
    /// Reads a byte of the line. Errors: `Malformed` if the line continues, because the line then only begins with the
    /// boundary.
    fn read(&mut self, byte: u8) -> Result<()> {
        *self = match (&*self, byte) {
            (BoundaryLineState::Begun, b'-') => BoundaryLineState::Hyphen,
            (BoundaryLineState::Hyphen, b'-') => BoundaryLineState::Last,
            (BoundaryLineState::Begun | BoundaryLineState::Blank, b' ' | b'\t') => BoundaryLineState::Blank,
            (BoundaryLineState::Begun | BoundaryLineState::Blank, b'\r') => BoundaryLineState::CarriageReturn,
            (BoundaryLineState::CarriageReturn, b'\n') => BoundaryLineState::Over,
            _ => return Err(FormError::Malformed("a line begins with the boundary and continues")),
        };
        Ok(())
    }

    fn is_over(&self) -> bool {
        matches!(self, BoundaryLineState::Over | BoundaryLineState::Last)
    }

    fn is_last(&self) -> bool {
        matches!(self, BoundaryLineState::Last)
    }
}

/// Finds the end of a file, whose content arrives in pieces of any size. The scanner stores no content. For bytes that
/// may be the beginning of the boundary, the scanner stores only their number, because their values are known.
pub struct FormFileScanner {
    delimiter: Vec<u8>,
    /// The number of bytes at the end of the previous piece that match the beginning of the delimiter.
    matched: usize,
    /// The line of the boundary after the file, once it has been found.
    line: Option<BoundaryLineState>,
}

/// The content of a file in one piece of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedFileContent {
    /// The number of bytes at the beginning of [`FormFileScanner::held`] that are content and precede this piece.
    pub held: usize,
    /// The part of the piece that is content.
    pub content: Range<usize>,
}

impl FormFileScanner {
    /// Creates a scanner for a file in a form with this boundary.
    pub fn new(boundary: &str) -> Self {
        FormFileScanner { delimiter: delimiter(boundary), matched: 0, line: None }
    }

    /// Returns the bytes that follow the file's content: the delimiter. If a piece ends with the beginning of these
    /// bytes, the scanner reports this beginning as content only after a later piece has shown that it is content.
    pub fn held(&self) -> &[u8] {
        &self.delimiter
    }

    /// Returns whether the end of the file has been found.
    pub fn is_over(&self) -> bool {
        self.line.as_ref().is_some_and(BoundaryLineState::is_over)
    }

    /// Finds the content in the next bytes. Bytes after the end of the file contain no content. Errors: `Malformed`.
    pub fn read(&mut self, bytes: &[u8]) -> Result<ScannedFileContent> {
        if self.line.is_some() {
            self.read_line(bytes)?;
            return Ok(ScannedFileContent { held: 0, content: 0..0 });
        }
        let (mut held, mut at) = (0, 0);
        if self.matched > 0 {
            let rest = &self.delimiter[self.matched..];
            let common = rest.iter().zip(bytes).take_while(|(one, other)| one == other).count();
            if common == rest.len() {
                return self.end(0, 0..0, &bytes[common..]);
            }
            if common == bytes.len() {
                self.matched += common;
                return Ok(ScannedFileContent { held: 0, content: 0..0 });
            }
            // A delimiter has a carriage return only as its first byte, so no other delimiter can begin within it.
            held = std::mem::take(&mut self.matched);
            at = common;
        }
        if let Some(found) = memmem::find(&bytes[at..], &self.delimiter) {
            let end = at + found;
            return self.end(held, 0..end, &bytes[end + self.delimiter.len()..]);
        }
        let tail = bytes.len().saturating_sub(self.delimiter.len() - 1).max(at);
        let end = (tail..bytes.len()).find(|from| self.delimiter.starts_with(&bytes[*from..]));
        let end = end.unwrap_or(bytes.len());
        self.matched = bytes.len() - end;
        Ok(ScannedFileContent { held, content: 0..end })
    }

    fn end(&mut self, held: usize, content: Range<usize>, after: &[u8]) -> Result<ScannedFileContent> {
        self.line = Some(BoundaryLineState::default());
        self.read_line(after)?;
        Ok(ScannedFileContent { held, content })
    }

    fn read_line(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(line) = &mut self.line else { return Ok(()) };
        for byte in bytes {
            if line.is_over() {
                break;
            }
            line.read(*byte)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
