//! Protocol `anthropic`: `POST /v1/messages`, typed SSE events from `message_start` to `message_stop`. The version
//! header is the profile's (`anthropic-version` in `headers`), never written by this code.

use evidence::record::{AnswerFacts, TokenSource, Tokens};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sse::{Ending, Event, Parser};

use super::{Call, Finished, Part, Protocol, StreamReader, ending_word, put_extra};

/// Bytes kept of a text that goes into a record.
const LABEL_BYTES_MAX: usize = 256;

/// The protocol.
#[derive(Debug)]
pub struct Anthropic;

impl Protocol for Anthropic {
    fn name(&self) -> &'static str {
        "anthropic"
    }

    fn path(&self) -> &'static str {
        "/v1/messages"
    }

    fn key_header(&self) -> (&'static str, &'static str) {
        ("x-api-key", "")
    }

    fn body(&self, call: Call<'_>) -> Vec<u8> {
        let messages: Vec<Value> = call
            .messages
            .iter()
            .map(|message| json!({"role": message.role.word(), "content": message.content}))
            .collect();
        let mut body = Map::new();
        body.insert("model".to_owned(), call.model.into());
        body.insert("max_tokens".to_owned(), call.max_tokens.into());
        if let Some(system) = call.system {
            body.insert("system".to_owned(), system.into());
        }
        body.insert("messages".to_owned(), messages.into());
        body.insert("stream".to_owned(), call.stream.into());
        put_extra(&mut body, call.extra);
        serde_json::to_vec(&body).expect("text, numbers and booleans serialise")
    }

    fn stream(&self) -> Box<dyn StreamReader> {
        Box::new(Reader::default())
    }

    fn document(&self, body: &[u8], on_text: &mut dyn FnMut(&str)) -> Finished {
        let mut facts = AnswerFacts { choices: 1, json_object: Some(false), ..AnswerFacts::default() };
        facts.utf8_errors = u64::from(std::str::from_utf8(body).is_err());
        let text = String::from_utf8_lossy(body);
        let Ok(value) = serde_json::from_str::<Value>(&text) else {
            facts.json_errors = 1;
            return Finished { facts, carries_nothing: true, ..Finished::default() };
        };
        facts.json_object = Some(value.is_object());
        let Ok(answer) = serde_json::from_value::<Document>(value) else {
            facts.shape_errors = 1;
            return Finished { facts, carries_nothing: true, ..Finished::default() };
        };
        if let Some(error) = answer.error {
            (facts.error_message, facts.error_code) = error.parts();
        } else if answer.content.is_none() {
            facts.shape_errors = 1;
        }
        let mut carried = 0;
        for block in answer.content.unwrap_or_default() {
            match block.kind.as_str() {
                "text" if !block.text.is_empty() => {
                    facts.content_events += 1;
                    on_text(&block.text);
                }
                "thinking" if !block.thinking.is_empty() => facts.reasoning_events += 1,
                "tool_use" => {}
                _ => continue,
            }
            carried += 1;
        }
        facts.finish_reasons = answer.stop_reason.map(|reason| (0, bounded(&reason))).into_iter().collect();
        let tokens = answer.usage.unwrap_or_default();
        Finished {
            facts,
            tokens: tokens.output_tokens.map(|completion| Tokens {
                prompt: tokens.input_tokens,
                completion,
                source: TokenSource::Usage,
            }),
            id: answer.id.map(|id| bounded(&id)),
            carries_nothing: carried == 0,
            ..Finished::default()
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    id: Option<String>,
    content: Option<Vec<Block>>,
    stop_reason: Option<String>,
    usage: Option<Usage>,
    error: Option<ErrorBody>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: String,
    thinking: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    #[serde(rename = "type")]
    kind: Option<String>,
    message: Option<String>,
}

impl ErrorBody {
    fn parts(&self) -> (Option<String>, Option<String>) {
        (Some(bounded(self.message.as_deref().unwrap_or_default())), self.kind.as_deref().map(bounded))
    }
}

/// The data of one event; the keys of all types together.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventBody {
    #[serde(rename = "type")]
    kind: String,
    message: Option<Document>,
    delta: Option<Delta>,
    content_block: Option<Block>,
    usage: Option<Usage>,
    error: Option<ErrorBody>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta {
    text: String,
    thinking: String,
    partial_json: String,
    stop_reason: Option<String>,
}

/// What an event changes beside counts.
#[derive(Clone, Copy, Debug, Default)]
struct What {
    content: bool,
    reasoning: bool,
    tool_call: bool,
}

#[derive(Debug, Default)]
struct Reader {
    parser: Parser,
    state: State,
}

#[derive(Debug, Default)]
struct State {
    facts: AnswerFacts,
    usage: Usage,
    id: Option<String>,
    tool_call_events: u64,
    /// The last event was an error.
    error_last: bool,
}

impl StreamReader for Reader {
    fn feed(&mut self, bytes: &[u8], on_part: &mut dyn FnMut(Part<'_>)) {
        let Self { parser, state } = self;
        parser.feed(bytes, |item| match item {
            Ok(event) => state.event(&event, on_part),
            Err(_) => {
                state.facts.oversize_events += 1;
                state.facts.events_after_done += u64::from(state.facts.done_count > 0);
                on_part(Part::Event { reasoning: false, output: false });
            }
        });
    }

    fn events(&self) -> u64 {
        self.state.facts.events + self.state.facts.oversize_events
    }

    fn finish(&mut self) -> Finished {
        let state = std::mem::take(&mut self.state);
        let unfinished = self.parser.finish().map_or(0, |left| left.raw.len() as u64);
        state.finish(unfinished, self.parser.counts().comments)
    }
}

impl State {
    fn event(&mut self, event: &Event<'_>, on_part: &mut dyn FnMut(Part<'_>)) {
        self.facts.events += 1;
        self.facts.utf8_errors += u64::from(!event.valid_utf8());
        self.facts.events_after_done += u64::from(self.facts.done_count > 0);
        self.error_last = false;
        let text = event.text_lossy();
        let Ok(body) = serde_json::from_str::<EventBody>(&text) else {
            match serde_json::from_str::<Value>(&text) {
                Ok(_) => self.facts.shape_errors += 1,
                Err(_) => self.facts.json_errors += 1,
            }
            on_part(Part::Event { reasoning: false, output: false });
            return;
        };
        let what = self.body(&body);
        self.facts.content_events += u64::from(what.content);
        self.facts.reasoning_events += u64::from(what.reasoning);
        self.tool_call_events += u64::from(what.tool_call);
        on_part(Part::Event { reasoning: what.reasoning, output: what.content || what.tool_call });
        let delta = body.delta.as_ref().map_or("", |delta| delta.text.as_str());
        let block = body.content_block.as_ref().map_or("", |block| block.text.as_str());
        for text in [block, delta] {
            if what.content && !text.is_empty() {
                on_part(Part::Text(text));
            }
        }
    }

    fn body(&mut self, body: &EventBody) -> What {
        let mut what = What::default();
        if let Some(usage) = body.usage.or_else(|| body.message.as_ref()?.usage) {
            self.usage.input_tokens = usage.input_tokens.or(self.usage.input_tokens);
            self.usage.output_tokens = usage.output_tokens.or(self.usage.output_tokens);
        }
        match body.kind.as_str() {
            "message_start" => {
                self.facts.choices = 1;
                self.id = body.message.as_ref().and_then(|message| message.id.as_deref()).map(bounded);
            }
            "content_block_start" => {
                if let Some(block) = &body.content_block {
                    what.content = block.kind == "text" && !block.text.is_empty();
                    what.reasoning = block.kind == "thinking" && !block.thinking.is_empty();
                    what.tool_call = block.kind == "tool_use";
                }
            }
            "content_block_delta" => {
                if let Some(delta) = &body.delta {
                    what.content = !delta.text.is_empty();
                    what.reasoning = !delta.thinking.is_empty();
                    what.tool_call = !delta.partial_json.is_empty();
                }
            }
            "message_delta" => {
                let reason = body.delta.as_ref().and_then(|delta| delta.stop_reason.as_deref());
                if let Some(reason) = reason {
                    self.facts.finish_reasons.entry(0).or_insert_with(|| bounded(reason));
                }
            }
            "message_stop" => self.facts.done_count += 1,
            "error" => {
                let error = body.error.as_ref();
                let (message, code) = error.map_or((Some(String::new()), None), ErrorBody::parts);
                if self.facts.error_message.is_none() {
                    (self.facts.error_message, self.facts.error_code) = (message, code);
                }
                self.error_last = true;
            }
            // Pings keep a connection alive; types of later versions are to be ignored.
            _ => {}
        }
        what
    }

    fn finish(mut self, unfinished_bytes: u64, comments: u64) -> Finished {
        self.facts.unfinished_bytes = unfinished_bytes;
        self.facts.comments = comments;
        let ending = self.ending();
        let output_events = self.facts.content_events + self.facts.reasoning_events + self.tool_call_events;
        let tokens = match self.usage.output_tokens {
            Some(completion) => {
                Some(Tokens { prompt: self.usage.input_tokens, completion, source: TokenSource::Usage })
            }
            None if self.facts.events == 0 => None,
            None => Some(Tokens {
                prompt: self.usage.input_tokens,
                completion: self.facts.content_events + self.facts.reasoning_events,
                source: TokenSource::Events,
            }),
        };
        self.facts.ending = Some(ending_word(ending).to_owned());
        Finished {
            facts: self.facts,
            ending: Some(ending),
            tokens,
            output_events,
            id: self.id,
            carries_nothing: output_events == 0,
            ..Finished::default()
        }
    }

    fn ending(&self) -> Ending {
        let facts = &self.facts;
        let finished = !facts.finish_reasons.is_empty();
        let error = facts.error_message.is_some();
        if facts.done_count > 0 {
            return if facts.events_after_done > facts.done_count - 1 || facts.unfinished_bytes > 0 {
                Ending::DataAfterDone
            } else if facts.done_count > 1 {
                Ending::RepeatedDone
            } else if error {
                Ending::ErrorThenDone
            } else if finished {
                Ending::Done
            } else {
                Ending::DoneWithoutFinish
            };
        }
        if facts.unfinished_bytes > 0 {
            Ending::Truncated
        } else if facts.events + facts.oversize_events == 0 {
            Ending::Empty
        } else if self.error_last {
            Ending::ErrorEvent
        } else if finished && !error {
            Ending::FinishedWithoutDone
        } else {
            Ending::Truncated
        }
    }
}

fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(LABEL_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(events: &[Value], cut: usize) -> (Finished, String, Vec<(bool, bool)>) {
        let text: String = events
            .iter()
            .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()))
            .collect();
        let mut reader = Anthropic.stream();
        let (mut joined, mut parts) = (String::new(), Vec::new());
        let (left, right) = text.as_bytes().split_at(cut.min(text.len()));
        for piece in [left, right] {
            reader.feed(piece, &mut |part| match part {
                Part::Event { reasoning, output } => parts.push((reasoning, output)),
                Part::Text(text) => joined.push_str(text),
            });
        }
        (reader.finish(), joined, parts)
    }

    fn good() -> Vec<Value> {
        vec![
            json!({"type": "message_start", "message": {"id": "msg_1", "content": [],
                "usage": {"input_tokens": 9, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
            json!({"type": "ping"}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "é"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}),
            json!({"type": "message_stop"}),
        ]
    }

    #[test]
    fn a_stream_is_read_the_same_at_any_cut() {
        let whole = stream(&good(), 0);
        assert_eq!((whole.0.ending, whole.1.as_str()), (Some(Ending::Done), "aé"));
        assert_eq!(whole.0.tokens.unwrap().completion, 5);
        assert_eq!(whole.0.tokens.unwrap().prompt, Some(9));
        assert_eq!(whole.2.iter().position(|part| part.0), Some(2));
        assert_eq!(whole.2.iter().position(|part| part.1), Some(4));
        for cut in 0..900 {
            let again = stream(&good(), cut);
            assert_eq!(
                (again.0.facts, again.1, again.2),
                (whole.0.facts.clone(), whole.1.clone(), whole.2.clone())
            );
        }
    }

    #[test]
    fn endings_have_their_words() {
        let mut events = good();
        events.pop();
        assert_eq!(stream(&events, 0).0.ending, Some(Ending::FinishedWithoutDone));
        events.pop();
        assert_eq!(stream(&events, 0).0.ending, Some(Ending::Truncated));
        events.push(json!({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}));
        let failed = stream(&events, 0).0;
        assert_eq!(failed.ending, Some(Ending::ErrorEvent));
        assert_eq!(failed.facts.error_code.as_deref(), Some("overloaded_error"));
        assert_eq!(stream(&[], 0).0.ending, Some(Ending::Empty));
        let mut twice = good();
        twice.push(json!({"type": "message_stop"}));
        assert_eq!(stream(&twice, 0).0.ending, Some(Ending::RepeatedDone));
    }

    #[test]
    fn a_document_gives_text_tool_use_and_usage() {
        let body = json!({"id": "msg_2", "content": [{"type": "text", "text": "hello"},
            {"type": "tool_use", "name": "f", "input": {}}], "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 4}});
        let mut text = String::new();
        let answer = Anthropic.document(body.to_string().as_bytes(), &mut |part| text.push_str(part));
        assert_eq!((text.as_str(), answer.tokens.unwrap().completion), ("hello", 4));
        assert_eq!(answer.facts.finish_reasons[&0], "tool_use");
        let error = json!({"type": "error", "error": {"type": "not_found_error", "message": "no model"}});
        let answer = Anthropic.document(error.to_string().as_bytes(), &mut |_| {});
        assert_eq!(answer.facts.error_message.as_deref(), Some("no model"));
        let broken = Anthropic.document(b"{", &mut |_| {});
        assert_eq!((broken.facts.json_errors, broken.facts.json_object), (1, Some(false)));
    }
}
