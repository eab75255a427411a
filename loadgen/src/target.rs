//! Where requests go: the gateway's URL, taken apart, and its addresses.

use std::net::{SocketAddr, ToSocketAddrs};

use http::Uri;

use crate::clock::Clock;
use crate::error::LoadgenError;

/// The only path that is called, below the base URL (design section 10).
const CHAT_PATH: &str = "/v1/chat/completions";
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A gateway as the hot path needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Addresses in the resolver's order; none before the first resolution.
    pub addresses: Vec<SocketAddr>,
    /// What resolving took, microseconds.
    pub resolve_us: u64,
    /// Host without brackets or port.
    pub name: String,
    /// Port.
    pub port: u16,
    /// TLS.
    pub secure: bool,
    /// Value of the `Host` header.
    pub host: String,
    /// What the request line asks for: the path of the chat call, or all of its URL where a proxy passes it on.
    pub path: String,
    /// Name and port of the proxy, where there is one: connections go to it.
    pub proxy: Option<(String, u16)>,
}

impl Target {
    /// Reads a base URL and resolves its host once; no proxy variable is looked at.
    ///
    /// # Errors
    /// Usage for anything but `http[s]://host[:port][/path]`, environment when the name does not resolve.
    pub fn resolve(base_url: &str) -> Result<Self, LoadgenError> {
        let url = take_apart(base_url)?;
        let path = format!("{}{CHAT_PATH}", url.path.trim_end_matches('/'));
        Self::at(url, path).resolved()
    }

    /// Reads the URL of a call; one without a path gets `default_path`. Its name is not resolved yet.
    ///
    /// # Errors
    /// Usage as [`Target::resolve`].
    pub fn of_call(url: &str, default_path: &str) -> Result<Self, LoadgenError> {
        let url = take_apart(url)?;
        let path = if url.path.len() <= 1 { default_path.to_owned() } else { url.path.clone() };
        Ok(Self::at(url, path))
    }

    fn at(url: Url, path: String) -> Self {
        let name = bare(&url.host);
        let usual = if url.secure { HTTPS_PORT } else { HTTP_PORT };
        let host = if url.port == usual { url.host } else { format!("{}:{}", url.host, url.port) };
        Self { name, port: url.port, secure: url.secure, host, path, ..Self::default() }
    }

    /// The same by way of a proxy: requests to `http://` ask it for the whole URL, those to `https://` go through a
    /// tunnel that it opens.
    ///
    /// # Errors
    /// Usage for anything but `http://host:port`.
    pub fn through(mut self, proxy: &str) -> Result<Self, LoadgenError> {
        let url = take_apart(proxy)?;
        if url.secure || url.path.len() > 1 {
            return Err(LoadgenError::Usage(format!("proxy {proxy:?}: write http://host:port")));
        }
        if !self.secure {
            self.path = format!("http://{}{}", self.host, self.path);
        }
        self.proxy = Some((bare(&url.host), url.port));
        Ok(self)
    }

    /// Name and port that connections go to.
    #[must_use]
    pub fn peer(&self) -> (&str, u16) {
        self.proxy.as_ref().map_or((&self.name, self.port), |(name, port)| (name, *port))
    }

    /// What a proxy is asked for to open a tunnel; `None` where none is needed.
    #[must_use]
    pub fn tunnel(&self) -> Option<String> {
        let authority = if self.name.contains(':') {
            format!("[{}]:{}", self.name, self.port)
        } else {
            format!("{}:{}", self.name, self.port)
        };
        let build = env!("CARGO_PKG_VERSION");
        (self.secure && self.proxy.is_some()).then(|| {
            format!(
                "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: proofload/{build}\r\n\r\n"
            )
        })
    }

    /// The same with its addresses.
    ///
    /// # Errors
    /// Environment when the name does not resolve.
    pub fn resolved(mut self) -> Result<Self, LoadgenError> {
        let start = Clock::start();
        let (name, port) = self.peer();
        self.addresses = look_up(name, port).map_err(LoadgenError::Environment)?;
        self.resolve_us = start.now_us();
        Ok(self)
    }
}

/// A host without the brackets of IPv6.
fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

/// All addresses of a name; no proxy variable is looked at. May wait for the resolver.
///
/// # Errors
/// Why there is none.
pub fn look_up(name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = (name, port)
        .to_socket_addrs()
        .map_err(|error| format!("gateway host {name:?} does not resolve: {error}"))?;
    // The resolver may give an address once for each of its own sources.
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(format!("gateway host {name:?} has no address"));
    }
    Ok(addresses)
}

struct Url {
    secure: bool,
    host: String,
    port: u16,
    path: String,
}

fn take_apart(base_url: &str) -> Result<Url, LoadgenError> {
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
    let uri: Uri = base_url.parse().map_err(|_| bad("not a URL; write http://host:port"))?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad("write http://host:port or https://host:port")),
    };
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
        (None, false) => {
            if secure {
                HTTPS_PORT
            } else {
                HTTP_PORT
            }
        }
    };
    Ok(Url { secure, host: authority.host().to_owned(), port, path: uri.path().to_owned() })
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
            ("https://127.0.0.1", "127.0.0.1", "/v1/chat/completions"),
            ("https://127.0.0.1:80", "127.0.0.1:80", "/v1/chat/completions"),
        ] {
            let target = Target::resolve(url).unwrap();
            assert_eq!((target.host.as_str(), target.path.as_str()), (host, path), "{url}");
            assert_eq!(target.addresses.len(), 1, "{url}");
        }
    }

    #[test]
    fn a_proxy_takes_the_connections_and_the_target_keeps_its_names() {
        let plain = Target::of_call("http://a.invalid:81/v1/x", "/")
            .unwrap()
            .through("http://127.0.0.1:3128")
            .unwrap();
        assert_eq!((plain.peer(), plain.path.as_str()), (("127.0.0.1", 3128), "http://a.invalid:81/v1/x"));
        assert_eq!((plain.host.as_str(), plain.tunnel()), ("a.invalid:81", None));
        let secure =
            Target::of_call("https://[::1]/v1/x", "/").unwrap().through("http://[::1]:3128/").unwrap();
        assert_eq!((secure.peer(), secure.path.as_str()), (("::1", 3128), "/v1/x"));
        let asked = secure.tunnel().unwrap();
        assert!(asked.starts_with("CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n"), "{asked}");
        for bad in ["https://p:1", "http://p:1/path", "socks5://p:1", "p:1", "http://user:hunter22@p:1"] {
            let error = Target::of_call("http://a", "/").unwrap().through(bad).unwrap_err();
            assert!(
                matches!(error, LoadgenError::Usage(_)) && !error.to_string().contains("hunter22"),
                "{error}"
            );
        }
    }

    #[test]
    fn other_urls_are_usage_errors() {
        for url in [
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
