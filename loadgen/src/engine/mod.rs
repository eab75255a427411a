//! The engine: one event loop a thread that makes connections, sends at planned instants and reads answers
//! ([`reactor`]); what is sent when comes from a [`Load`], of which each mode has one.

pub mod arrivals;
pub mod conversation;
pub mod exchange;
pub mod live;
pub mod measure;
pub mod plan_load;
pub mod plan_thread;
pub mod poller;
pub mod profile_load;
pub mod reactor;
pub mod resolver;
pub mod slab;
pub mod spare;
pub mod stage;
pub mod turn_record;

use std::sync::Arc;

use evidence::record::RequestRecord;
use evidence::redact::Redactor;
use scenario::pipe::LoadLimits;
use scenario::plan::CancelPoint;

use crate::checks::Check;
use crate::connection::request::HeadTemplate;
use crate::connection::transport::Transport;
use crate::engine::spare::Spare;
use crate::protocol::Protocol;
use crate::target::Target;

/// Where requests of one kind go, and how.
#[derive(Debug)]
pub struct Route {
    /// Where to.
    pub target: Target,
    /// The common part of the heads.
    pub head: HeadTemplate,
    /// The wire format.
    pub protocol: &'static dyn Protocol,
    /// Time limits.
    pub limits: LoadLimits,
    /// How long a connection is kept.
    pub keep: KeepAlive,
    /// How connections are made.
    pub transport: Transport,
}

/// How long a connection is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepAlive {
    /// As long as the peer keeps it.
    #[default]
    Reuse,
    /// For so many requests; 1 = a new connection for each.
    Requests(u64),
}

/// One request that is to be sent now.
#[derive(Debug)]
pub struct Work {
    /// Number that the load knows it by.
    pub tag: u64,
    /// Which route.
    pub route: usize,
    /// Part of the load that it is counted in; each part counts the connections that it uses.
    pub part: u64,
    /// Record with id, index, planned and released instants; the exchange fills in the rest.
    pub record: Box<RequestRecord>,
    /// Own cancel point.
    pub cancel: Option<CancelPoint>,
    /// Checks of the answer.
    pub checks: Arc<[Check]>,
    /// The joined content is wanted (it goes into the next turn).
    pub keep_content: bool,
    /// The digest of the joined content goes into the record.
    pub digest: bool,
    /// Head and body.
    pub request: Vec<u8>,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Number that the load knows it by.
    pub tag: u64,
    /// Everything seen.
    pub record: Box<RequestRecord>,
    /// Joined content, if it was wanted.
    pub content: String,
    /// Events with output.
    pub output_events: u64,
    /// When sending began: a connection was there or was begun. `None` when it never did.
    pub start_us: Option<u64>,
    /// It travelled as an HTTP/2 stream.
    pub http2: bool,
    /// What the tunnel through the proxy took, when one was opened.
    pub proxy_us: Option<u64>,
    /// The first of its part of the load on its connection.
    pub first_on_connection: bool,
    /// When the cancel point was reached.
    pub cancel_reached_us: Option<u64>,
}

/// What a load wants to happen next.
#[derive(Debug)]
pub enum Next {
    /// Send this now.
    Start(Box<Work>),
    /// Nothing before this instant.
    At(u64),
    /// Nothing before a request ends.
    Blocked,
    /// Nothing any more.
    Over,
}

/// What is sent when, and what becomes of the answers. Called by the event loop on its thread.
pub trait Load {
    /// What to do at this instant; asked again until it is nothing.
    fn next(&mut self, now_us: u64, spare: &mut Spare) -> Next;
    /// A request has ended.
    fn ended(&mut self, ended: Ended, now_us: u64);
    /// Time between two events with output of a request.
    fn event_gap(&mut self, tag: u64, gap_us: u64);
    /// Looks after what runs by time; gives the next instant for it.
    fn tick(&mut self, now_us: u64, sent: u64) -> Option<u64>;
}

/// What all requests of a thread share.
#[derive(Debug)]
pub struct Shared {
    /// Routes by number.
    pub routes: Vec<Route>,
    /// Takes keys out of what a server echoes.
    pub redactor: Redactor,
}
