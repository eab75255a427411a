//! Names and addresses: when a name is resolved, which address a connection goes to, and names that lead nowhere.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::net::TcpListener;
use std::time::Duration;

use common::{Server, good_answer, line, run_to};
use evidence::record::ClientClass as C;
use loadgen::connection::transport::{Dns, Http, Options};
use loadgen::engine::{Ended, KeepAlive};
use loadgen::result::Wires;
use loadgen::target::Target;
use scenario::pipe::LoadLimits;
use scenario::units::Micros;

fn send(target: Target, count: u64, keep: KeepAlive, options: &Options) -> (Vec<Ended>, Wires) {
    let long = Micros::from_s(60);
    let limits =
        LoadLimits { connect: long, headers: long, first_byte: long, idle: long, total: long, drain: long };
    let lines = (0..count).map(|index| {
        let line = line(index, false);
        let body = scenario::prompt::body(&line, "abcdefghijkl", "m");
        (line, body)
    });
    run_to(target, lines.collect(), limits, keep, options, 2)
}

fn named(server: &Server) -> Target {
    let url = format!("http://localhost:{}", server.address.port());
    Target::of_call(&url, "/v1/chat/completions").unwrap()
}

#[test]
fn a_name_is_resolved_when_the_policy_says_so() {
    let server = Server::good(Duration::ZERO);
    let resolved = named(&server).resolved().unwrap();
    let each = KeepAlive::Requests(1);
    for (dns, target, keep, lookups) in [
        (Dns::Once, resolved, each, 0..=0),
        // Two at a time may share one answer of the resolver.
        (Dns::PerConnection, named(&server), each, 10..=20),
        (Dns::PerConnection, named(&server), KeepAlive::Reuse, 1..=2),
        (Dns::Every(Micros::from_s(3_600)), named(&server), each, 1..=2),
        (Dns::Every(Micros::from_us(1)), named(&server), each, 10..=20),
    ] {
        let (ended, wires) = send(target, 20, keep, &Options { dns, ..Options::default() });
        assert!(ended.iter().all(|one| one.record.client_class == C::Ok), "{dns:?}: {ended:?}");
        assert!(lookups.contains(&wires.name_lookups), "{dns:?} {keep:?}: {wires:?}");
        // The time is in the record of each request that waited for the resolver, and in no other.
        let timed = ended.iter().filter(|one| one.record.dns_us.is_some()).count() as u64;
        assert!(timed >= wires.name_lookups && (timed > 0) == (wires.name_lookups > 0), "{dns:?}: {timed}");
        assert!(ended.iter().all(|one| one.record.dns_us.is_none() || one.record.connect_us.is_some()));
    }
}

#[test]
fn a_name_that_leads_nowhere_has_its_own_class() {
    // No resolver is asked for a name with an empty label.
    let target = Target::of_call("http://a..b:80/x", "/").unwrap();
    assert!(target.clone().resolved().is_err());
    for http in [Http::One, Http::Two] {
        let options = Options { dns: Dns::PerConnection, http, ..Options::default() };
        let (ended, wires) = send(target.clone(), 5, KeepAlive::Reuse, &options);
        assert_eq!(ended.len(), 5);
        for one in ended {
            assert_eq!(one.record.client_class, C::DnsFailed, "{:?}", one.record);
            assert!(one.record.detail.as_deref().unwrap().contains("a..b"), "{:?}", one.record);
            assert!(one.record.sent_us.is_none() && one.record.connect_us.is_none());
        }
        assert!(wires.name_lookups >= 1);
    }
}

#[test]
fn connections_take_turns_over_all_addresses() {
    let servers: Vec<Server> = (0..3).map(|_| Server::good(Duration::ZERO)).collect();
    let mut target = named(&servers[0]);
    target.addresses = servers.iter().map(|server| server.address).collect();
    let (ended, wires) = send(target, 30, KeepAlive::Requests(1), &Options::default());
    assert!(ended.iter().all(|one| one.record.client_class == C::Ok), "{ended:?}");
    assert_eq!(wires.peers.values().map(|peer| peer.requests).collect::<Vec<_>>(), [10, 10, 10]);
}

#[test]
fn an_address_where_nobody_listens_is_left_out_while_others_answer() {
    let server = Server::start(|peer| {
        while let Some(request) = peer.request() {
            peer.send(good_answer(request.is_stream()));
        }
    });
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut target = named(&server);
    target.addresses = vec![closed, server.address];
    let (ended, wires) = send(target.clone(), 10, KeepAlive::Requests(1), &Options::default());
    assert!(ended.iter().all(|one| one.record.client_class == C::Ok), "{ended:?}");
    let peers: Vec<u64> = wires.peers.values().map(|peer| peer.connections).collect();
    assert_eq!(peers, [10], "{wires:?}");
    // Nobody anywhere.
    target.addresses = vec![closed];
    let (ended, _) = send(target, 3, KeepAlive::Reuse, &Options::default());
    assert!(ended.iter().all(|one| one.record.client_class == C::ConnectRefused), "{ended:?}");
}
