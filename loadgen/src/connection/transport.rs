//! How connections of a route are made: version of HTTP, TLS, streams, and when its name is resolved.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use scenario::units::Micros;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::tls::{H2, HTTP1, Trust, client_config};
use crate::error::LoadgenError;
use crate::target::Target;

/// Streams that one HTTP/2 connection carries at once when nothing else is said; a peer may grant fewer.
pub const STREAMS_DEFAULT: u32 = 100;

/// Said where roots were given and nothing is checked against them.
pub const CA_UNUSED: &str =
    "ca has no effect: no target is https://, so that nothing is encrypted and no certificate is checked";

/// Version of HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Http {
    /// HTTP/1.1 to `http://`; what the peer chooses (ALPN) to `https://`.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// HTTP/1.1.
    #[serde(rename = "1.1")]
    One,
    /// HTTP/2: by prior knowledge to `http://`, and nothing else offered to `https://`.
    #[serde(rename = "2")]
    Two,
}

impl Http {
    /// The word in files.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::One => "1.1",
            Self::Two => "2",
        }
    }

    /// The version of a flag.
    ///
    /// # Errors
    /// What may be written.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_value(text.into()).map_err(|_| "write auto, 1.1 or 2".to_owned())
    }
}

/// When a name is resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dns {
    /// Before the load begins.
    #[default]
    Once,
    /// For each new connection.
    PerConnection,
    /// For a new connection, when the last time is longer ago than this.
    Every(Micros),
}

impl Serialize for Dns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Once => serializer.serialize_str("once"),
            Self::PerConnection => serializer.serialize_str("per-connection"),
            Self::Every(span) => span.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Dns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "once" => Ok(Self::Once),
            "per-connection" => Ok(Self::PerConnection),
            text => match Micros::parse(text) {
                Ok(span) if span > Micros::ZERO => Ok(Self::Every(span)),
                _ => Err(de::Error::custom(format!(
                    "{text:?} is neither once, nor per-connection, nor a time such as 30s"
                ))),
            },
        }
    }
}

impl JsonSchema for Dns {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Dns".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "`once`, `per-connection`, or a time such as 30s after which a new connection resolves again."
        })
    }
}

/// What a run says about its connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// Version of HTTP.
    pub http: Http,
    /// Streams on one HTTP/2 connection.
    pub streams: u32,
    /// When names are resolved.
    pub dns: Dns,
    /// Further roots.
    pub ca: Option<PathBuf>,
    /// No certificate is checked.
    pub insecure: bool,
    /// URL of the proxy; without it there is none, whatever the environment says.
    pub proxy: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            http: Http::Auto,
            streams: STREAMS_DEFAULT,
            dns: Dns::Once,
            ca: None,
            insecure: false,
            proxy: None,
        }
    }
}

/// How connections of one route are made.
#[derive(Clone, Debug)]
pub struct Transport {
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    http: Http,
    /// Streams on one HTTP/2 connection.
    pub streams: usize,
    /// When the name is resolved.
    pub dns: Dns,
}

impl Transport {
    /// The transport to a target.
    ///
    /// # Errors
    /// As [`client_config`]; usage when the host can't be in a certificate.
    pub fn new(target: &Target, options: &Options) -> Result<Self, LoadgenError> {
        if target.proxy.is_some() && !target.secure && options.http == Http::Two {
            return Err(LoadgenError::Usage(
                "HTTP/2 by prior knowledge goes through no proxy: leave out http 2 or give an https:// target".to_owned(),
            ));
        }
        let tls = if target.secure {
            let name = ServerName::try_from(target.name.clone()).map_err(|_| {
                LoadgenError::Usage(format!("{:?} is no name that a certificate can have", target.name))
            })?;
            let alpn: &[&[u8]] = match options.http {
                Http::Auto => &[H2, HTTP1],
                Http::One => &[HTTP1],
                Http::Two => &[H2],
            };
            let trust = Trust { ca: options.ca.as_deref(), insecure: options.insecure };
            Some((client_config(trust, alpn)?, name))
        } else {
            None
        };
        let streams = usize::try_from(options.streams.max(1)).unwrap_or(usize::MAX);
        Ok(Self { tls, http: options.http, streams, dns: options.dns })
    }

    /// The client's side of TLS for a new connection, when there is TLS.
    ///
    /// # Errors
    /// What TLS has to say.
    pub fn client(&self) -> Result<Option<ClientConnection>, rustls::Error> {
        let made =
            self.tls.as_ref().map(|(config, name)| ClientConnection::new(Arc::clone(config), name.clone()));
        made.transpose()
    }

    /// Whether a new connection may turn out to be HTTP/2, so that requests can share it.
    #[must_use]
    pub fn may_share(&self) -> bool {
        self.http == Http::Two || (self.http == Http::Auto && self.tls.is_some())
    }

    /// Whether a connection with this agreed protocol is HTTP/2. `None` = not what was demanded.
    #[must_use]
    pub fn is_http2(&self, alpn: Option<&[u8]>) -> Option<bool> {
        match (self.http, &self.tls) {
            (Http::Two, None) => Some(true),
            (Http::Two, Some(_)) => (alpn == Some(H2)).then_some(true),
            _ => Some(alpn == Some(H2)),
        }
    }
}
