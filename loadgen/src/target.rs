//! Where requests go: the gateway's base URL, taken apart and resolved once.

use std::net::{SocketAddr, ToSocketAddrs};

use http::Uri;

use crate::error::LoadgenError;

/// The only path that is called, below the base URL (design section 10).
const CHAT_PATH: &str = "/v1/chat/completions";
const HTTP_PORT: u16 = 80;

/// A gateway as the hot path needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Addresses in the resolver's order; at least one.
    pub addresses: Vec<SocketAddr>,
    /// Value of the `Host` header.
    pub host: String,
    /// Path of the chat call.
    pub path: String,
}

impl Target {
    /// Reads a base URL and resolves its host once; no proxy variable is looked at.
    ///
    /// # Errors
    /// Usage for anything but a plain `http://host[:port][/path]`, environment when the name does not resolve.
    pub fn resolve(base_url: &str) -> Result<Self, LoadgenError> {
        let (host, port, path) = take_apart(base_url)?;
        Self::at(host, port, format!("{}{CHAT_PATH}", path.trim_end_matches('/')))
    }

    /// Reads the URL of a call; one without a path gets `default_path`.
    ///
    /// # Errors
    /// As [`Target::resolve`].
    pub fn of_call(url: &str, default_path: &str) -> Result<Self, LoadgenError> {
        let (host, port, path) = take_apart(url)?;
        Self::at(host, port, if path.len() <= 1 { default_path.to_owned() } else { path })
    }

    fn at(host: String, port: u16, path: String) -> Result<Self, LoadgenError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<SocketAddr> = (bare, port)
            .to_socket_addrs()
            .map_err(|error| {
                LoadgenError::Environment(format!("gateway host {bare:?} does not resolve: {error}"))
            })?
            .collect();
        if addresses.is_empty() {
            return Err(LoadgenError::Environment(format!("gateway host {bare:?} has no address")));
        }
        let host = if port == HTTP_PORT { host } else { format!("{host}:{port}") };
        Ok(Self { addresses, host, path })
    }
}

/// Host, port and path of a URL.
fn take_apart(base_url: &str) -> Result<(String, u16, String), LoadgenError> {
    let bad = |why: &str| {
        // A password in a URL must not reach the terminal, so the URL is shown without its user part.
        let shown = match (base_url.find("://"), base_url.rfind('@')) {
            (Some(scheme), Some(at)) if at > scheme => {
                format!("{}…{}", &base_url[..scheme + 3], &base_url[at..])
            }
            _ => base_url.to_owned(),
        };
        LoadgenError::Usage(format!("gateway URL {shown:?}: {why}"))
    };
    if base_url.starts_with("https:") {
        return Err(bad("https is not supported; give the http:// address of the gateway"));
    }
    let uri: Uri = base_url.parse().map_err(|_| bad("not a URL; write http://host:port"))?;
    if uri.scheme_str() != Some("http") {
        return Err(bad("write http://host:port"));
    }
    let authority = uri.authority().ok_or_else(|| bad("no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("no user or password here; a key comes in PROOFLOAD_CLIENT_KEY"));
    }
    if uri.query().is_some() || base_url.contains('#') {
        return Err(bad("a base URL has neither query nor fragment"));
    }
    if authority.host().is_empty() {
        return Err(bad("no host"));
    }
    let port = match (authority.port_u16(), authority.as_str().len() > authority.host().len()) {
        (Some(0), _) | (None, true) => return Err(bad("the port is a number from 1 to 65535")),
        (Some(port), _) => port,
        (None, false) => HTTP_PORT,
    };
    Ok((authority.host().to_owned(), port, uri.path().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_taken_apart() {
        for (url, host, path) in [
            ("http://127.0.0.1:8081", "127.0.0.1:8081", "/v1/chat/completions"),
            ("http://127.0.0.1:8081/", "127.0.0.1:8081", "/v1/chat/completions"),
            ("http://127.0.0.1/devshard/7", "127.0.0.1", "/devshard/7/v1/chat/completions"),
            ("http://[::1]:99", "[::1]:99", "/v1/chat/completions"),
        ] {
            let target = Target::resolve(url).unwrap();
            assert_eq!((target.host.as_str(), target.path.as_str()), (host, path), "{url}");
            assert_eq!(target.addresses.len(), 1, "{url}");
        }
    }

    #[test]
    fn other_urls_are_usage_errors() {
        for url in [
            "https://127.0.0.1:1",
            "127.0.0.1:8081",
            "http://",
            "http://:80",
            "ftp://h/",
            "http://h:0",
            "http://h:99999",
            "http://h:1/?a=b",
            "http://h:1/#a",
            "",
            "http://user:hunter22@h:1",
        ] {
            let error = Target::resolve(url).unwrap_err();
            assert!(matches!(error, LoadgenError::Usage(_)), "{url}: {error}");
            assert!(!error.to_string().contains("hunter22"), "{error}");
        }
    }
}
