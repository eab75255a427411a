//! Kept-alive connections of one target. Last in, first out, so that connections that are not needed go stale.

use super::Connection;

/// Idle connections; never more than were in flight at once.
#[derive(Debug, Default)]
pub struct Pool {
    idle: Vec<Connection>,
}

impl Pool {
    /// A connection that was open and quiet at this moment; closed ones are thrown away on the way.
    pub fn take(&mut self) -> Option<Connection> {
        while let Some(connection) = self.idle.pop() {
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose last answer was read to its end.
    pub fn put(&mut self, connection: Connection) {
        self.idle.push(connection);
    }

    /// Closes all idle connections.
    pub fn clear(&mut self) {
        self.idle.clear();
    }

    /// How many are idle.
    #[must_use]
    pub fn len(&self) -> usize {
        self.idle.len()
    }

    /// Whether none is idle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }
}
