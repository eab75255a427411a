//! Lines of evidence as judging reads them: only the fields that some assertion needs, texts borrowed from the line.
//! The whole types are in crate `evidence` and `scenario`; what these leave out is read again for single failures.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use evidence::accounting::JoinWay;
use evidence::record::ClientClass;
use scenario::control::NodeOutcome;
use scenario::fault::{CallKind, DapiCall};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::scan::Scanned;

/// Text of a line, borrowed unless it has escapes.
#[derive(Clone, Debug)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Words)
    }
}

/// Number of entries of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries(pub(crate) usize);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Entries(count))
            }
        }
        deserializer.deserialize_map(Count)
    }
}

/// Of `plan.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct PlanLine<'a> {
    pub(crate) v: u32,
    pub(crate) index: u64,
    #[serde(borrow)]
    pub(crate) id: Text<'a>,
    pub(crate) prompt: PromptPart,
}

/// Size of a prompt.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
pub(crate) struct PromptPart {
    pub(crate) input_tokens: u32,
}

/// Of `requests.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct RecordLine<'a> {
    pub(crate) v: u32,
    pub(crate) index: u64,
    #[serde(borrow)]
    pub(crate) id: Text<'a>,
    pub(crate) step: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) planned_us: Option<u64>,
    pub(crate) first_content_us: Option<u64>,
    pub(crate) end_us: Option<u64>,
    pub(crate) status: Option<u16>,
    #[serde(borrow)]
    pub(crate) content_type: Option<Text<'a>>,
    pub(crate) response_request_id: Option<IgnoredAny>,
    #[serde(borrow)]
    pub(crate) response_devshard_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) response_body_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) answer: Option<AnswerPart<'a>>,
    pub(crate) client_class: ClientClass,
}

/// Grammar facts of an answer.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct AnswerPart<'a> {
    #[serde(borrow)]
    pub(crate) ending: Option<Text<'a>>,
    pub(crate) content_events: u64,
    pub(crate) done_count: u64,
    pub(crate) events_after_done: u64,
    pub(crate) unfinished_bytes: u64,
    pub(crate) json_errors: u64,
    pub(crate) utf8_errors: u64,
    pub(crate) oversize_events: u64,
    pub(crate) shape_errors: u64,
    pub(crate) id_changed: bool,
    #[serde(borrow)]
    pub(crate) error_message: Option<Text<'a>>,
    pub(crate) finish_reasons: Entries,
    pub(crate) choices: u32,
    pub(crate) json_object: Option<bool>,
    pub(crate) body_complete: bool,
}

/// Of `accounting.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct JoinedLine<'a> {
    pub(crate) v: u32,
    pub(crate) index: u64,
    #[serde(borrow)]
    pub(crate) id: Text<'a>,
    pub(crate) accepted: bool,
    pub(crate) cached: bool,
    #[serde(borrow)]
    pub(crate) escrow: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) accounting: Option<RowPart<'a>>,
    #[serde(borrow)]
    pub(crate) calls: Vec<CallPart<'a>>,
    pub(crate) ways: Vec<JoinWay>,
}

/// A row of accounting.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct RowPart<'a> {
    #[serde(borrow)]
    pub(crate) request_id: Text<'a>,
    #[serde(borrow)]
    pub(crate) escrow: Text<'a>,
    #[serde(borrow)]
    pub(crate) outcome: Text<'a>,
    #[serde(borrow)]
    pub(crate) decision: Option<Text<'a>>,
    pub(crate) winner_nonce: Option<u64>,
    #[serde(borrow)]
    pub(crate) attempts: Vec<AttemptPart<'a>>,
    pub(crate) completed_at: Option<IgnoredAny>,
}

/// An attempt of a row.
#[derive(Clone, Debug, serde::Deserialize)]
pub(crate) struct AttemptPart<'a> {
    pub(crate) nonce: u64,
    pub(crate) host_idx: u32,
    #[serde(borrow)]
    pub(crate) participant: Option<Text<'a>>,
    pub(crate) winner: bool,
}

/// A joined call.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct CallPart<'a> {
    pub(crate) call: u64,
    #[serde(borrow)]
    pub(crate) node: Text<'a>,
    pub(crate) nonce: Option<u64>,
    pub(crate) outcome: NodeOutcome,
    pub(crate) status: Option<u16>,
    #[serde(borrow)]
    pub(crate) rule: Option<Text<'a>>,
}

/// Of `faults/hits.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct HitLine<'a> {
    #[serde(borrow)]
    pub(crate) place: Text<'a>,
    #[serde(borrow)]
    pub(crate) rule: Text<'a>,
    #[serde(borrow)]
    pub(crate) request_id: Option<Text<'a>>,
    pub(crate) attempt: u64,
    pub(crate) kind: Option<CallKind>,
}

/// Of `faults/node-calls.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct NodeCallLine<'a> {
    pub(crate) call: u64,
    #[serde(borrow)]
    pub(crate) node: Text<'a>,
    pub(crate) started_us: u64,
    pub(crate) ended_us: Option<u64>,
    #[serde(borrow)]
    pub(crate) request_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) salt: Option<Text<'a>>,
    pub(crate) seed: Option<u64>,
    #[serde(borrow)]
    pub(crate) lock: Option<Text<'a>>,
    pub(crate) kind: CallKind,
    pub(crate) attempt: u64,
    pub(crate) status: Option<u16>,
    pub(crate) outcome: NodeOutcome,
    #[serde(borrow)]
    pub(crate) rule: Option<Text<'a>>,
    pub(crate) content_events: u64,
}

/// Of `faults/dapi-calls.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct DapiLine<'a> {
    pub(crate) seq: u64,
    pub(crate) call: DapiCall,
    #[serde(borrow)]
    pub(crate) lock: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) node: Option<Text<'a>>,
    #[serde(borrow)]
    pub(crate) result: Text<'a>,
    #[serde(borrow)]
    pub(crate) outcome: Option<Text<'a>>,
}

/// Of `snapshots/diffs.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct DiffLine<'a> {
    pub(crate) v: u32,
    pub(crate) n: u64,
    #[serde(borrow)]
    pub(crate) escrow: Text<'a>,
    #[serde(borrow)]
    pub(crate) diff: DiffPart<'a>,
}

/// A diff.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct DiffPart<'a> {
    pub(crate) nonce: u64,
    #[serde(borrow)]
    pub(crate) txs: Vec<TxPart<'a>>,
}

/// A transaction of a diff.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct TxPart<'a> {
    #[serde(borrow)]
    pub(crate) kind: Text<'a>,
    #[serde(default)]
    pub(crate) inference: Option<u64>,
    #[serde(default)]
    pub(crate) slot: Option<u32>,
    #[serde(default, borrow)]
    pub(crate) escrow: Option<Text<'a>>,
}

/// Of `snapshots/inferences.jsonl`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct InferenceLine<'a> {
    pub(crate) v: u32,
    pub(crate) n: u64,
    #[serde(borrow)]
    pub(crate) escrow: Text<'a>,
    pub(crate) nonce: u64,
    #[serde(borrow)]
    pub(crate) inference: Option<InferencePart<'a>>,
}

/// How an inference looks.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct InferencePart<'a> {
    #[serde(borrow)]
    pub(crate) status: Text<'a>,
    pub(crate) executor_slot: u32,
    #[serde(borrow)]
    pub(crate) prompt_hash: Option<Text<'a>>,
    pub(crate) input_length: u64,
    pub(crate) max_tokens: u64,
    pub(crate) started_at: u64,
}

/// Reads the fields of a line: the quick way when it is written as our own writers do, else by serde.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn parse<'a, T: serde::Deserialize<'a> + Scanned<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    crate::scan::line(bytes).map_or_else(|| parse_any(bytes), Ok)
}

/// Reads the fields of a line by serde.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn parse_any<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}
