//! One HTTP/1.1 connection: connect, write, read, close. The reads of all connections go through one scratch buffer,
//! so that an idle stream holds no buffer of its own.

pub mod pool;
pub mod request;
pub mod response;
pub mod timeouts;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read as _};
use std::pin::Pin;
use std::task::Poll;

use scenario::fault::Close;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use self::timeouts::{Deadlines, Expiry};
use crate::target::Target;

/// Bytes taken from a socket at once.
pub const SCRATCH_BYTES: usize = 64 * 1024;
/// Reads that empty the receive buffer before a FIN; a peer that goes on sending gets the RST it asks for.
const DRAIN_READS_MAX: usize = 16;

/// Why reading or writing stopped.
#[derive(Debug)]
pub enum Stop {
    /// The socket failed.
    Io(io::Error),
    /// A deadline passed.
    Expired(Expiry),
}

/// How a write went.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// All bytes are in the kernel.
    All,
    /// The peer answered or closed before it had everything; the rest is not sent.
    Early,
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects to the first address of the target that accepts.
    ///
    /// # Errors
    /// [`Stop`] with the error of the last address, or the deadline.
    pub async fn open(target: &Target, deadlines: &mut Deadlines) -> Result<Self, Stop> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in &target.addresses {
            let mut connecting = std::pin::pin!(TcpStream::connect(*address));
            let result = poll_fn(|cx| match connecting.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(result.map_err(Stop::Io)),
                Poll::Pending => deadlines.poll(cx).map(|expiry| Err(Stop::Expired(expiry))),
            })
            .await;
            match result {
                Ok(stream) => {
                    // One small write a request: waiting to fill a segment would only add latency.
                    stream.set_nodelay(true).map_err(Stop::Io)?;
                    return Ok(Self { stream });
                }
                Err(Stop::Io(error)) => last = error,
                Err(expired) => return Err(expired),
            }
        }
        Err(Stop::Io(last))
    }

    /// Writes everything, unless the peer speaks or closes first.
    ///
    /// # Errors
    /// [`Stop`] when the socket fails or a deadline passes.
    pub async fn write_all(&mut self, bytes: &[u8], deadlines: &mut Deadlines) -> Result<Written, Stop> {
        let mut written = 0;
        while written < bytes.len() {
            let step = poll_fn(|cx| match Pin::new(&mut self.stream).poll_write(cx, &bytes[written..]) {
                Poll::Ready(Ok(0)) => Poll::Ready(Err(Stop::Io(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(count)) => Poll::Ready(Ok(Some(count))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(Stop::Io(error))),
                Poll::Pending => {
                    // A peek, not readiness: readiness may be left over from an earlier answer.
                    let mut byte = [0; 1];
                    if self.stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)).is_ready() {
                        return Poll::Ready(Ok(None));
                    }
                    deadlines.poll(cx).map(|expiry| Err(Stop::Expired(expiry)))
                }
            })
            .await?;
            match step {
                Some(count) => written += count,
                None => return Ok(Written::Early),
            }
        }
        Ok(Written::All)
    }

    /// Reads once into the scratch buffer; 0 = the peer closed. The bytes are valid until the caller awaits again.
    ///
    /// # Errors
    /// [`Stop`] when the socket fails or a deadline passes.
    pub async fn read(
        &mut self,
        scratch: &RefCell<Box<[u8]>>,
        deadlines: &mut Deadlines,
    ) -> Result<usize, Stop> {
        poll_fn(|cx| {
            let mut scratch = scratch.borrow_mut();
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) => Poll::Ready(Ok(buffer.filled().len())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(Stop::Io(error))),
                Poll::Pending => deadlines.poll(cx).map(|expiry| Err(Stop::Expired(expiry))),
            }
        })
        .await
    }

    /// Whether an idle connection can still be used: open, and nothing unasked in it.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0; 1];
        matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Cuts the connection as a leaving client does. Errors don't matter: it is gone either way.
    pub fn cut(self, close: Close) {
        let socket = SockRef::from(&self.stream);
        if close == Close::Rst {
            let _ = socket.set_linger(Some(std::time::Duration::ZERO));
            return;
        }
        let _ = socket.shutdown(std::net::Shutdown::Write);
        // Closing with unread bytes would make the kernel send RST instead of FIN. The plain socket is read, since
        // the runtime's one reads only what its driver has already noticed.
        let Ok(mut stream) = self.stream.into_std() else { return };
        let mut rest = [0; 4096];
        for _ in 0..DRAIN_READS_MAX {
            if !matches!(stream.read(&mut rest), Ok(count) if count > 0) {
                break;
            }
        }
    }
}
