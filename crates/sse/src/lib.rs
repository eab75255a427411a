//! Server-sent events from raw bytes, and what a chat stream said in them.
//!
//! Two layers, usable apart. [`Parser`] turns bytes, cut anywhere, into events by the grammar of
//! the HTML standard (section "Server-sent events"). [`chat`] says what each event means in an
//! OpenAI-style chat stream and folds a whole stream into [`StreamFacts`]; [`json_body`] does the
//! same for an answer that is one JSON document. The folder `corpus/` holds the rules as files.
//!
//! State: one [`Parser`] or [`ChatStream`] belongs to one response and to the task that reads it;
//! nothing is shared or global. Memory is bounded by the event limit, whatever the peer sends.
//!
//! What must never happen here: a clock, randomness, network or files (times are the caller's: it
//! learns from [`EventFacts`] what came and looks at its own clock); a panic on any input; text
//! decoded before its line is complete; an unfinished event handed out as an event; a verdict.
//!
//! ```
//! use sse::{ChatStream, Ending};
//!
//! let mut stream = ChatStream::new();
//! let mut first_content = None;
//! for read in [&b"data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"fini"[..], b"sh_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"] {
//!     stream.feed(read, |what, _payload| {
//!         if what.content && first_content.is_none() {
//!             first_content = Some(what.index); // a real caller stores its time of this read
//!         }
//!     });
//! }
//! let facts = stream.finish();
//! assert_eq!(first_content, Some(0));
//! assert_eq!(facts.ending(), Ending::Done);
//! ```

pub mod chat;
mod json;
pub mod json_body;
mod parser;
mod scan;

pub use chat::{ChatStream, Ending, EventFacts, EventKind, Payload, StreamFacts};
pub use json_body::BodyFacts;
pub use parser::{Counts, DEFAULT_EVENT_BYTES_MAX, Event, EventTooLarge, Parser, Unfinished};
