//! One non-blocking connection: connect, secure, write, read, close. Reads go through a scratch buffer of the event
//! loop, so that an idle stream holds no buffer of its own.

pub mod http2;
pub mod request;
pub mod response;
pub mod timeouts;
pub mod tls;
pub mod transport;
pub mod tunnel;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use self::tunnel::Tunnel;
use rustix::io::Errno;
use rustls::ClientConnection;
use scenario::fault::Close;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Bytes taken from a socket at once.
pub const SCRATCH_BYTES: usize = 64 * 1024;
/// Reads that empty the receive buffer before a FIN; a peer that goes on sending gets the RST it asks for.
const DRAIN_READS_MAX: usize = 16;

/// A connection, perhaps still being made.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    tunnel: Option<Box<Tunnel>>,
    /// Decrypted bytes that nobody has taken yet: the kernel does not report them as readable.
    decrypted: usize,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Connection {
    /// Begins to connect; [`Connection::connected`] tells how it went once the socket can be written.
    ///
    /// # Errors
    /// When the kernel refuses at once.
    pub fn begin(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        // One small write a request: waiting to fill a segment would only add latency.
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Ok(Self { stream: socket.into(), tls: None, tunnel: None, decrypted: 0 })
    }

    /// Whether the connection stands.
    ///
    /// # Errors
    /// Why it can't stand.
    pub fn connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Asks a proxy for a tunnel; [`Connection::tunnel`] drives it.
    pub fn ask_tunnel(&mut self, asked: String) {
        self.tunnel = Some(Box::new(Tunnel::new(asked)));
    }

    /// Goes on with the tunnel; says whether it stands.
    ///
    /// # Errors
    /// In words, when it never will.
    pub fn tunnel(&mut self, scratch: &mut [u8]) -> Result<bool, String> {
        if let Some(tunnel) = &mut self.tunnel
            && !tunnel.go_on(&mut self.stream, scratch)?
        {
            return Ok(false);
        }
        self.tunnel = None;
        Ok(true)
    }

    /// Puts TLS on a connection that stands; [`Connection::handshake`] drives it.
    pub fn secure(&mut self, tls: ClientConnection) {
        self.tls = Some(Box::new(tls));
    }

    /// Goes on with the TLS handshake; says whether it is over.
    ///
    /// # Errors
    /// Of the socket, or `InvalidData` with what TLS has to say.
    pub fn handshake(&mut self) -> io::Result<bool> {
        loop {
            match self.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                other => other?,
            }
            let Some(tls) = &self.tls else { return Ok(true) };
            if !tls.is_handshaking() {
                return Ok(true);
            }
            match self.take_records() {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => {
                    // The alert that says why goes out before the end.
                    let _ = self.flush();
                    return Err(error);
                }
            }
        }
    }

    /// The application protocol that both sides agreed on.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.alpn_protocol()
    }

    /// Whether bytes wait for room in the socket.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
            || self.tunnel.as_ref().is_some_and(|tunnel| tunnel.wants_write())
    }

    /// Whether decrypted bytes wait to be read.
    #[must_use]
    pub fn has_decrypted(&self) -> bool {
        self.decrypted > 0
    }

    /// One read of TLS records; 0 = the peer closed its side.
    fn take_records(&mut self) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return Ok(0) };
        let count = tls.read_tls(&mut self.stream)?;
        match tls.process_new_packets() {
            Ok(state) => self.decrypted = state.plaintext_bytes_to_read(),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
        Ok(count)
    }

    /// Sends what TLS holds back; without TLS nothing is held back.
    ///
    /// # Errors
    /// Of the socket; `WouldBlock` while something is left.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            if tls.write_tls(&mut self.stream)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Writes what fits. Under TLS, what was taken may still wait for [`Connection::flush`].
    ///
    /// # Errors
    /// Of the socket, `WouldBlock` included.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return match self.stream.write(bytes) {
                Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
                result => result,
            };
        };
        match tls.writer().write(bytes) {
            Ok(0) if !bytes.is_empty() => {
                // The buffer of TLS is full: room comes with what the socket takes.
                self.flush()?;
                Ok(0)
            }
            result => result,
        }
    }

    /// Reads what is there; 0 = the peer closed.
    ///
    /// # Errors
    /// Of the socket, `WouldBlock` included; `UnexpectedEof` when TLS was not closed in order.
    pub fn read(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.stream.read(scratch);
        }
        if self.decrypted == 0 {
            self.take_records()?;
        }
        let Some(tls) = &mut self.tls else { return Ok(0) };
        let result = tls.reader().read(scratch);
        self.decrypted = self.decrypted.saturating_sub(*result.as_ref().unwrap_or(&0));
        result
    }

    /// Cuts the connection as a leaving client does. Errors don't matter: it is gone either way.
    pub fn cut(self, close: Close) {
        let socket = SockRef::from(&self.stream);
        if close == Close::Rst {
            let _ = socket.set_linger(Some(std::time::Duration::ZERO));
            return;
        }
        let _ = socket.shutdown(std::net::Shutdown::Write);
        // Closing with unread bytes would make the kernel send RST instead of FIN.
        let mut stream = &self.stream;
        let mut rest = [0; 4096];
        for _ in 0..DRAIN_READS_MAX {
            if !matches!(stream.read(&mut rest), Ok(count) if count > 0) {
                break;
            }
        }
    }
}
