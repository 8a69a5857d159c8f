//! Reaches servers of moeflux: through an address or a Unix socket, plain or with TLS.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use moeflux_core::files::read_bounded;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};
use ureq::Agent;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Bytes of a file of certificates at most.
const MAX_BYTES: u64 = 1 << 20;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Connects to one server.
#[derive(Clone)]
pub(crate) struct Dial {
    place: Place,
    tls: Option<Arc<ClientConfig>>,
}

impl Dial {
    /// For a server whose certificate, or that of its authority, is in the file `ca`; a plain connection
    /// where there is none.
    ///
    /// # Errors
    /// Where the file cannot be read or has no certificate.
    pub(crate) fn new(place: Place, ca: Option<&Path>) -> Result<Dial> {
        Ok(Dial { place, tls: ca.map(config).transpose()? })
    }

    /// What asks the server: by addresses that begin with [`Dial::ORIGIN`].
    pub(crate) fn agent(&self, patience: Duration) -> Agent {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(patience));
        Agent::with_parts(config.build(), self.clone(), DefaultResolver::default())
    }

    /// The beginning of an address for [`Dial::agent`], which connects to its own server alone.
    pub(crate) const ORIGIN: &str = "http://127.0.0.1";

    fn connect(&self, patience: Duration) -> io::Result<Box<dyn Stream>> {
        match &self.place {
            Place::Unix(path) => unix_stream(path, patience),
            Place::Tcp(addr) => {
                let stream = TcpStream::connect_timeout(addr, patience)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
                let name = ServerName::from(addr.ip());
                let client =
                    ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(client, stream);
                // What is wrong with the certificate is known before anything is asked.
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock)?;
                }
                Ok(Box::new(stream))
            }
        }
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The address for people.
impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Tcp(addr) if self.tls.is_some() => write!(f, "https://{addr}"),
            Place::Tcp(addr) => write!(f, "http://{addr}"),
        }
    }
}

#[cfg(unix)]
fn unix_stream(path: &Path, patience: Duration) -> io::Result<Box<dyn Stream>> {
    let stream = std::os::unix::net::UnixStream::connect(path)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(Box::new(stream))
}

#[cfg(not(unix))]
fn unix_stream(_path: &Path, _patience: Duration) -> io::Result<Box<dyn Stream>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether TLS failed because of what the server showed, and how.
pub(crate) fn certificate_problem(err: &io::Error) -> Option<&rustls::Error> {
    let err = err.get_ref()?.downcast_ref::<rustls::Error>()?;
    matches!(err, rustls::Error::InvalidCertificate(_)).then_some(err)
}

fn config(ca: &Path) -> Result<Arc<ClientConfig>> {
    let name = || format!("{} (--tls-ca)", ca.display());
    let bytes = read_bounded(ca, MAX_BYTES).with_context(name)?;
    let known: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&bytes).collect();
    let known = known.map_err(|err| anyhow!("{}: it is no PEM: {err}", name()))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(known.iter().cloned());
    if roots.is_empty() {
        return Err(anyhow!("{}: it has no certificate in PEM", name()));
    }
    let provider = Arc::new(ring::default_provider());
    let chains =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = Known { known, chains: chains.build().with_context(name)? };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Takes a certificate that is known itself, whatever names it has, and those of known authorities.
#[derive(Debug)]
struct Known {
    known: Vec<CertificateDer<'static>>,
    chains: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.known.iter().any(|known| known == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// A connection, with TLS or without. Its reads and writes have an end in time.
trait Stream: Read + Write + Send + Sync {}

impl<S: Read + Write + Send + Sync> Stream for S {}

/// A connection of an agent, for one request.
pub(crate) struct Channel {
    stream: Box<dyn Stream>,
    buffers: LazyBuffers,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Connector for Dial {
    type Out = Channel;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<Channel>, ureq::Error> {
        let stream = Dial::connect(self, *details.timeout.after);
        let stream = stream.map_err(|err| timed(err, details.timeout))?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(Channel { stream, buffers }))
    }
}

impl Transport for Channel {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let output = &self.buffers.output()[..amount];
        let written = self.stream.write_all(output).and_then(|()| self.stream.flush());
        written.map_err(|err| timed(err, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let input = self.buffers.input_append_buf();
        let n = self.stream.read(input).map_err(|err| timed(err, timeout))?;
        self.buffers.input_appended(n);
        Ok(n > 0)
    }

    fn is_open(&mut self) -> bool {
        // It is not used again.
        false
    }
}

fn timed(err: io::Error, timeout: NextTimeout) -> ureq::Error {
    match err.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ureq::Error::Timeout(timeout.reason),
        _ => ureq::Error::Io(err),
    }
}
