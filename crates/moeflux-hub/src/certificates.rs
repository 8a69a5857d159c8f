//! Which authorities a connection trusts.

use std::path::{Path, PathBuf};

use moeflux_core::files::read_bounded;
use ureq::tls::{Certificate, RootCerts};

use super::error::HubError;

/// The variables that name a file or a folder of certificates, by precedence: that of OpenSSL, then those of
/// Python's and curl's libraries.
const VARIABLES: [&str; 3] = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// Bytes of a file of certificates at most: the usual ones have 300 kB.
const MAX_BYTES: u64 = 16 << 20;

/// A file or a folder of certificates, in PEM, and the variable that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// Where they are.
    pub path: PathBuf,
    /// The variable.
    pub source: &'static str,
}

impl Certificates {
    /// Those that a variable names.
    pub(super) fn from_lookup(var: impl Fn(&str) -> Option<String>) -> Option<Certificates> {
        VARIABLES
            .into_iter()
            .find_map(|source| Some(Certificates { path: var(source)?.into(), source }))
    }
}

/// The authorities to trust: those that a variable names, or those of the operating system, or, where it has
/// none, those of Mozilla.
///
/// # Errors
/// Where a variable names a file without certificates.
pub(super) fn trusted(named: Option<&Certificates>) -> Result<RootCerts, HubError> {
    let found = match named {
        Some(Certificates { path, .. }) => {
            let (file, dir): (_, Option<&Path>) =
                if path.is_dir() { (None, Some(path)) } else { (Some(path.as_path()), None) };
            let checked = file.map_or(Ok(()), |file| read_bounded(file, MAX_BYTES).map(drop));
            checked.map_err(|err| HubError::Certificates {
                source_name: named.map_or("", |named| named.source),
                path: path.clone(),
                problem: err.to_string(),
            })?;
            rustls_native_certs::load_certs_from_paths(file, dir)
        }
        None => rustls_native_certs::load_native_certs(),
    };
    let certs = found.certs.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned());
    let certs: Vec<Certificate<'static>> = certs.collect();
    match named {
        Some(Certificates { path, source }) if certs.is_empty() => {
            let problem = found.errors.first().map(ToString::to_string);
            Err(HubError::Certificates {
                source_name: source,
                path: path.clone(),
                problem: problem.unwrap_or_else(|| "no certificate in PEM".to_owned()),
            })
        }
        None if certs.is_empty() => Ok(RootCerts::WebPki),
        _ => Ok(RootCerts::new_with_certs(&certs)),
    }
}
