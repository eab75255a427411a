//! One answer, rendered twice: as one JSON document or as SSE events (contract mocks 3.2, 3.3). Keys are sorted.

use scenario::draw::{Field, draw};
use serde_json::Value;

use super::request::{Chat, Enforced};
use super::vocabulary::VOCABULARY;

/// Bytes of prompt text per prompt token.
const BYTES_PER_TOKEN: u64 = 4;

/// A token of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A word of the vocabulary.
    Word(u8),
    /// A token given by the request.
    Given {
        /// Text with JSON escapes, without quotes.
        escaped: String,
        /// Log probability entry as JSON.
        entry: String,
    },
}

/// A whole answer. The same seed and key give the same answer at any node, as JSON and as SSE.
#[derive(Debug)]
pub struct Answer {
    tokens: Vec<Token>,
    top_logprobs: Option<usize>,
    prompt_tokens: u64,
    /// What usage says: a token that a fault leaves out was still made.
    completion_tokens: u64,
    /// What ends every chunk behind its choices, with the blank line.
    chunk_tail: String,
    /// Members behind the choices of the JSON document, without usage.
    json_tail: String,
    id: String,
}

/// Where things are in a rendered JSON document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonPlan {
    /// Length in bytes.
    pub length: usize,
    /// Offset of the first byte of the content.
    pub content_start: usize,
}

impl Answer {
    /// Builds the answer to a request.
    #[must_use]
    pub fn new(chat: &Chat, seed: u64, created_unix_s: i64) -> Self {
        let start = draw(&[Field::Integer(seed), Field::Text("text"), Field::Text(&chat.key)]);
        let tokens: Vec<Token> = match &chat.enforced {
            Some(enforced) => enforced.iter().map(given).collect(),
            None => (0_u64..).take(chat.tokens).map(|index| Token::Word(pick(start, index))).collect(),
        };
        let id = format!("chatcmpl-{start:016x}");
        let model = Value::from(chat.model.as_str());
        let tail = |object: &str| {
            format!(r#"],"created":{created_unix_s},"id":"{id}","model":{model},"object":"{object}""#)
        };
        Self {
            completion_tokens: tokens.len() as u64,
            tokens,
            top_logprobs: chat.top_logprobs,
            prompt_tokens: (chat.prompt_bytes / BYTES_PER_TOKEN).max(1),
            chunk_tail: format!("{}}}\n\n", tail("chat.completion.chunk")),
            json_tail: tail("chat.completion"),
            id,
        }
    }

    /// Number of tokens = content events.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Leaves the first token out: the JSON form of `drop_first_content`.
    pub fn drop_first_token(&mut self) {
        if !self.tokens.is_empty() {
            self.tokens.remove(0);
        }
    }

    /// Text of a token with JSON escapes.
    fn escaped(&self, index: usize) -> &str {
        match &self.tokens[index] {
            Token::Word(word) => VOCABULARY.word(*word),
            Token::Given { escaped, .. } => escaped,
        }
    }

    fn entry(&self, index: usize, top: usize) -> &str {
        match &self.tokens[index] {
            Token::Word(word) => VOCABULARY.entry(*word, top),
            Token::Given { entry, .. } => entry,
        }
    }

    /// Adds the SSE event of one token: `data: …` with the blank line.
    pub fn content_event(&self, index: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(CONTENT_HEAD.as_bytes());
        out.extend_from_slice(self.escaped(index).as_bytes());
        out.extend_from_slice(b"\"},\"finish_reason\":null,\"index\":0,\"logprobs\":");
        match self.top_logprobs {
            None => out.extend_from_slice(b"null}"),
            Some(top) => {
                out.extend_from_slice(b"{\"content\":[");
                out.extend_from_slice(self.entry(index, top).as_bytes());
                out.extend_from_slice(b"]}}");
            }
        }
        out.extend_from_slice(self.chunk_tail.as_bytes());
    }

    /// Bytes of an event of a token that are sent before a cut inside its first multi-byte character. A token
    /// without one (only a replay can bring it) is cut in the middle of its text.
    #[must_use]
    pub fn event_cut(&self, index: usize) -> usize {
        CONTENT_HEAD.len() + self.cut_in_token(index)
    }

    fn cut_in_token(&self, index: usize) -> usize {
        let text = self.escaped(index);
        text.bytes().position(|byte| !byte.is_ascii()).map_or(text.len() / 2, |start| start + 1)
    }

    /// Text in front of the filler and behind it, for an event made long by filler in its content.
    #[must_use]
    pub fn padded_event(&self) -> (String, String) {
        let tail = format!("\"}},\"finish_reason\":null,\"index\":0,\"logprobs\":null}}{}", self.chunk_tail);
        (CONTENT_HEAD.to_owned(), tail)
    }

    /// Adds an event whose JSON is cut.
    pub fn malformed_event(&self, index: usize, out: &mut Vec<u8>) {
        let start = out.len();
        self.content_event(index, out);
        let length = out.len() - start;
        out.truncate(start + length / 2);
        // Half an event may end inside a character; only JSON is to be broken here, not UTF-8.
        while out.last().is_some_and(|byte| !byte.is_ascii()) {
            out.pop();
        }
        out.extend_from_slice(b"\n\n");
    }

    /// Adds the chunk with the finish reason.
    pub fn finish_event(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(CONTENT_HEAD.as_bytes());
        out.extend_from_slice(b"\"},\"finish_reason\":\"stop\",\"index\":0,\"logprobs\":null}");
        out.extend_from_slice(self.chunk_tail.as_bytes());
    }

    /// Adds the usage chunk. Its choices are empty, so that the finish reason is said once.
    pub fn usage_event(&self, out: &mut Vec<u8>) {
        let tail = self.chunk_tail.trim_end().trim_end_matches('}');
        out.extend_from_slice(b"data: {\"choices\":[");
        out.extend_from_slice(tail.as_bytes());
        out.extend_from_slice(self.usage().as_bytes());
        out.extend_from_slice(b"}\n\n");
    }

    /// Adds an error event as OpenAI servers send it inside a stream (contract mocks 3.4, `stream_error_envelope`).
    pub fn error_event(&self, out: &mut Vec<u8>) {
        let event = format!(
            "data: {{\"error\":{{\"code\":500,\"message\":\"EngineCore encountered an issue (fault rule)\",\
             \"param\":null,\"type\":\"InternalServerError\"}},\"id\":\"{}\"}}\n\n",
            self.id
        );
        out.extend_from_slice(event.as_bytes());
    }

    fn usage(&self) -> String {
        let (prompt, completion) = (self.prompt_tokens, self.completion_tokens);
        format!(
            r#","usage":{{"completion_tokens":{completion},"prompt_tokens":{prompt},"total_tokens":{}}}"#,
            prompt + completion
        )
    }

    /// Adds the JSON document, with usage or without.
    pub fn json(&self, with_usage: bool, out: &mut Vec<u8>) -> JsonPlan {
        let start = out.len();
        out.extend_from_slice(b"{\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"logprobs\":");
        match self.top_logprobs {
            None => out.extend_from_slice(b"null"),
            Some(top) => {
                out.extend_from_slice(b"{\"content\":[");
                for index in 0..self.tokens.len() {
                    if index > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(self.entry(index, top).as_bytes());
                }
                out.extend_from_slice(b"]}");
            }
        }
        out.extend_from_slice(b",\"message\":{\"content\":\"");
        let content_start = out.len() - start;
        for index in 0..self.tokens.len() {
            out.extend_from_slice(self.escaped(index).as_bytes());
        }
        out.extend_from_slice(b"\",\"role\":\"assistant\"}}");
        out.extend_from_slice(self.json_tail.as_bytes());
        if with_usage {
            out.extend_from_slice(self.usage().as_bytes());
        }
        out.push(b'}');
        JsonPlan { length: out.len() - start, content_start }
    }

    /// Offset in the JSON document of a cut inside the multi-byte character of a token.
    #[must_use]
    pub fn json_cut(&self, plan: JsonPlan, index: usize) -> usize {
        let before: usize = (0..index).map(|earlier| self.escaped(earlier).len()).sum();
        plan.content_start + before + self.cut_in_token(index)
    }
}

/// Everything of a content event in front of the text.
const CONTENT_HEAD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"";

fn given(enforced: &Enforced) -> Token {
    let top = enforced.top_tokens.as_deref().unwrap_or_default();
    let alternatives: Vec<&str> = top.iter().map(String::as_str).collect();
    let quoted = Value::from(VOCABULARY.text_of(&enforced.token)).to_string();
    Token::Given {
        escaped: quoted[1..quoted.len() - 1].to_owned(),
        entry: VOCABULARY.render_entry(&enforced.token, &alternatives),
    }
}

/// Word at a position: the top byte of a mixed counter (splitmix64), since a hash per token would cost more than the
/// rest of the answer.
fn pick(start: u64, index: u64) -> u8 {
    let mut z = start.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_be_bytes()[0]
}
