//! Keys of one kernel, and TLS with both sides pinned to them.
//!
//! Each kernel has an authority of its own. The first front makes the authority, signs a certificate for the front and
//! another for replicas, and forgets the authority's key. Both sides trust this authority alone and check the other's
//! role: a port of one kernel is useless to another kernel and to another user.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const FRONT: &str = "front.gresshopper";
const REPLICA: &str = "replica.gresshopper";

/// A certificate and its key, in PEM.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    pub cert: String,
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// All keys of a kernel, as stored in its `front.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KernelKeys {
    /// The authority's certificate; nobody has its key any more.
    pub authority: String,
    pub front: Identity,
    pub replica: Identity,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("can't make the kernel's keys")]
    Generate(#[from] rcgen::Error),
    #[error("the kernel's keys can't be read")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("the kernel's keys can't be used")]
    Config(#[from] rustls::Error),
    #[error("the kernel's authority can't be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl KernelKeys {
    pub fn generate() -> Result<Self, TlsError> {
        let key = KeyPair::generate()?;
        let mut params = named("authority.gresshopper")?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self {
            authority,
            front: issue(&issuer, FRONT, ExtendedKeyUsagePurpose::ServerAuth)?,
            replica: issue(&issuer, REPLICA, ExtendedKeyUsagePurpose::ClientAuth)?,
        })
    }

    /// The front's side.
    pub fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), Arc::clone(&provider))
                .build()?;
        let (cert, key) = self.front.parse()?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![cert], key)?;
        Ok(Arc::new(config).into())
    }

    /// The replica's side.
    pub fn connector(&self) -> Result<TlsConnector, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (cert, key) = self.replica.parse()?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(vec![cert], key)?;
        Ok(Arc::new(config).into())
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes())?)?;
        Ok(roots)
    }
}

impl Identity {
    fn parse(&self) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), TlsError> {
        let cert = CertificateDer::from_pem_slice(self.cert.as_bytes())?;
        Ok((cert, PrivateKeyDer::from_pem_slice(self.key.as_bytes())?))
    }
}

/// Name expected by a replica of its front, wherever the front runs.
pub fn front_name() -> ServerName<'static> {
    ServerName::try_from(FRONT).expect("a fixed, valid name")
}

fn named(name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn issue(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    role: ExtendedKeyUsagePurpose,
) -> Result<Identity, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = named(name)?;
    params.extended_key_usages = vec![role];
    Ok(Identity {
        cert: params.signed_by(&key, issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Whether a byte gets through from a replica with `ours` to a front with `theirs`.
    async fn gets_through(ours: &KernelKeys, theirs: &KernelKeys) -> bool {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (connector, acceptor) = (ours.connector().unwrap(), theirs.acceptor().unwrap());
        let client = async move {
            let mut stream = connector.connect(front_name(), near).await?;
            stream.write_all(b"x").await?;
            stream.flush().await?;
            stream.read_u8().await
        };
        let server = async move {
            let mut stream = acceptor.accept(far).await?;
            let byte = stream.read_u8().await?;
            stream.write_u8(byte).await?;
            stream.flush().await
        };
        let (client, server) = tokio::join!(client, server);
        client.is_ok() && server.is_ok()
    }

    #[tokio::test]
    async fn only_the_same_kernel_in_its_own_role_gets_through() {
        let (a, b) = (KernelKeys::generate().unwrap(), KernelKeys::generate().unwrap());
        assert!(gets_through(&a, &a).await);
        assert!(!gets_through(&a, &b).await, "another kernel's keys");
        let mut stolen = a.clone();
        stolen.replica = b.replica.clone();
        assert!(!gets_through(&stolen, &a).await, "another kernel's certificate");
        let mut swapped = a.clone();
        swapped.replica = a.front.clone();
        assert!(!gets_through(&swapped, &a).await, "a front is no replica");
        let mut posing = a.clone();
        posing.front = a.replica.clone();
        assert!(!gets_through(&a, &posing).await, "a replica is no front");
    }
}
