//! Determines the metadata of uploaded and copied objects.

use fordway_command::StorageAddress;
use fordway_store::{BoxedMetadata, Error, ErrorKind, Metadata, ObjectInfo, Result};

use crate::args::{MetadataArgs, MetadataDirectiveArg};

/// The rules for metadata that the options set.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectMetadataRules {
    given: BoxedMetadata,
    directive: Option<MetadataDirectiveArg>,
    guesses_type: bool,
}

impl ObjectMetadataRules {
    /// Returns the rules that the options set. Errors: `InvalidArgument` if the options contradict each other.
    pub(crate) fn of(args: &MetadataArgs) -> Result<Self> {
        let (given, directive) = (BoxedMetadata::from(args.given()), args.metadata_directive);
        if directive == Some(MetadataDirectiveArg::Copy) && !given.is_empty() {
            let why = "--metadata-directive COPY cannot be combined with options that set metadata";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(ObjectMetadataRules { given, directive, guesses_type: !args.no_guess_mime_type })
    }

    /// Checks that the options apply to a transfer. Errors: `InvalidArgument` for options that would have no effect.
    pub(crate) fn check(&self, from: &StorageAddress, to: &StorageAddress) -> Result<()> {
        let is_object = |place: &StorageAddress| matches!(place, StorageAddress::S3(..));
        if !is_object(to) && !self.given.is_empty() {
            let why = format!("options that set metadata only apply to objects, but the destination is {to}");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if self.directive.is_some() && !(is_object(from) && is_object(to)) {
            let why = "--metadata-directive only applies to copies of objects to objects";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(())
    }

    /// Checks the options of an upload to a web server, which stores only a content type. Errors: `InvalidArgument`.
    pub(crate) fn check_web(&self) -> Result<()> {
        let others = Metadata { content_type: None, ..self.given.clone().into_inner() };
        if self.directive.is_none() && others == Metadata::default() {
            return Ok(());
        }
        let why = "of the options that set metadata, web servers only support --content-type";
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }

    /// Returns whether an object keeps its metadata when it is copied.
    pub(crate) fn keep_all(&self) -> bool {
        self.given.is_empty() && self.directive != Some(MetadataDirectiveArg::Replace)
    }

    /// Returns the metadata of an upload. If the options set no content type and permit a guess, the content type is
    /// guessed from `name`.
    pub(super) fn of_upload(&self, name: &str) -> BoxedMetadata {
        let mut metadata = self.given.clone();
        if metadata.content_type.is_none() && self.guesses_type {
            metadata.content_type = mime_guess::from_path(name).first_raw().map(str::to_owned);
        }
        metadata
    }

    /// Returns the metadata of a copy. With the `REPLACE` directive, this is the metadata of an upload with the name
    /// `name`. Otherwise, it is the metadata of `source`, in which the fields that the options set are replaced.
    pub(super) fn of_copy(&self, source: &ObjectInfo, name: &str) -> BoxedMetadata {
        if self.directive == Some(MetadataDirectiveArg::Replace) {
            return self.of_upload(name);
        }
        let (given, old) = (self.given.clone().into_inner(), source.metadata.clone().into_inner());
        Metadata {
            content_type: given.content_type.or(old.content_type),
            content_encoding: given.content_encoding.or(old.content_encoding),
            content_language: given.content_language.or(old.content_language),
            content_disposition: given.content_disposition.or(old.content_disposition),
            cache_control: given.cache_control.or(old.cache_control),
            expires: given.expires.or(old.expires),
            user: if given.user.is_empty() { old.user } else { given.user },
        }
        .into()
    }
}
