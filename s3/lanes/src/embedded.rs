//! Parses the options of the embedded lane, which are in the query of its endpoint:
//! `file:///lustre/objects?durability=data&conditions=none-match-only`.

use std::path::PathBuf;

use fordway_posix::{Durability, PosixConfig, ReadConsistency};
use fordway_store::{ETagPolicy, Error, ErrorKind, Result};

/// The root of an embedded store, and its options.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddedEndpoint {
    pub(crate) root: PathBuf,
    pub(crate) config: PosixConfig,
    /// Whether the endpoint states the durability.
    has_durability: bool,
}

impl EmbeddedEndpoint {
    /// Parses the part after `file://`: a path and a query. A root whose name contains a `?` must be specified as a
    /// bare path instead. Errors: `InvalidArgument` for an unknown option.
    pub(crate) fn parse(path: &str) -> Result<Self> {
        let (root, query) = path.split_once('?').unwrap_or((path, ""));
        let mut endpoint = EmbeddedEndpoint::at(root);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            set(&mut endpoint.config, option)?;
            endpoint.has_durability |= option.starts_with("durability=");
        }
        Ok(endpoint)
    }

    /// Returns the endpoint at `root` with the default options.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        EmbeddedEndpoint { root: root.into(), config: PosixConfig::default(), has_durability: false }
    }

    /// Sets the durability, unless the endpoint states it, or `durability` is `None`.
    pub(crate) fn with_durability(mut self, durability: Option<Durability>) -> Self {
        if let Some(durability) = durability.filter(|_| !self.has_durability) {
            self.config.durability = durability;
        }
        self
    }
}

fn set(config: &mut PosixConfig, option: &str) -> Result<()> {
    match option {
        "durability=none" => config.durability = Durability::None,
        "durability=data" => config.durability = Durability::Data,
        "durability=full" => config.durability = Durability::Full,
        "etag=md5" => config.etag_policy = ETagPolicy::Md5,
        "etag=fast" => config.etag_policy = ETagPolicy::Fast,
        "consistency=file-system" => config.consistency = ReadConsistency::FileSystem,
        "consistency=strong" => config.consistency = ReadConsistency::Strong,
        "conditions=all" => config.if_match = true,
        "conditions=none-match-only" => config.if_match = false,
        _ => {
            let why = format!(
                "the endpoint option {option:?} is unknown; choose from durability=none|data|full, \
                 etag=fast|md5, consistency=file-system|strong and conditions=all|none-match-only"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_set_and_misspelt_ones_refused() {
        let found =
            EmbeddedEndpoint::parse("/a b?durability=full&etag=md5&conditions=none-match-only").unwrap();
        assert_eq!(found.root, PathBuf::from("/a b"));
        assert_eq!(found.config.durability, Durability::Full);
        assert_eq!(found.config.etag_policy, ETagPolicy::Md5);
        assert!(!found.config.if_match);
        assert_eq!(
            EmbeddedEndpoint::parse("/a?consistency=strong").unwrap().config.consistency,
            ReadConsistency::Strong
        );
        let plain = EmbeddedEndpoint::parse("/a").unwrap().config;
        assert!(plain.if_match && plain.durability == Durability::None);
        for (text, expected) in [("/a", Durability::Full), ("/a?durability=none", Durability::None)] {
            let endpoint = EmbeddedEndpoint::parse(text).unwrap().with_durability(Some(Durability::Full));
            assert_eq!(endpoint.config.durability, expected, "{text}");
        }
        for bad in ["durabilty=full", "durability=FULL", "durability", "etag=", "x"] {
            let refused = EmbeddedEndpoint::parse(&format!("/a?{bad}")).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
