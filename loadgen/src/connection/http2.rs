//! One HTTP/2 connection, driven by readiness like every other one: crate `h2` does framing, header compression and
//! flow control, and never waits, since its wakers only leave notes. What happened comes out as events.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use h2::client::{Connection as H2Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Connection;
use super::response::{Framing, HEAD_BYTES_MAX, Head, bounded};

/// Windows for what the peer may send ahead: of a stream, and of the connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Bytes read in one turn, so that one busy connection does not hold up the others.
const TURN_BYTES: usize = 512 * 1024;
/// Rounds of one turn; what is left is done in the next one.
const TURN_ROUNDS: usize = 64;

/// What happened to a stream.
#[derive(Debug)]
pub enum Event {
    /// All of its request is in the kernel.
    Sent,
    /// Its headers came.
    Head(Box<Head>),
    /// A part of its body came.
    Data(Bytes),
    /// Its body is whole.
    End,
    /// It ended early.
    Failed(Broken),
}

/// Why a stream ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The peer says that it did nothing for this stream (GOAWAY, REFUSED_STREAM): it may go out once more.
    pub unprocessed: bool,
    /// The connection ended, and not this stream alone.
    pub connection_died: bool,
    /// In words.
    pub why: String,
}

/// A connection with its streams, each under the number of its request.
pub struct Session {
    io: SharedIo,
    state: State,
    streams: BTreeMap<usize, Stream>,
    /// All of their request has been given to the connection, which may still hold it back.
    queued: Vec<usize>,
    notes: Arc<Notes>,
    waker: Waker,
    /// No stream can be opened any more.
    closing: bool,
    /// The connection is over.
    dead: Option<String>,
    authority: String,
    secure: bool,
    said: Said,
}

/// What the last request said in its head: the next one says most of it again, and what was checked and copied once is
/// shared then.
#[derive(Default)]
struct Said {
    uri: Option<Uri>,
    /// By place, each with its name as it was written.
    headers: Vec<(String, HeaderName, HeaderValue)>,
}

impl Said {
    fn header(
        &mut self,
        place: usize,
        header: &httparse::Header<'_>,
    ) -> Result<(HeaderName, HeaderValue), String> {
        if let Some((written, name, value)) = self.headers.get_mut(place)
            && written == header.name
        {
            if value.as_bytes() != header.value {
                *value = HeaderValue::from_bytes(header.value).map_err(|error| error.to_string())?;
            }
            return Ok((name.clone(), value.clone()));
        }
        let name: HeaderName =
            header.name.parse().map_err(|_| format!("{:?} is no header name", header.name))?;
        let value = HeaderValue::from_bytes(header.value).map_err(|error| error.to_string())?;
        self.headers.truncate(place);
        self.headers.push((header.name.to_owned(), name.clone(), value.clone()));
        Ok((name, value))
    }
}

type Up = (SendRequest<Bytes>, H2Connection<SharedIo, Bytes>);

enum State {
    Greeting(Pin<Box<dyn Future<Output = Result<Up, h2::Error>> + Send>>),
    Up(Box<Up>),
    Over,
}

struct Stream {
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    upload: SendStream<Bytes>,
    rest: Bytes,
    waker: Waker,
}

/// Who wants to be polled.
#[derive(Debug, Default)]
struct Notes {
    connection: AtomicBool,
    streams: Mutex<Vec<usize>>,
}

impl Notes {
    fn streams(&self) -> MutexGuard<'_, Vec<usize>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.connection.store(true, Ordering::Relaxed);
    }
}

struct StreamNote {
    slot: usize,
    notes: Arc<Notes>,
}

impl Wake for StreamNote {
    fn wake(self: Arc<Self>) {
        self.notes.streams().push(self.slot);
    }
}

impl Session {
    /// Begins HTTP/2 on a connection that stands.
    #[must_use]
    pub fn new(connection: Connection, authority: String, secure: bool) -> Self {
        let io = SharedIo(Arc::new(Mutex::new(Io { connection, write_blocked: false, budget: TURN_BYTES })));
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
            // Nothing is opened before the peer has said how many streams it grants.
            .initial_max_send_streams(0);
        let state = State::Greeting(Box::pin(builder.handshake(io.clone())));
        let notes = Arc::new(Notes::default());
        notes.connection.store(true, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&notes));
        Self {
            io,
            state,
            streams: BTreeMap::new(),
            queued: Vec::new(),
            notes,
            waker,
            closing: false,
            dead: None,
            authority,
            secure,
            said: Said::default(),
        }
    }

    /// Streams that the peer allows at once; 0 until it has said so.
    #[must_use]
    pub fn granted(&self) -> usize {
        match &self.state {
            State::Up(up) => up.0.current_max_send_streams(),
            State::Greeting(_) | State::Over => 0,
        }
    }

    /// Streams open now.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether a further stream may be opened, `most` of them at once.
    pub fn has_room(&mut self, most: usize) -> bool {
        let (granted, open) = (self.granted(), self.streams.len());
        let State::Up(up) = &mut self.state else { return false };
        if self.closing || open >= most.min(granted) {
            return false;
        }
        match up.0.poll_ready(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(_)) => {
                self.closing = true;
                false
            }
            Poll::Pending => false,
        }
    }

    /// Whether no stream can be opened any more: the peer said so, or the connection is over.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing || self.dead.is_some()
    }

    /// Opens no further stream.
    pub fn retire(&mut self) {
        self.closing = true;
    }

    /// Why the connection is over, if it is.
    #[must_use]
    pub fn dead(&self) -> Option<&str> {
        self.dead.as_deref()
    }

    /// Whether something is left to be done in another turn.
    #[must_use]
    pub fn wants_turn(&self) -> bool {
        self.dead.is_none()
            && (self.notes.connection.load(Ordering::Relaxed) || !self.notes.streams().is_empty())
    }

    /// Whether the socket must be watched for room.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        let io = self.io.lock();
        io.write_blocked || io.connection.wants_write()
    }

    /// Opens a stream for a request that is written down as HTTP/1.1; its bytes leave with the next turn.
    ///
    /// # Errors
    /// When the request can't be said in HTTP/2 or the connection takes none.
    pub fn open(&mut self, slot: usize, request: &[u8]) -> Result<(), String> {
        let (head, body) = self.translate(request)?;
        let State::Up(up) = &mut self.state else { return Err("HTTP/2 is not up".to_owned()) };
        let end = body.is_empty();
        let (response, upload) = up.0.send_request(head, end).map_err(|error| error.to_string())?;
        let note = StreamNote { slot, notes: Arc::clone(&self.notes) };
        let stream = Stream {
            response: Some(response),
            body: None,
            upload,
            rest: body,
            waker: Waker::from(Arc::new(note)),
        };
        self.streams.insert(slot, stream);
        self.notes.streams().push(slot);
        self.notes.connection.store(true, Ordering::Relaxed);
        if end {
            self.queued.push(slot);
        }
        Ok(())
    }

    fn translate(&mut self, request: &[u8]) -> Result<(Request<()>, Bytes), String> {
        // Not filled beforehand: that would be 4 KB a request.
        let mut headers = [const { MaybeUninit::uninit() }; 128];
        let mut parsed = httparse::Request::new(&mut []);
        let length = match parsed.parse_with_uninit_headers(request, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            _ => return Err("the request is not whole".to_owned()),
        };
        let path = parsed.path.unwrap_or("/");
        if self.said.uri.as_ref().is_none_or(|uri| uri.path_and_query().is_none_or(|known| known != path)) {
            let scheme = if self.secure { "https" } else { "http" };
            let builder = Uri::builder().scheme(scheme).authority(self.authority.as_str());
            self.said.uri = Some(builder.path_and_query(path).build().map_err(|error| error.to_string())?);
        }
        let mut head = Request::new(());
        *head.method_mut() = parsed.method.unwrap_or("POST").parse().map_err(|_| "no method".to_owned())?;
        *head.uri_mut() = self.said.uri.clone().unwrap_or_default();
        *head.version_mut() = Version::HTTP_2;
        // The authority takes the place of `Host`.
        let own = parsed.headers.iter().filter(|header| !header.name.eq_ignore_ascii_case("host"));
        head.headers_mut().reserve(parsed.headers.len());
        for (place, header) in own.enumerate() {
            let (name, value) = self.said.header(place, header)?;
            head.headers_mut().append(name, value);
        }
        Ok((head, Bytes::copy_from_slice(&request[length..])))
    }

    /// Takes a stream out; one that has not ended is reset (CANCEL). The reset leaves with the next turn.
    pub fn drop_stream(&mut self, slot: usize) {
        if let Some(mut stream) = self.streams.remove(&slot) {
            stream.upload.send_reset(Reason::CANCEL);
            self.queued.retain(|queued| *queued != slot);
            self.notes.connection.store(true, Ordering::Relaxed);
        }
    }

    /// Does what can be done without waiting.
    pub fn turn(&mut self, events: &mut Vec<(usize, Event)>) {
        self.io.lock().budget = TURN_BYTES;
        // The socket is ready for something, or a stream wants something of the connection.
        self.notes.connection.store(true, Ordering::Relaxed);
        for _ in 0..TURN_ROUNDS {
            if self.notes.connection.swap(false, Ordering::Relaxed) {
                self.poll_connection();
            }
            self.note_sent(events);
            let mut woken = std::mem::take(&mut *self.notes.streams());
            woken.sort_unstable();
            woken.dedup();
            woken.iter().for_each(|slot| self.poll_stream(*slot, events));
            let idle = !self.notes.connection.load(Ordering::Relaxed) && self.notes.streams().is_empty();
            if idle || self.dead.is_some() {
                break;
            }
        }
        if let Some(why) = self.dead.clone() {
            // Each stream is asked for what it still has; what h2 has not told of it ends with the connection.
            let slots: Vec<usize> = self.streams.keys().copied().collect();
            slots.into_iter().for_each(|slot| self.poll_stream(slot, events));
            for slot in std::mem::take(&mut self.streams).into_keys() {
                let broken = Broken { unprocessed: false, connection_died: true, why: why.clone() };
                events.push((slot, Event::Failed(broken)));
            }
            self.state = State::Over;
        }
    }

    fn poll_connection(&mut self) {
        let mut context = Context::from_waker(&self.waker);
        if let State::Greeting(greeting) = &mut self.state {
            match greeting.as_mut().poll(&mut context) {
                Poll::Pending => return,
                Poll::Ready(Ok(up)) => self.state = State::Up(Box::new(up)),
                Poll::Ready(Err(error)) => {
                    self.dead = Some(error.to_string());
                    return;
                }
            }
        }
        let State::Up(up) = &mut self.state else { return };
        if let Poll::Ready(result) = Pin::new(&mut up.1).poll(&mut context) {
            self.dead = Some(match result {
                Ok(()) => "closed by the peer".to_owned(),
                Err(error) => error.to_string(),
            });
        }
    }

    fn note_sent(&mut self, events: &mut Vec<(usize, Event)>) {
        if self.queued.is_empty() || self.wants_write() {
            return;
        }
        for slot in std::mem::take(&mut self.queued) {
            // One that is answered already did not need the rest of its request.
            if self.streams.get(&slot).is_some_and(|stream| stream.response.is_some()) {
                events.push((slot, Event::Sent));
            }
        }
    }

    fn poll_stream(&mut self, slot: usize, events: &mut Vec<(usize, Event)>) {
        let Some(stream) = self.streams.get_mut(&slot) else { return };
        let waker = stream.waker.clone();
        let mut context = Context::from_waker(&waker);
        if !stream.rest.is_empty() && stream.upload(&mut context) {
            self.queued.push(slot);
            self.notes.connection.store(true, Ordering::Relaxed);
        }
        let broken = stream.download(&mut context, &mut |event| events.push((slot, event)));
        match broken {
            Poll::Pending => return,
            Poll::Ready(Ok(())) => events.push((slot, Event::End)),
            Poll::Ready(Err(error)) => {
                // What was queued before the error is of no use to anybody.
                events.push((slot, Event::Failed(Broken::of(&error))));
            }
        }
        self.streams.remove(&slot);
        self.queued.retain(|queued| *queued != slot);
        // Windows and resets leave with the connection.
        self.notes.connection.store(true, Ordering::Relaxed);
    }

    /// Looks at the connection itself.
    pub fn with_connection<R>(&self, look: impl FnOnce(&Connection) -> R) -> R {
        look(&self.io.lock().connection)
    }
}

impl Stream {
    /// Gives the connection what it has room for; says whether that was the last part.
    fn upload(&mut self, context: &mut Context<'_>) -> bool {
        while !self.rest.is_empty() {
            self.upload.reserve_capacity(self.rest.len());
            let room = self.upload.capacity().min(self.rest.len());
            if room == 0 {
                match self.upload.poll_capacity(context) {
                    Poll::Ready(Some(Ok(_))) => continue,
                    Poll::Ready(_) => self.rest.clear(),
                    Poll::Pending => {}
                }
                return false;
            }
            let part = self.rest.split_to(room);
            let last = self.rest.is_empty();
            if self.upload.send_data(part, last).is_err() {
                // Reset by the peer: its answer, or the lack of one, tells.
                self.rest.clear();
                return false;
            }
        }
        true
    }

    fn download(
        &mut self,
        context: &mut Context<'_>,
        tell: &mut dyn FnMut(Event),
    ) -> Poll<Result<(), h2::Error>> {
        if let Some(response) = &mut self.response {
            let (parts, body) = std::task::ready!(Pin::new(response).poll(context))?.into_parts();
            tell(Event::Head(Box::new(head(parts.status.as_u16(), &parts.headers))));
            self.response = None;
            self.body = Some(body);
        }
        let Some(body) = &mut self.body else { return Poll::Pending };
        while let Some(data) = std::task::ready!(body.poll_data(context)) {
            let data = data?;
            // Given back at once: what comes is read at once, so that the peer is never held up by us.
            body.flow_control().release_capacity(data.len())?;
            if !data.is_empty() {
                tell(Event::Data(data));
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn head(status: u16, headers: &HeaderMap) -> Head {
    let text = |name: &str| headers.get(name).map(|value| bounded(value.as_bytes()));
    Head {
        status,
        // The end of the stream ends the body.
        framing: Framing::UntilClose,
        keep_alive: true,
        content_type: text("content-type"),
        request_id: text("x-request-id"),
        devshard_id: text("x-devshard-id"),
        retry_after: text("retry-after"),
    }
}

impl Broken {
    fn of(error: &h2::Error) -> Self {
        let graceful = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        Self {
            unprocessed: graceful || error.reason() == Some(Reason::REFUSED_STREAM),
            connection_died: error.is_io() || error.is_go_away(),
            why: error.to_string(),
        }
    }
}

struct Io {
    connection: Connection,
    write_blocked: bool,
    /// Bytes that may still be read in this turn.
    budget: usize,
}

/// The connection, shared between h2 and the session that looks after its socket.
#[derive(Clone)]
struct SharedIo(Arc<Mutex<Io>>);

impl SharedIo {
    fn lock(&self) -> MutexGuard<'_, Io> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for SharedIo {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut io = self.lock();
        // No waker is kept: the poller reports by level, so what is left is reported again.
        if io.budget == 0 && !io.connection.has_decrypted() {
            return Poll::Pending;
        }
        loop {
            match io.connection.read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    io.budget = io.budget.saturating_sub(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for SharedIo {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut io = self.lock();
        io.write_blocked = false;
        loop {
            match io.connection.write(bytes) {
                Ok(0) if !bytes.is_empty() => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    io.write_blocked = true;
                    return Poll::Pending;
                }
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut io = self.lock();
        io.write_blocked = false;
        match io.connection.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                io.write_blocked = true;
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The socket is closed when the session is dropped.
        self.poll_flush(context)
    }
}
