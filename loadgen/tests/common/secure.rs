//! Servers with TLS and HTTP/2, and certificates made for one test.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::Response;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::{JSON_BODY, Request, SSE_BODY, Server};

/// A certificate that vouches for itself, in a file of its own.
pub struct Certified {
    dir: tempfile::TempDir,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Certified {
    pub fn new(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), made.cert.pem()).unwrap();
        Self { dir, certificate: made.cert.der().clone(), key: made.signing_key.serialize_der() }
    }

    /// The file for `--ca`.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn config(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.clone()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|word| word.to_vec()).collect();
        Arc::new(config)
    }
}

/// One TLS connection as the handler sees it.
pub struct TlsPeer {
    stream: StreamOwned<ServerConnection, std::net::TcpStream>,
    buffer: Vec<u8>,
}

impl TlsPeer {
    pub fn request(&mut self) -> Option<Request> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(request) = Request::take(&mut self.buffer, 0) {
                return Some(request);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }

    pub fn send(&mut self, text: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(text.as_ref()).and_then(|()| self.stream.flush()).is_ok()
    }

    /// Ends TLS in order.
    pub fn goodbye(&mut self) {
        self.stream.conn.send_close_notify();
        let _ = self.stream.flush();
    }
}

/// A TLS server whose handler speaks HTTP/1.1.
pub struct TlsServer(Server);

impl TlsServer {
    pub fn start(
        certified: &Certified,
        alpn: &[&[u8]],
        handler: impl Fn(&mut TlsPeer) + Send + Sync + 'static,
    ) -> Self {
        let config = certified.config(alpn);
        Self(Server::start(move |peer| {
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let stream = StreamOwned::new(tls, peer.stream.try_clone().unwrap());
            handler(&mut TlsPeer { stream, buffer: Vec::new() });
        }))
    }

    /// By name, since certificates are for names.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.0.address.port())
    }
}

/// What an HTTP/2 server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    Good,
    After(Duration),
    /// A stream of events that stops after its first content.
    Endless,
    HeadOnly,
    Never,
    Reset,
    Refuse,
    HeadThenReset,
    HeadThenEnd,
    Status(u16),
    Garbage,
    GoodThenGoAway,
}

/// An HTTP/2 server; it ends with the test's process.
pub struct Http2 {
    pub address: SocketAddr,
    secure: bool,
    resets: Arc<AtomicU64>,
    /// Heads and bodies that arrived.
    pub seen: Arc<Mutex<Vec<(String, String)>>>,
    _runtime: tokio::runtime::Runtime,
}

type Choose = Arc<dyn Fn(u64) -> Say + Send + Sync>;

#[derive(Clone)]
struct Shared {
    choose: Choose,
    requests: Arc<AtomicU64>,
    resets: Arc<AtomicU64>,
    seen: Arc<Mutex<Vec<(String, String)>>>,
}

impl Http2 {
    /// By prior knowledge; `choose` gets the number of the request at this server.
    pub fn start(streams: Option<u32>, choose: impl Fn(u64) -> Say + Send + Sync + 'static) -> Self {
        Self::begin(None, streams, Arc::new(choose))
    }

    pub fn start_secure(
        certified: &Certified,
        streams: Option<u32>,
        choose: impl Fn(u64) -> Say + Send + Sync + 'static,
    ) -> Self {
        Self::begin(Some(certified.config(&[b"h2"])), streams, Arc::new(choose))
    }

    fn begin(tls: Option<Arc<ServerConfig>>, streams: Option<u32>, choose: Choose) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, secure) = (listener.local_addr().unwrap(), tls.is_some());
        let (resets, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let shared =
            Shared { choose, requests: Arc::default(), resets: Arc::clone(&resets), seen: Arc::clone(&seen) };
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(accept(stream, tls.clone(), streams, shared.clone()));
            }
        });
        Self { address, secure, resets, seen, _runtime: runtime }
    }

    pub fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://localhost:{}", self.address.port())
    }

    /// Waits until the client has reset so many streams.
    pub fn wait_for_resets(&self, count: u64) {
        while self.resets.load(Ordering::SeqCst) < count {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

async fn accept(stream: TcpStream, tls: Option<Arc<ServerConfig>>, streams: Option<u32>, shared: Shared) {
    match tls {
        None => serve(stream, streams, shared).await,
        Some(config) => {
            if let Ok(stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await {
                serve(stream, streams, shared).await;
            }
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, streams: Option<u32>, shared: Shared) {
    let mut builder = h2::server::Builder::new();
    if let Some(streams) = streams {
        builder.max_concurrent_streams(streams);
    }
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    let goodbye = Arc::new(tokio::sync::Notify::new());
    loop {
        tokio::select! {
            () = goodbye.notified() => connection.graceful_shutdown(),
            request = connection.accept() => {
                let Some(Ok((request, respond))) = request else { return };
                let number = shared.requests.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer(request, respond, (shared.choose)(number), shared.clone(), Arc::clone(&goodbye)));
            }
        }
    }
}

async fn answer(
    request: http::Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    say: Say,
    shared: Shared,
    goodbye: Arc<tokio::sync::Notify>,
) {
    match say {
        Say::Reset => return respond.send_reset(Reason::INTERNAL_ERROR),
        Say::Refuse => return respond.send_reset(Reason::REFUSED_STREAM),
        _ => {}
    }
    let (parts, mut incoming) = request.into_parts();
    let mut head = format!("{} {}\n", parts.method, parts.uri.path());
    for (name, value) in &parts.headers {
        head.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
    }
    let mut body = Vec::new();
    while let Some(Ok(data)) = incoming.data().await {
        let _ = incoming.flow_control().release_capacity(data.len());
        body.extend_from_slice(&data);
    }
    let body = String::from_utf8(body).unwrap();
    let stream = body.contains("\"stream\":true");
    shared.seen.lock().unwrap().push((head, body));
    let kind = if stream { "text/event-stream" } else { "application/json" };
    let status = if let Say::Status(status) = say { status } else { 200 };
    let builder = Response::builder().status(status).header("content-type", kind);
    let head = builder.header("x-request-id", "req-1-2").header("x-devshard-id", "7").body(()).unwrap();
    let whole = Bytes::from_static(if stream { SSE_BODY.as_bytes() } else { JSON_BODY.as_bytes() });
    match say {
        Say::After(time) => tokio::time::sleep(time).await,
        Say::Never => return hold(&mut respond, &shared).await,
        _ => {}
    }
    let Ok(mut out) = respond.send_response(head, false) else { return };
    match say {
        Say::HeadOnly => {}
        Say::HeadThenEnd => return drop(out.send_data(Bytes::new(), true)),
        Say::HeadThenReset => {
            // A reset takes what has not been read yet.
            tokio::time::sleep(Duration::from_secs(1)).await;
            return out.send_reset(Reason::INTERNAL_ERROR);
        }
        Say::Endless => drop(out.send_data(whole.slice(..700.min(whole.len() - 1)), false)),
        Say::Garbage => return drop(out.send_data(Bytes::from_static(b"data: {\n\n"), true)),
        _ => {
            let _ = out.send_data(whole, true);
            if say == Say::GoodThenGoAway {
                goodbye.notify_one();
            }
            return;
        }
    }
    if let Ok(Ok(_)) = tokio::time::timeout(
        Duration::from_secs(120),
        std::future::poll_fn(|context| out.poll_reset(context)),
    )
    .await
    {
        shared.resets.fetch_add(1, Ordering::SeqCst);
    }
}

/// Says nothing until the client has enough.
async fn hold(respond: &mut SendResponse<Bytes>, shared: &Shared) {
    if std::future::poll_fn(|context| respond.poll_reset(context)).await.is_ok() {
        shared.resets.fetch_add(1, Ordering::SeqCst);
    }
}
