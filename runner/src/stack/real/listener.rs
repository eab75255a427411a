//! Where a program of others listens. It prints no ready line, so it is told port 0 and the kernel is asked which port
//! its process holds: nobody has to guess a free one.

use std::collections::BTreeSet;

/// State of a listening socket in `/proc/<pid>/net/tcp`.
const LISTEN: &str = "0A";

/// Lowest port on which this process listens, if any.
#[must_use]
pub fn port_of(pid: u32) -> Option<u16> {
    let sockets = sockets(pid);
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    tables.into_iter().flatten().flat_map(|table| listeners(&table, &sockets)).min()
}

/// Inodes of the sockets that the process has open.
fn sockets(pid: u32) -> BTreeSet<u64> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links
        .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok())
        .collect()
}

/// Ports of the listening lines of a table whose inode is among `sockets`.
fn listeners(table: &str, sockets: &BTreeSet<u64>) -> Vec<u16> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let mine = sockets.contains(&inode.parse().ok()?);
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (*state == LISTEN && mine).then_some(port)
    };
    table.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_listener_is_found_and_a_connection_is_none() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _connected = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let pid = std::process::id();
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
        assert!(listeners(&table, &sockets(pid)).contains(&port));
        assert!(listeners(&table, &BTreeSet::new()).is_empty());
    }
}
