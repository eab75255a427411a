//! TLS of the client side: which certificates are believed, and what is offered.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::LoadgenError;

/// ALPN word of HTTP/2.
pub const H2: &[u8] = b"h2";
/// ALPN word of HTTP/1.1.
pub const HTTP1: &[u8] = b"http/1.1";

/// Which certificates are believed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust<'a> {
    /// A PEM file with further roots beside those of the system.
    pub ca: Option<&'a Path>,
    /// Any certificate is believed. The load is then as good, the peer is whoever answers.
    pub insecure: bool,
}

/// A client's side that offers these protocols.
///
/// # Errors
/// Usage when the file of roots can't be read or holds none, environment when the system has no roots and no file was
/// given.
pub fn client_config(trust: Trust<'_>, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, LoadgenError> {
    let provider = Arc::new(ring::default_provider());
    let internal = |error: rustls::Error| LoadgenError::Internal(format!("TLS can't be set up: {error}"));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(internal)?;
    let mut config = if trust.insecure {
        let verifier = Arc::new(Anyone { provider });
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
    } else {
        builder.with_root_certificates(roots(trust.ca)?).with_no_client_auth()
    };
    config.alpn_protocols = alpn.iter().map(|word| word.to_vec()).collect();
    Ok(Arc::new(config))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, LoadgenError> {
    let mut roots = RootCertStore::empty();
    // One that can't be read is no reason to do without the others.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca {
        let bad = |why: String| LoadgenError::Usage(format!("--ca {}: {why}", path.display()));
        let mut added = 0;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))? {
            let certificate = certificate.map_err(|error| bad(error.to_string()))?;
            roots.add(certificate).map_err(|error| bad(error.to_string()))?;
            added += 1;
        }
        if added == 0 {
            return Err(bad("no certificate in it; it must be PEM".to_owned()));
        }
    }
    if roots.is_empty() {
        return Err(LoadgenError::Environment(
            "the system has no root certificates; give some with --ca FILE".to_owned(),
        ));
    }
    Ok(roots)
}

/// Believes any certificate, but still checks that the peer holds its key.
#[derive(Debug)]
struct Anyone {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
