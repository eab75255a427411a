//! One non-blocking connection: connect, write, read, close. Reads go through a scratch buffer of the event loop, so
//! that an idle stream holds no buffer of its own.

pub mod request;
pub mod response;
pub mod timeouts;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
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
        Ok(Self { stream: socket.into() })
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

    /// Writes what fits.
    ///
    /// # Errors
    /// Of the socket, `WouldBlock` included.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.write(bytes) {
            Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            result => result,
        }
    }

    /// Reads what is there; 0 = the peer closed.
    ///
    /// # Errors
    /// Of the socket, `WouldBlock` included.
    pub fn read(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        self.stream.read(scratch)
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
