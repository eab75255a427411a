//! Local ports, of loopback as a rule, that belong to a run from before the first program starts until its end.
//!
//! A lease is a bound socket that never listens. While it is held the kernel gives the port to nobody else, neither to
//! an outgoing connection nor to another program's port 0; a program that binds with `SO_REUSEADDR` (as servers do)
//! may still listen there, again and again. So a service keeps its address over a restart, and a connection to a
//! service that is down is refused at once.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt::set_socket_reuseaddr,
};

use crate::error::RunnerError;

/// Leases of one run; dropped, the ports are free again.
#[derive(Debug)]
pub struct Ports {
    ip: Ipv4Addr,
    held: Vec<OwnedFd>,
}

impl Default for Ports {
    /// On the loopback address.
    fn default() -> Self {
        Self::on(Ipv4Addr::LOCALHOST)
    }
}

impl Ports {
    /// On an address of this machine.
    #[must_use]
    pub fn on(ip: Ipv4Addr) -> Self {
        Self { ip, held: Vec::new() }
    }

    /// The address.
    #[must_use]
    pub const fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Leases one more port, chosen by the kernel.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when there is no socket or no port left.
    pub fn lease(&mut self) -> Result<SocketAddrV4, RunnerError> {
        let failed = |error: rustix::io::Errno| {
            RunnerError::environment(format!(
                "leasing a port of {}: {error}; free some ports or files",
                self.ip
            ))
        };
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
        set_socket_reuseaddr(&socket, true).map_err(failed)?;
        bind(&socket, &SocketAddrV4::new(self.ip, 0)).map_err(failed)?;
        let bound = getsockname(&socket).map_err(failed)?;
        let address = SocketAddrV4::try_from(bound).map_err(failed)?;
        self.held.push(socket);
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_comes_back_to_its_leased_port_and_nobody_answers_in_between() {
        let mut ports = Ports::default();
        let address = ports.lease().unwrap();
        for _ in 0..2 {
            assert!(std::net::TcpStream::connect(address).is_err(), "a lease itself never listens");
            // The standard library binds with SO_REUSEADDR, as tokio and Go do.
            let server = std::net::TcpListener::bind(address).unwrap();
            std::net::TcpStream::connect(address).unwrap();
            drop(server);
        }
    }

    #[test]
    fn leases_never_meet() {
        let mut ports = Ports::default();
        let mut all: Vec<_> = (0..200).map(|_| ports.lease().unwrap()).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
    }
}
