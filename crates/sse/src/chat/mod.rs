//! OpenAI-style chat streams: what an event is, what a whole stream was, how it ended.

mod ending;
mod facts;
mod payload;
mod stream;

pub use ending::Ending;
pub(crate) use facts::{CHOICES_MAX, ID_BYTES_MAX, LABEL_BYTES_MAX, UsageFlags};
pub use facts::{ErrorFact, ForeignId, StreamFacts, UnfinishedFact, Usage};
pub use payload::{Chunk, EventKind, Payload};
pub use stream::{ChatStream, EventFacts};
