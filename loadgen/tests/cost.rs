//! What a request costs in calls of the kernel: exact on every machine, however fast, and red when one more creeps in.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::time::Duration;

use common::{Server, line, prepared};
use loadgen::connection::transport::Options;
use loadgen::engine::KeepAlive;
use loadgen::engine::reactor::Calls;
use loadgen::halt::Halt;
use loadgen::target::Target;
use scenario::pipe::LoadLimits;
use scenario::units::Micros;

const REQUESTS: u64 = 400;

/// Calls for requests one after another on one connection, each answered in one piece.
fn calls(stream: bool) -> Calls {
    let server = Server::good(Duration::ZERO);
    let long = Micros::from_s(600);
    let limits =
        LoadLimits { connect: long, headers: long, first_byte: long, idle: long, total: long, drain: long };
    let lines = (0..REQUESTS).map(|index| {
        let line = line(index, stream);
        let body = scenario::prompt::body(&line, "abcdefghijkl", "m");
        (line, body)
    });
    let target = Target::resolve(&server.url()).unwrap();
    let (mut reactor, mut load) =
        prepared(target, lines.collect(), (limits, KeepAlive::Reuse), &Options::default(), 1);
    reactor.run(&mut load, &Halt::default());
    assert_eq!(load.ended.len() as u64, REQUESTS);
    reactor.calls()
}

#[test]
fn a_request_on_a_kept_connection_is_one_write_one_wait_and_one_read() {
    for stream in [false, true] {
        let calls = calls(stream);
        assert_eq!(calls.writes, REQUESTS, "{calls:?}");
        assert_eq!(calls.reads, REQUESTS, "{calls:?}");
        // One more wait for the connection itself.
        assert_eq!(calls.waits, REQUESTS + 1, "{calls:?}");
        // Watched once, and once more after connecting; a deadline that moves back costs nothing.
        assert_eq!((calls.watches, calls.timers), (2, 0), "{calls:?}");
    }
}
