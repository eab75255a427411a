//! The way through a proxy to an `https://` target: one `CONNECT`, one answer, and after it whatever the two ends say.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use super::response::HeadReader;

/// A tunnel while it is being opened.
#[derive(Debug)]
pub struct Tunnel {
    asked: String,
    written: usize,
    head: HeadReader,
}

impl Tunnel {
    /// A tunnel that nothing was said for yet; `asked` is the whole request.
    #[must_use]
    pub fn new(asked: String) -> Self {
        Self { asked, written: 0, head: HeadReader::default() }
    }

    /// Whether a part of the request waits for room in the socket.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.written < self.asked.len()
    }

    /// Writes and reads what can be; says whether the tunnel stands.
    ///
    /// # Errors
    /// In words, when it never will.
    pub fn go_on(&mut self, stream: &mut TcpStream, scratch: &mut [u8]) -> Result<bool, String> {
        let waits = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        };
        while self.wants_write() {
            match stream.write(&self.asked.as_bytes()[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if waits(&error) => return Ok(false),
                Err(error) => return Err(format!("it does not take CONNECT: {error}")),
            }
        }
        loop {
            let count = match stream.read(scratch) {
                Ok(0) => return Err("it closed the connection instead of opening a tunnel".to_owned()),
                Ok(count) => count,
                Err(error) if waits(&error) => return Ok(false),
                Err(error) => return Err(format!("no answer to CONNECT: {error}")),
            };
            match self.head.feed(&scratch[..count]) {
                Err(bad) => return Err(format!("its answer to CONNECT: {bad}")),
                Ok(None) => {}
                Ok(Some((head, _))) if !(200..300).contains(&head.status) => {
                    return Err(format!("it answers {} to CONNECT", head.status));
                }
                // The target speaks only after it was spoken to: these bytes are nobody's.
                Ok(Some((_, taken))) if taken < count => {
                    return Err("it sends bytes of its own into the tunnel".to_owned());
                }
                Ok(Some(_)) => return Ok(true),
            }
        }
    }
}
