//! Client certificates and X.509 proxies: PEM files of a chain and a key.

use std::path::PathBuf;
use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::private::Place;

/// What is shown to servers that ask for a certificate.
pub(crate) type Identity = Arc<SingleCertAndKey>;

/// Where a certificate and its key are.
#[derive(Clone, Debug)]
pub(super) struct CertificateFiles {
    /// The certificate, and those that lead to a known authority. A usual place has the key as well.
    chain: PathBuf,
    key: Place,
}

/// The places of certificates: what the environment names ends the search.
pub(super) fn discover(get: &dyn Fn(&str) -> Option<String>, user: u32) -> Vec<CertificateFiles> {
    if let Some(proxy) = get("X509_USER_PROXY") {
        return vec![CertificateFiles::named(proxy.clone().into(), proxy.into())];
    }
    if let Some(chain) = get("X509_USER_CERT") {
        let key = get("X509_USER_KEY").unwrap_or_else(|| chain.clone());
        return vec![CertificateFiles::named(chain.into(), key.into())];
    }
    let proxy = PathBuf::from(format!("/tmp/x509up_u{user}"));
    vec![CertificateFiles { chain: proxy.clone(), key: Place::Usual(proxy) }]
}

impl CertificateFiles {
    pub(super) fn named(chain: PathBuf, key: PathBuf) -> Self {
        CertificateFiles { chain, key: Place::Named(key) }
    }

    /// Reads them; `None` where a usual place has none. Errors: as [`Place::read`]; `InvalidArgument` for
    /// what is no certificate or key.
    pub(super) fn load(&self) -> Result<Option<Identity>> {
        let Some(secret) = self.key.read()? else { return Ok(None) };
        let wrong = |path: &std::path::Path, what: &str| {
            Error::new(ErrorKind::InvalidArgument, format!("{} has no {what} in PEM form", path.display()))
        };
        let public = if self.chain == self.key.path() {
            secret.clone()
        } else {
            std::fs::read(&self.chain).map_err(|error| {
                let detail = format!("reading {}", self.chain.display());
                Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
            })?
        };
        let chain = CertificateDer::pem_slice_iter(&public)
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|error| wrong(&self.chain, "certificate").caused_by(error))?;
        if chain.is_empty() {
            return Err(wrong(&self.chain, "certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(&secret)
            .map_err(|error| wrong(self.key.path(), "private key").caused_by(error))?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|error| wrong(self.key.path(), "private key that is known").caused_by(error))?;
        // Not checked against each other: a proxy's certificate has an extension that only grid
        // software understands, and could not be read for that.
        Ok(Some(Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key)))))
    }
}
