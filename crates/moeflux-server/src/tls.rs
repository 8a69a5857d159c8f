//! TLS by files: a certificate with its chain, and its key, which are read again when they change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use moeflux_core::files::read_bounded;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ServerError;

/// Bytes of a file of certificates or of a key.
const MAX_BYTES: u64 = 1 << 20;

/// The protocols that are offered, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];

/// The name of HTTP/2 among these.
pub(crate) const HTTP2: &[u8] = b"h2";

/// Where a server's certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those that lead to its authority, as PEM.
    pub cert: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
}

/// Accepts connections with TLS.
pub(crate) struct Tls {
    files: TlsFiles,
    current: RwLock<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// When the files changed.
    seen: [Option<SystemTime>; 2],
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Where one cannot be read or holds something else, or they do not belong together.
    pub(crate) fn new(files: &TlsFiles) -> Result<Tls, ServerError> {
        let current = Current { seen: changes(files), config: config(files)? };
        Ok(Tls { files: files.clone(), current: RwLock::new(current) })
    }

    /// What accepts a connection now.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current.config).into()
    }

    /// Reads the files again if they have changed; whether they had.
    ///
    /// # Errors
    /// As [`Tls::new`]. Then the certificate stays.
    pub(crate) fn read_again(&self) -> Result<bool, ServerError> {
        let seen = changes(&self.files);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if seen == current.seen {
            return Ok(false);
        }
        // Files that are wrong are reported once, until they change again.
        current.seen = seen;
        current.config = config(&self.files)?;
        Ok(true)
    }
}

fn changes(files: &TlsFiles) -> [Option<SystemTime>; 2] {
    let changed = |path: &Path| fs::metadata(path).and_then(|facts| facts.modified()).ok();
    [changed(&files.cert), changed(&files.key)]
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, ServerError> {
    let refuse = |path: &Path, reason: String| ServerError::Tls { path: path.to_owned(), reason };
    let read = |path: &Path| {
        read_bounded(path, MAX_BYTES).map_err(|err| refuse(path, format!("cannot be read: {err}")))
    };
    let (cert, key) = (read(&files.cert)?, read(&files.key)?);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
    let chain = chain.map_err(|err| refuse(&files.cert, format!("is no PEM: {err}")))?;
    if chain.is_empty() {
        return Err(refuse(&files.cert, String::from("has no certificate in PEM")));
    }
    let no_key = |err| refuse(&files.key, format!("has no private key in PEM: {err}"));
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(no_key)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|err| {
        let cert = files.cert.display();
        refuse(&files.key, format!("does not go with the certificate of {cert}: {err}"))
    })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}
